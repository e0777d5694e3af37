"""Counters and gauges of Prometheus, under the labels of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Maker", "MirroredCounter"]


class MirroredCounter:
    """A counter of what is counted elsewhere."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._told = 0.0

    def follow(self, count: float) -> None:
        """Bring it up to that count; what has not grown is left alone."""
        if count > self._told:
            self._metric.inc(count - self._told)
            self._told = count


class Maker:
    """Makes metrics under the labels of a rank: one, or several that differ in one more label.

    Args:
        counter, gauge: the classes of ``prometheus_client``, or what makes such metrics in a registry of its own.
        labels: of the rank.
    """

    def __init__(self, counter: Any, gauge: Any, labels: Mapping[str, Any]) -> None:
        self._counter, self._gauge, self._labels = counter, gauge, labels

    def counter(self, name: str, documentation: str) -> MirroredCounter:
        """A counter with the labels of the rank."""
        return MirroredCounter(self._counter(name, documentation, list(self._labels)).labels(**self._labels))

    def counters(self, name: str, documentation: str, label: str, values: Sequence[str]) -> dict[str, MirroredCounter]:
        """A counter for each value of one more label."""
        metric = self._counter(name, documentation, [*self._labels, label])
        return {value: MirroredCounter(metric.labels(**self._labels, **{label: value})) for value in values}

    def gauge(self, name: str, documentation: str) -> Any:
        """A gauge with the labels of the rank."""
        metric = self._gauge(name, documentation, list(self._labels), multiprocess_mode="mostrecent")
        return metric.labels(**self._labels)

    def gauges(self, name: str, documentation: str, label: str, values: Sequence[str]) -> dict[str, Any]:
        """A gauge for each value of one more label."""
        metric = self._gauge(name, documentation, [*self._labels, label], multiprocess_mode="mostrecent")
        return {value: metric.labels(**self._labels, **{label: value}) for value in values}
