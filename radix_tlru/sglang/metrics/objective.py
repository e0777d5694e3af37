"""ξ in force, w in force, and the line that ξ comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radix_tlru.sglang.metrics.maker import Maker

if TYPE_CHECKING:
    from radix_tlru.sglang.cache.learning_component import LearningComponent
    from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold

__all__ = ["EstimateMetrics", "PolicyMetrics"]


class PolicyMetrics:
    """ξ and w of the policy in force, and whether it is in force at all."""

    def __init__(self, make: Maker, tail: LearningComponent) -> None:
        self._tail = tail
        self._fallen_back = make.gauge(
            "sglang:tlru_fallen_back", "1: a fault of the policy, which the log tells; lru evicts since, as stock."
        )
        dry_run = make.gauge("sglang:tlru_dry_run", "1: stock lru evicts, and the policy in force is only watched.")
        dry_run.set(tail.config.dry_run)
        self._threshold = make.gauge(
            "sglang:tlru_threshold_tokens", "Uncached tokens that meet the TTFT objective, in force."
        )
        self._weight = make.gauge(
            "sglang:tlru_median_weight", "w in force: from 0, the tail alone counts, to 1, all tokens count alike."
        )

    def report(self) -> None:
        self._fallen_back.set(self._tail.breaker.has_tripped)
        self._threshold.set(self._tail.policy.threshold)
        self._weight.set(self._tail.policy.median_weight)


class EstimateMetrics:
    """What ξ was learned from, where it follows an objective in ms."""

    def __init__(self, make: Maker, live: LiveThreshold) -> None:
        self._live = live
        self._samples = make.gauge(
            "sglang:tlru_threshold_samples", "Recent prefills that the threshold is learned from."
        )
        self._alpha = make.gauge(
            "sglang:tlru_alpha_ms_per_token",
            "Prefill time of a token, of about as many as meet the objective; 0 before.",
        )
        self._beta = make.gauge(
            "sglang:tlru_beta_ms",
            "Prefill time without tokens, by the line of that slope near the objective; 0 before.",
        )
        self._late = make.gauge(
            "sglang:tlru_prefill_late_ratio", "What 19 of 20 prefills take at most, in times that line; 0 before."
        )
        self._overhead = make.gauge(
            "sglang:tlru_overhead_ms", "What a first token waits for other than prefills; 0 before it is known."
        )

    def report(self) -> None:
        self._samples.set(self._live.samples)
        if self._live.estimate is not None:
            _, line, late, overhead_ms = self._live.estimate
            self._alpha.set(line.alpha)
            self._beta.set(line.beta)
            self._late.set(late)
            self._overhead.set(overhead_ms)
