"""What an operator sees of the order at ``/metrics``, under SGLang's registry, names and rank labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from sglang.srt.observability.metrics_collector import _StatLoggerDIMixin

from radix_tlru.order import Phase

if TYPE_CHECKING:
    from radix_tlru.sglang.component import TailComponent
    from radix_tlru.sglang.live_threshold import LiveThreshold

__all__ = ["TailMetrics"]


class TailMetrics(_StatLoggerDIMixin):
    """Counters and gauges of one rank's cache; built in the scheduler process, once metrics are set up there.

    Args:
        labels: as SGLang labels the radix cache of this rank.
        tail: the component whose order is reported.
        live: what moves its threshold, if anything does.
    """

    def __init__(self, labels: dict[str, Any], tail: TailComponent, live: LiveThreshold | None = None) -> None:
        # Imported here as SGLang does: the multiprocess directory must be in the environment by then.
        from prometheus_client import Counter, Gauge

        counter, gauge = self._counter_cls or Counter, self._gauge_cls or Gauge
        names = list(labels)

        def gauge_of(name: str, documentation: str) -> Any:
            return gauge(name, documentation, names, multiprocess_mode="mostrecent").labels(**labels)

        evicted = counter(
            "sglang:tlru_evicted_tokens_total",
            "Tokens evicted by phase: tel_safe (free at the tail) or lru (the least recent of the rest).",
            [*names, "phase"],
        )
        dropped = counter(
            "sglang:tlru_host_dropped_tokens_total",
            "Tokens dropped from the host tier of a hierarchical cache, by phase; what the device evicts is demoted.",
            [*names, "phase"],
        )
        self._tail = tail
        self._evicted = {phase: evicted.labels(**labels, phase=phase) for phase in get_args(Phase)}
        self._evicted |= {f"host_{phase}": dropped.labels(**labels, phase=phase) for phase in get_args(Phase)}
        self._splits = counter(
            "sglang:tlru_splits_total", "Leaves split so that only their tail was evicted.", names
        ).labels(**labels)
        self._leaves = gauge_of("sglang:tlru_evictable_leaves", "Leaves that could be evicted now.")
        self._over_budget = gauge_of(
            "sglang:tlru_over_budget_tokens",
            "Tokens of evictable paths beyond their safe budget now; a shared token counts for each of its leaves.",
        )
        self._threshold = gauge_of(
            "sglang:tlru_threshold_tokens", "Uncached tokens that meet the TTFT objective, in force."
        )
        self._live = live
        if live is not None:
            self._samples = gauge_of(
                "sglang:tlru_threshold_samples", "Recent prefills (or requests, with a target) it is learned from."
            )
            self._alpha = gauge_of("sglang:tlru_alpha_ms_per_token", "Prefill time of a token, as fitted; 0 before.")
            self._beta = gauge_of("sglang:tlru_beta_ms", "Prefill time without tokens, as fitted; 0 before.")
        self._reported: dict[str, int] = {}
        self.report()

    def report(self) -> None:
        """Bring the registry up to the component's counts; some microseconds."""
        counts = self._tail.counts
        for name, metric in (*self._evicted.items(), ("splits", self._splits)):
            if grown := counts[name] - self._reported.get(name, 0):
                metric.inc(grown)
                self._reported[name] = counts[name]
        self._leaves.set(len(self._tail.order))
        self._over_budget.set(self._tail.order.over_budget)
        self._threshold.set(self._tail.policy.threshold)
        if self._live is not None:
            self._samples.set(self._live.samples)
            if self._live.line is not None:
                self._alpha.set(self._live.line.alpha)
                self._beta.set(self._live.line.beta)
