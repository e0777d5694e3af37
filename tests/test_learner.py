"""What watches the turns of a server: until it knows, what it prefers by its shadows, and the weight it chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eval.policies import simulated_cache
from eval.simulator import SimulatedCache, simulate
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.hazards import Hazards
from radix_tlru.learned import Conversation, Conversations
from radix_tlru.learner import Learner
from radix_tlru.models import FixedPrompt, Policy, Recency
from radix_tlru.shadow import Shadows
from radix_tlru.tel import Tally
from tests.random_traces import tel
from tests.test_learned import NEXT_PROMPT, PAGE, THRESHOLD, turn

# ---- the learner ----


def synthetic(conversations: int, parameters: str = "") -> list[Request]:
    return open_trace(f"synthetic:conversations={conversations}{parameters}").requests


def learning(capacity: int, page_size: int = PAGE, threshold: int = 1024) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=threshold, next_prompt_estimate=200, page_size=page_size)


def test_until_enough_is_known_it_is_tlru_decision_by_decision() -> None:
    requests = synthetic(40)
    sizes = {"threshold": 1024, "next_prompt_estimate": 200, "page_size": PAGE}
    tlru, learned = simulated_cache("tlru", 10_000, **sizes), learning(10_000)
    for request in requests:
        if learned._learner.policy is not learned._learner._policies[1]:  # type: ignore[union-attr]
            break
        assert learned.request(request) == tlru.request(request)
        assert learned.evicted == tlru.evicted
    assert tlru.evicted["lru"] > 10_000


def test_two_that_are_told_the_same_evict_the_same() -> None:
    requests = synthetic(1500, ",turn_rate_sigma=1")
    one, other = learning(100_000), learning(100_000)
    assert simulate(one, requests) == simulate(other, requests)
    assert one._learner._returns.version > 2  # type: ignore[union-attr]
    assert one.evicted == other.evicted


def test_time_that_runs_backwards_is_time_that_stands_still() -> None:
    requests = synthetic(800)
    shaken = [
        replace(request, arrival_s=request.arrival_s - 30 * (number % 2)) for number, request in enumerate(requests)
    ]
    cache = learning(50_000)
    assert len(simulate(cache, shaken)) == len(requests)


def test_memory_is_bounded_by_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radix_tlru.learned._MOST_REMEMBERED", 50)
    monkeypatch.setattr("radix_tlru.hazards._MOST_WATCHED", 80)
    cache = learning(50_000)
    learner = cache._learner
    assert learner is not None
    for request in synthetic(1500):
        cache.request(request)
        assert len(learner._conversations._known) <= 50
        assert sum(map(len, learner._returns.hazards._bands)) <= 80


def test_a_shadow_trims_by_as_large_a_share_as_the_cache_does() -> None:
    tlru = Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.0, trim_chunk=40 * PAGE)
    shadows = Shadows([tlru], capacity=64_000 * PAGE, page_size=PAGE, one_in=4)
    (shadow,) = shadows._shadows
    context = shadow.capacity
    shadow.request(Conversation((), 0.0, 1, 0, context, 0), turn(0.0, context, context))
    victim = shadow.order.victim(1)
    assert victim is not None
    assert context - victim.keep == 10 * PAGE


def test_the_shadows_prefer_what_was_better_on_the_same_stream() -> None:
    # ξ = 600, Q̂ = 100: T-LRU trims long conversations to within the budget, LRU drops the oldest whole.
    learner = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)
    _, tlru, lru = learner._policies
    shadows = Shadows((lru, tlru), 10_000, PAGE, one_in=1)
    conversations = Conversations(Hazards())
    for cycle in range(20):
        for name in range(1, 13):  # 12 · 960 do not fit in 10,000; trimmed to 460 they do
            told = turn(cycle * 100.0 + name, 960 + cycle * PAGE, 960 + cycle * PAGE, name)
            shadows.observe(conversations.turn(told, alone=True), told)
    assert shadows.tel[1] < shadows.tel[0]
    assert shadows.best == 1
    assert shadows.sampled == 20 * 12
    assert shadows.excess[1] == 12 * (960 - THRESHOLD) < shadows.tel[0] < shadows.excess[0]  # the first turns alone


def test_what_was_served_is_tallied_by_the_threshold_of_its_time() -> None:
    learner = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)
    learner.observe(turn(0, 900, 900))  # 300 tokens beyond 600
    learner.use_threshold(800)
    learner.observe(turn(1, 900, 900, name=2)._replace(cached=64))  # 36 beyond 800
    learner.observe(turn(2, 800, 800, name=3))
    assert learner.served == Tally(requests=3, violations=2, excess=300 + 36)
    assert learner.in_force == "tlru"


def test_a_next_prompt_that_was_given_is_not_learned() -> None:
    requests = synthetic(300)
    for estimate, kept in ((NEXT_PROMPT, True), (None, False)):
        cache = simulated_cache("etlru", 10_000, threshold=1024, next_prompt_estimate=estimate, page_size=PAGE)
        simulate(cache, requests)
        learner = cache._learner
        assert learner is not None
        assert learner._returns.version > 0, "enough was seen to learn from"
        assert (learner._policies[0].prompts == FixedPrompt(NEXT_PROMPT)) is kept


# ---- the weight ----


def shadows_of(learner: Learner, tel: list[float], p95: list[int], p50: list[int]) -> Shadows:
    shadows = learner._shadowed()
    shadows.tel = tel
    for quantile, high, usual in zip(shadows.quantiles, p95, p50, strict=True):
        for _ in range(100):
            quantile.add(high)
            for _ in range(9):
                quantile.add(usual)
    return shadows


def test_auto_takes_the_lowest_median_that_neither_the_tail_nor_the_p95_pays_for() -> None:
    learner = Learner(Config("etlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    assert learner.names == ("etlru", "etlru w=0.2", "etlru w=0.5", "tlru", "lru")
    tel = [1000.0, 1009.0, 1011.0, 1500.0, 2000.0]
    p50 = [50, 40, 30, 50, 50]
    assert learner._as_good(shadows_of(learner, tel, [500, 500, 500, 500, 500], p50)) == 1  # 1,011: 1.1 % above 1,000
    assert learner._as_good(shadows_of(learner, tel, [500, 501, 500, 500, 500], p50)) == 0  # 501: above lru's 500
    assert learner._as_good(shadows_of(learner, tel, [501, 501, 500, 500, 500], p50)) == 4
    # Where none of those has a median as low as lru's, the tail may lose up to 5 %.
    tel = [1000.0, 1009.0, 1049.0, 1500.0, 2000.0]
    assert learner._as_good(shadows_of(learner, tel, [500, 500, 500, 500, 500], [50, 40, 30, 50, 40])) == 1
    assert learner._as_good(shadows_of(learner, tel, [500, 500, 500, 500, 500], [50, 40, 30, 50, 39])) == 2
    tel[2] = 1051.0
    assert learner._as_good(shadows_of(learner, tel, [500, 500, 500, 500, 500], [50, 40, 30, 50, 39])) == 1
    level = [1000.0, 1000.0, 1000.0, 1000.0, 1000.0]
    assert learner._as_good(shadows_of(learner, level, [500, 500, 500, 500, 500], p50)) == 2
    assert learner._as_good(shadows_of(learner, level, [500, 500, 500, 500, 500], [30, 40, 50, 50, 50])) == 0
    assert learner._as_good(shadows_of(learner, level, [500, 500, 500, 500, 500], [50, 50, 50, 50, 50])) == 0


def test_auto_lets_w_count_from_the_median_of_lru_on_whatever_else_of_the_policy_changes() -> None:
    learner = Learner(Config("etlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    shadows = shadows_of(learner, [0.0] * 5, [900] * 5, [0, 0, 0, 0, 320])
    learner._follow_median(shadows)
    learner.use_threshold(2 * THRESHOLD)
    assert [policy.median for policy in learner._policies] == [0, 320, 320, 0, 0]
    assert {policy.threshold for policy in learner._policies} == {2 * THRESHOLD}
    for quantile in shadows.quantiles:
        for _ in range(2_000):
            quantile.add(340)  # within a tenth of what it was: not worth to sort all leaves for
    learner._follow_median(shadows)
    assert [policy.median for policy in learner._policies] == [0, 320, 320, 0, 0]


def test_auto_is_a_choice_of_tlru_too() -> None:
    learner = Learner(Config("tlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    assert learner.names == ("tlru", "tlru w=0.2", "tlru w=0.5", "lru")
    assert [policy.median_weight for policy in learner._policies] == [0.0, 0.2, 0.5, 1.0]
    for request in synthetic(40):
        end = len(request.context)
        learner.observe(turn(request.arrival_s, request.prompt_tokens, end, int(request.conversation or 0)))
    assert learner.in_force in learner.names


# ---- a real trace ----

MOONCAKE = Path(__file__).parents[2] / "shared" / "data" / "mooncake_conversation_trace.jsonl"


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"needs the Mooncake conversation trace at {MOONCAKE}")
@pytest.mark.parametrize(("threshold", "closed"), [(4096, 0.366), (16384, 0.518)])
def test_the_gap_closed_on_the_second_half_of_a_real_trace(threshold: int, closed: float) -> None:
    requests = open_trace(str(MOONCAKE), format="mooncake").requests
    later = len(requests) // 2

    def tel_of(policy: str) -> int:
        cache = simulated_cache(policy, 2_000_000, threshold=threshold, next_prompt_estimate=200, page_size=512)
        return tel(requests[later:], simulate(cache, requests)[later:], threshold)

    optimum = {4096: 29_668_471, 16384: 11_575_650}[threshold]  # Tail-Optimized Belady
    lru = tel_of("lru")
    assert round((lru - tel_of("etlru")) / (lru - optimum), 3) == closed
