"""What the policies are said to be: each other's special cases, bounds on each other, and figures of a real trace."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import libcachesim
import numpy as np
import pytest

from eval.caches.baselines import BASELINES
from eval.caches.futures import NEVER, Future, futures
from eval.caches.knowledge import TraceKnowledge
from eval.caches.models import Exponential, StepPrompt
from eval.caches.policies import ORACLES, POLICIES, simulated_cache
from eval.caches.real import RealCache
from eval.caches.simulator import Cache, SimulatedCache, Span, simulate
from eval.traces import open_trace
from eval.traces.request import Request
from tests.helpers.examples import examples
from tests.helpers.libcachesims import libcachesim_hits
from tests.helpers.paths import MOONCAKE
from tests.helpers.random_traces import (
    Turn,
    branching,
    conversations_in_line,
    random_tree,
    random_turns,
    single_blocks,
    tel,
)


def policy_cache(name: str, requests: list[Request], capacity: int, **arguments: Any) -> SimulatedCache:
    settings = {"threshold": 1, "next_prompt_estimate": 0, "knowledge": TraceKnowledge(requests), **arguments}
    return simulated_cache(name, capacity, **settings)


def served(name: str, requests: list[Request], capacity: int, **arguments: Any) -> list[int]:
    """Cached tokens of each request under a policy."""
    return simulate(policy_cache(name, requests, capacity, **arguments), requests)


# ---- each other's special cases ----


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("forced", [True, False], ids=["forced", "optional"])
def test_policies_that_the_formula_makes_equal_are_equal_request_by_request(page_size: int, forced: bool) -> None:
    lru_is_not_tlru = 0
    for seed in range(examples(150)):
        random = Random(seed)
        requests = random_tree(random, longest=40, page=page_size, whole_messages=True)
        capacity = random.randint(1, 40) * page_size
        estimate = random.randint(0, 3 * page_size)
        threshold = estimate + random.randint(1, 12 * page_size)
        sizes = {"page_size": page_size, "forced": forced, "next_prompt_estimate": estimate}
        lru = served("lru", requests, capacity, **sizes)
        tlru = served("tlru", requests, capacity, threshold=threshold, **sizes)

        # The paper's corollaries: rates that are equal leave the time of the last turn to decide ...
        assert served("etlru-given", requests, capacity, threshold=0, death_rate=0.1, **sizes) == lru, f"{seed = }"
        # ... and a Q that is known for certain leaves nothing of its distribution but the step.
        assert served("etlru-given", requests, capacity, threshold=threshold, death_rate=0.1, **sizes) == tlru, (
            f"{seed = }"
        )
        # Full weight on the median sees no threshold.
        assert served("tlru", requests, capacity, threshold=threshold, median_weight=1.0, **sizes) == lru, f"{seed = }"
        lru_is_not_tlru += lru != tlru
    assert lru_is_not_tlru > examples(30)


def test_where_contexts_are_lines_there_is_nothing_to_know_but_of_their_ends() -> None:
    shared_differ = 0
    for seed in range(examples(150)):
        random = Random(seed)
        turns = random_turns(random, longest=60)
        lines = conversations_in_line(turns)
        capacity, sizes = random.randint(4, 40), {"threshold": random.randint(1, 12)}
        whole = served("tail-belady", lines, capacity, **sizes)
        assert served("tail-belady-ends", lines, capacity, **sizes) == whole, f"{seed = }"
        tree = random_tree(random, longest=60)
        shared_differ += served("tail-belady", tree, 12, **sizes) != served("tail-belady-ends", tree, 12, **sizes)
    assert shared_differ > examples(30)


def test_a_policy_that_is_not_there_and_knowledge_that_is_missing_are_said() -> None:
    with pytest.raises(ValueError, match="--policy mru: must be one of lru, tlru, etlru, threshold-lru"):
        simulated_cache("mru", 100, threshold=1, next_prompt_estimate=0)
    for name in ("etlru-given", *ORACLES):
        with pytest.raises(ValueError, match=f"--policy {name}: needs knowledge of the trace"):
            simulated_cache(name, 100, threshold=1, next_prompt_estimate=0)


# ---- what each looks at, by examples ----


def in_turn(*turns: tuple[int, int]) -> list[Request]:
    """(conversation, tokens of its prompt); no answers."""
    return conversations_in_line([Turn(conversation, prompt, 0) for conversation, prompt in turns])


def test_threshold_lru_gives_up_short_conversations_first() -> None:
    # Capacity 3,000. C needs 547 of A's 1,024 and B's 1,023: A is older, B is under 1,024.
    requests = in_turn((0, 1024), (1, 1023), (2, 1500), (0, 10))
    assert served("lru", requests, 3000)[-1] == 1024 - 547
    assert served("threshold-lru", requests, 3000)[-1] == 1024


def test_end_aware_gives_up_first_what_has_ended_though_it_is_the_newest() -> None:
    # Capacity 10: A (5) returns, B (5) does not. C needs 4.
    requests = in_turn((0, 5), (1, 5), (2, 4), (0, 1))
    assert served("lru", requests, 10)[-1] == 5 - 4
    assert served("end-aware", requests, 10)[-1] == 5


def test_length_aware_keeps_what_the_next_prompt_will_in_truth_need() -> None:
    # ξ = 4, capacity 12. A (6) will add 4 and needs 6 + 4 - 4 = 6 of them; Q̂ = 0 says 2. B (6) will add 1: 3, Q̂: 2.
    requests = in_turn((0, 6), (1, 6), (2, 3), (0, 4), (1, 1))
    assert served("tlru", requests, 12, threshold=4)[3] == 6 - 3
    assert served("length-aware", requests, 12, threshold=4)[3] == 6


def test_length_aware_takes_the_estimate_where_nothing_follows() -> None:
    # ξ = 4, Q̂ = 3, capacity 12. B (6) is not followed: it needs 6 + 3 - 4 = 5. A (6) will add 1 and needs 3. C takes 1
    # of B, then 2 of A.
    requests = in_turn((1, 6), (0, 6), (2, 3), (0, 1))
    assert served("length-aware", requests, 12, threshold=4, next_prompt_estimate=3)[-1] == 4


def test_et_lru_with_given_rates_has_the_prompts_that_are_given() -> None:
    given = StepPrompt((5, 1))
    cache = policy_cache("etlru-given", in_turn((0, 5)), 10, prompts=given)
    assert cache.order.policy.prompts is given


def test_a_rate_that_has_nearly_ended_is_still_one() -> None:
    assert Exponential(death_rate=1.0).rate(0, key=-1e6, now=0.0) > 0.0


@pytest.mark.parametrize(("death_rate", "evicted"), [(0.1, "B"), (0.3, "A")])
def test_et_lru_weighs_how_often_a_conversation_turns_against_how_long_it_is_silent(
    death_rate: float, evicted: str
) -> None:
    # A turns at 1 / s and did at 0 s, B at 0.1 / s and did at 10 s. λ e^{-μ (t - last turn)} of A over that of B is
    # 10 e^{-10 μ}: 3.7 at μ = 0.1, 0.5 at μ = 0.3. C comes at 20 s, A and B after it.
    times, rates = [0.0, 10.0, 20.0, 21.0, 22.0], [1.0, 0.1, 1.0, 1.0, 0.1]
    requests = [
        replace(request, arrival_s=time, return_rate=rate)
        for request, time, rate in zip(in_turn((0, 5), (1, 5), (2, 5), (0, 1), (1, 1)), times, rates, strict=True)
    ]
    returns = {"A": requests[3], "B": requests[4]}
    for name, request in returns.items():
        found = served("etlru-given", [*requests[:3], request], 10, threshold=0, death_rate=death_rate)
        assert found[-1] == (0 if name == evicted else 5)


def test_optional_caching_trims_a_new_conversation_before_it_takes_what_another_needs() -> None:
    # ξ = 600, Q̂ = 100, capacity 1,000. A (1,000) must keep 500; B (800) 300. Beside each other 800 have to go: A's free
    # 500 and 300 of B's own free 500. If B must be cached whole, they are 800 of A.
    requests = in_turn((0, 1000), (1, 800), (0, 100), (1, 100))
    sizes = {"threshold": 600, "next_prompt_estimate": 100}
    assert served("tlru", requests[:3], 1000, forced=False, **sizes)[2] == 500
    assert served("tlru", [requests[0], requests[1], requests[3]], 1000, forced=False, **sizes)[2] == 500
    assert served("tlru", requests[:3], 1000, forced=True, **sizes)[2] == 200
    assert served("tlru", [requests[0], requests[1], requests[3]], 1000, forced=True, **sizes)[2] == 800


def test_hindsight_knows_of_each_part_of_a_context_who_looks_it_up_next() -> None:
    requests = branching(["aab", "aacc", "aab", "aabdd"], [2, 4, 3, 5], whole_messages=True)
    assert futures(requests) == [
        [Span(2, Future(2, 4)), Span(3, Future(3, 3))],  # "aa" by the second request, "aab" by the third
        [Span(2, Future(3, 3)), Span(4, NEVER)],
        [Span(3, Future(4, 5))],
        [Span(5, NEVER)],
    ]


def test_what_a_trace_says_of_returns_as_a_whole() -> None:
    # A returns after 2 s with 3 more tokens, then after 2 s with 5; B does not. 2 of 4 contexts return.
    requests = conversations_in_line([Turn(0, 4, 2), Turn(1, 4, 0), Turn(0, 3, 1), Turn(2, 1, 0), Turn(0, 5, 0)])
    knowledge = TraceKnowledge(requests)
    assert knowledge.returns == [(3, 2.0), (5, 2.0)]
    assert knowledge.death_rate == pytest.approx((1 - 2 / 5) / 2.0)
    assert knowledge.next_prompts is not None
    assert knowledge.next_prompts.quantiles == (5, 5, 4, 4, 4, 4, 3, 3)  # medians of eighths from 3 to 5, rounded
    assert TraceKnowledge(in_turn((0, 4))).next_prompts is None
    assert StepPrompt.of([0, 800]).quantiles == (750, 650, 550, 450, 350, 250, 150, 50)


def test_a_length_that_most_prompts_have_is_as_likely_as_it_is() -> None:
    # 13 of 16 prompts add 100 tokens, 3 add 5,000. In eighths: 6 are of 100, so P(Q > 100) is 2 / 8.
    prompts = StepPrompt.of([100] * 13 + [5_000] * 3)
    beyond = sum(tokens > 100 for tokens in prompts.quantiles)
    assert prompts.probabilities[beyond] == pytest.approx(0.25)


# ---- bounds ----


def test_no_policy_has_less_tel_than_tail_optimised_belady_where_nothing_is_shared() -> None:
    """At page size 1: of the page in which its budget ends, Tail-Optimized Belady does not ask how much is of use."""
    beaten: dict[str, int] = dict.fromkeys(POLICIES, 0)
    for seed in range(examples(300)):
        random = Random(seed)
        requests = conversations_in_line(random_turns(random, longest=40))
        capacity, estimate = random.randint(1, 40), random.randint(0, 3)
        sizes = {"threshold": estimate + random.randint(1, 10), "next_prompt_estimate": estimate}
        for forced in (True, False):
            least = tel(requests, served("tail-belady", requests, capacity, forced=forced, **sizes), sizes["threshold"])
            for name in POLICIES:
                found = served(name, requests, capacity, death_rate=0.1, forced=forced, **sizes)
                assert tel(requests, found, sizes["threshold"]) >= least, f"{name} {seed = }"
                beaten[name] += tel(requests, found, sizes["threshold"]) > least
    assert beaten.pop("tail-belady") == beaten.pop("tail-belady-ends") == 0
    assert min(beaten.values()) > examples(30)


@pytest.mark.parametrize("name", BASELINES)
def test_nor_has_the_cache_of_another_engine(name: str) -> None:
    for seed in range(15):
        random = Random(seed)
        requests = conversations_in_line(random_turns(random, longest=40))
        capacity, threshold = random.randint(10, 40), random.randint(3, 10)
        least = tel(requests, served("tail-belady", requests, capacity, threshold=threshold), threshold)
        theirs: Cache = BASELINES[name](capacity, threshold, 2, 1)
        assert tel(requests, simulate(theirs, requests), threshold) >= least, f"{seed = }"


@pytest.mark.parametrize("page_size", [1, pytest.param(16, marks=pytest.mark.long)])
def test_more_capacity_never_hurts_lru_in_any_request_nor_belady_in_sum(page_size: int) -> None:
    for seed in range(60):
        random = Random(seed)
        requests = random_tree(random, longest=40, page=page_size, whole_messages=True)
        smaller = {"lru": [0] * len(requests), "belady": [0] * len(requests)}
        for pages in range(1, 50, 3):
            for name, before in smaller.items():
                found = served(name, requests, pages * page_size, page_size=page_size)
                if name == "lru":
                    assert all(more >= less for more, less in zip(found, before, strict=True)), f"{seed = } {pages = }"
                assert sum(found) >= sum(before), f"{seed = } {pages = }"
                smaller[name] = found
            assert sum(smaller["belady"]) >= sum(smaller["lru"]), f"{seed = } {pages = }"


# ---- beside another simulator ----


def test_without_prefixes_lru_and_belady_hit_what_libcachesims_do() -> None:
    for seed in range(20):
        random = Random(seed)
        # Some blocks are asked for much more often than others.
        ids = [int(random.paretovariate(0.6)) % 200 + 1 for _ in range(1500)]
        capacity = random.randint(1, 100)
        requests = single_blocks(ids)
        assert served("lru", requests, capacity) == libcachesim_hits(libcachesim.LRU, ids, capacity), f"{seed = }"
        # Which of two blocks that are never used again goes first is nobody's business, and changes no hit.
        ours = served("belady", requests, capacity, threshold=0)
        assert ours == libcachesim_hits(libcachesim.Belady, ids, capacity), f"{seed = }"


@pytest.mark.parametrize(("asked", "chunk"), [(1, 1), (64, 64), (None, 1024)])
@pytest.mark.parametrize("policy", ["lru", "tlru", "etlru"])
def test_a_pool_is_trimmed_as_that_of_a_server_if_so_asked(policy: str, asked: int | None, chunk: int) -> None:
    cache = simulated_cache(policy, 131_072, threshold=1024, page_size=16, trim_chunk=asked)
    assert cache.order.policy.trim_chunk == chunk
    simulate(cache, open_trace("synthetic:conversations=200").requests)
    assert cache.order.policy.trim_chunk == chunk, "whatever was learned"
    assert cache.evicted


# ---- a real trace ----

real_trace = pytest.mark.skipif(not MOONCAKE.exists(), reason=f"needs the Mooncake conversation trace at {MOONCAKE}")

CAPACITY, PAGE_SIZE, NEXT_PROMPT = 2_000_000, 512, 200
THRESHOLDS = (4096, 16384)


@cache
def mooncake() -> tuple[list[Request], TraceKnowledge]:
    requests = open_trace(str(MOONCAKE), format="mooncake").requests
    return requests, TraceKnowledge(requests)


def uncached(requests: list[Request], found: list[int]) -> list[int]:
    return [request.prompt_tokens - tokens for request, tokens in zip(requests, found, strict=True)]


GOLDEN = {
    # policy: TEL at ξ = 4,096 and at 16,384, tokens
    "lru": (95_956_615, 42_787_204),
    "vllm": (95_956_615, 42_787_204),
    "trtllm": (95_956_615, 42_787_204),
    "tlru": (92_436_837, 36_238_024),
    "tail-belady": (66_478_268, 27_323_756),
}


@real_trace
@pytest.mark.parametrize("threshold", [THRESHOLDS[0], pytest.param(THRESHOLDS[1], marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", GOLDEN)
def test_figures_of_a_real_trace_have_not_changed(policy: str, threshold: int) -> None:
    requests, knowledge = mooncake()
    assert len(requests) == 12_031
    if policy in BASELINES:
        cache = BASELINES[policy](CAPACITY, threshold, NEXT_PROMPT, PAGE_SIZE)
    else:
        sizes = {"threshold": threshold, "next_prompt_estimate": NEXT_PROMPT, "page_size": PAGE_SIZE}
        cache = simulated_cache(policy, CAPACITY, knowledge=knowledge, **sizes)
    golden = GOLDEN[policy][THRESHOLDS.index(threshold)]
    assert tel(requests, simulate(cache, requests), threshold) == golden


@real_trace
def test_the_real_cache_caches_of_a_real_trace_what_the_simulator_says() -> None:
    requests = mooncake()[0][:3000]
    sizes = {"threshold": 4096, "next_prompt_estimate": NEXT_PROMPT, "page_size": PAGE_SIZE}
    real = RealCache("tlru", CAPACITY, **sizes)
    simulated = simulated_cache("tlru", CAPACITY, **sizes)
    for number, request in enumerate(requests):
        assert real.request(request) == simulated.request(request), f"{number = }"
    assert simulated.evicted["tel_safe"] > 1_000_000
    assert simulated.evicted["lru"] > 1_000_000


@real_trace
@pytest.mark.long
def test_stock_lru_differs_from_the_simulators_by_no_more_than_half_a_percent_at_p95() -> None:
    requests = mooncake()[0]
    sizes = {"threshold": 4096, "next_prompt_estimate": NEXT_PROMPT, "page_size": PAGE_SIZE}
    stock = simulate(RealCache("lru", CAPACITY, stock=True, **sizes), requests)
    ours = simulate(simulated_cache("lru", CAPACITY, **sizes), requests)
    p95 = np.percentile(uncached(requests, ours), 95)
    assert math.isclose(np.percentile(uncached(requests, stock), 95), p95, rel_tol=0.005)
    assert stock != ours  # it evicts whole nodes
