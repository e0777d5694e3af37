"""The real cache behind the simulator's interface: what does not fit in."""

from __future__ import annotations

import pytest

from eval.caches.real import REAL_CACHES
from eval.caches.simulator import simulate
from eval.traces import open_trace
from eval.traces.request import Path, Request
from radix_tlru.sglang.releases import hybrid_refusal

CAPACITY = 100


@pytest.mark.skipif(hybrid_refusal() is not None, reason=str(hybrid_refusal()))
@pytest.mark.parametrize("policy", ["real-tlru-swa", "sglang-lru-swa"])
@pytest.mark.parametrize("page_size", [1, 3])
def test_a_prompt_that_is_larger_than_the_pool_of_the_window_is_served(policy: str, page_size: int) -> None:
    cache = REAL_CACHES[policy](CAPACITY, 150, 100, page_size)
    for number, tokens in enumerate((CAPACITY - 10, CAPACITY, 2 * CAPACITY, 20)):
        context = Path((number,), (tokens,))
        request = Request(float(number), str(number), context, context, tokens, 0)
        assert cache.request(request) == 0
    assert 0 < cache.request(request) <= 20


@pytest.mark.parametrize("policy", ["real-tlru", "sglang-tlru"])
def test_with_less_than_a_page_between_estimate_and_threshold_tlru_is_lru(policy: str) -> None:
    """ξ − Q̂ = 300 − 200 tokens, and pages of 512: no page is ever TEL-safe."""
    requests = open_trace("synthetic:conversations=25").requests
    found = simulate(REAL_CACHES[policy](20_480, 300, 200, 512), requests)
    assert found == simulate(REAL_CACHES["sglang-lru"](20_480, 300, 200, 512), requests)
