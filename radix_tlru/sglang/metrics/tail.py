"""The metrics of one rank's cache, all together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sglang.srt.observability.metrics_collector import _StatLoggerDIMixin

from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.metrics.learner import LearnerMetrics
from radix_tlru.sglang.metrics.maker import Maker
from radix_tlru.sglang.metrics.objective import EstimateMetrics, PolicyMetrics
from radix_tlru.sglang.metrics.order import OrderMetrics
from radix_tlru.sglang.metrics.victims import VictimMetrics

if TYPE_CHECKING:
    from radix_tlru.sglang.cache.learning_component import LearningComponent
    from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold

__all__ = ["TailMetrics"]


class _Reports(Protocol):
    """A part of the metrics."""

    def report(self) -> None:
        """Bring it up to date."""


class TailMetrics(_StatLoggerDIMixin):
    """Counters and gauges of one rank's cache; built in the scheduler process, once metrics are set up there.

    Args:
        labels: of this rank, and of no other.
        tail: the component whose learner, and whose order, is reported, as far as it has them.
        live: what moves its threshold, if anything does.
    """

    def __init__(self, labels: dict[str, Any], tail: LearningComponent, live: LiveThreshold | None) -> None:
        # Imported here as SGLang does: the multiprocess directory must be in the environment by then.
        from prometheus_client import Counter, Gauge

        make = Maker(self._counter_cls or Counter, self._gauge_cls or Gauge, labels)
        self._parts: list[_Reports] = [PolicyMetrics(make, tail)]
        if live is not None:
            self._parts.append(EstimateMetrics(make, live))
        self.victims: VictimMetrics | None = None
        """None in a dry run."""
        if isinstance(tail, TailComponent):
            self.victims = VictimMetrics(make, tail)
            self._parts += [OrderMetrics(make, tail), self.victims]
        if tail.learner is not None:
            self._parts.append(LearnerMetrics(make, tail, tail.learner))
        self.report()

    def report(self) -> None:
        """Bring the registry up to date: so many metrics that no token of an answer should wait for it."""
        for part in self._parts:
            part.report()
