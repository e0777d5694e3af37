"""What was evicted by the order, and what could be."""

from __future__ import annotations

import math
from typing import get_args

from radix_tlru.policy.order import Phase
from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.metrics.maker import Maker

__all__ = ["OrderMetrics"]


class OrderMetrics:
    """What was evicted by the order, and could be."""

    def __init__(self, make: Maker, tail: TailComponent) -> None:
        self._tail = tail
        self._evicted = make.counters(
            "sglang:tlru_evicted_tokens_total",
            "Tokens evicted by phase. tel_safe: cost nothing at the tail, only under a policy with a threshold: tlru, "
            "etlru with w < 1. lru (a name kept for dashboards): every other token; under lru and tlru the least "
            "recent, under etlru the one with the lowest return rate.",
            "phase",
            get_args(Phase),
        )
        self._dropped = make.counters(
            "sglang:tlru_host_dropped_tokens_total",
            "Tokens dropped from the host tier of a hierarchical cache, by phase; what the device evicts is demoted.",
            "phase",
            get_args(Phase),
        )
        self._splits = make.counter("sglang:tlru_splits_total", "Leaves split so that only their tail was evicted.")
        self._leaves = make.gauge("sglang:tlru_evictable_leaves", "Leaves that could be evicted now.")
        self._over_budget = make.gauge(
            "sglang:tlru_over_budget_tokens",
            "TEL-safe tokens now: could go without the next turn exceeding the threshold. A shared token counts for "
            "each of its leaves. Only under a policy with a threshold: tlru, etlru with w < 1; else NaN.",
        )

    def report(self) -> None:
        counts = self._tail.counts
        for phase, counter in self._evicted.items():
            counter.follow(counts[phase])
        for phase, counter in self._dropped.items():
            counter.follow(counts[f"host_{phase}"])
        self._splits.follow(counts["splits"])
        self._leaves.set(len(self._tail.order))
        over_budget = self._tail.order.over_budget
        self._over_budget.set(math.nan if over_budget is None else over_budget)
