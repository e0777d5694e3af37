"""What an operator reads of a cache, in a registry of its own."""

from __future__ import annotations

from functools import partial

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from radix_tlru.objective.calibration import EVERY, PrefillBatch
from radix_tlru.sglang.metrics.maker import Maker
from radix_tlru.sglang.metrics.objective import EstimateMetrics
from tests.helpers.caches import our_cache

RANK = {"rank": "0"}


def maker(registry: CollectorRegistry) -> Maker:
    return Maker(partial(Counter, registry=registry), partial(Gauge, registry=registry), RANK)


def test_a_counter_of_what_is_counted_elsewhere_says_the_same() -> None:
    registry = CollectorRegistry()
    counter = maker(registry).counter("sglang:tlru_splits_total", "Leaves split.")
    for count in (2, 5, 5, 3):
        counter.follow(count)
    assert registry.get_sample_value("sglang:tlru_splits_total", RANK) == 5


def test_the_line_of_prefill_times_is_told_by_its_slope_and_its_beginning() -> None:
    registry, live = CollectorRegistry(), our_cache(4_000, ttft_slo_ms=100).live_threshold
    metrics = EstimateMetrics(maker(registry), live)

    def told(name: str) -> float | None:
        metrics.report()
        value: float | None = registry.get_sample_value(f"sglang:tlru_{name}", RANK)
        return value

    names = ("alpha_ms_per_token", "beta_ms", "overhead_ms", "threshold_samples")
    assert [told(name) for name in names] == [0, 0, 0, 0]
    for number in range(EVERY):
        tokens = 50 * (number + 1)
        live.count_batch(PrefillBatch((f"{number}",), None, tokens), 5.0 + 0.1 * tokens)
    assert [told(name) for name in names] == pytest.approx([0.1, 5.0, 0.0, EVERY])
