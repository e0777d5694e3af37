"""What watches the turns of a server: what it does until it knows, and what it prefers by its shadows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from radix_tlru.learning.hazards import Hazards

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.learning.selector import LeadsNeeded, Selector
from radix_tlru.policy.models import FixedPrompt, Leaf, Recency
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import Tally
from tests.helpers.paths import MOONCAKE
from tests.helpers.random_traces import tel
from tests.helpers.turns import NEXT_PROMPT, PAGE, THRESHOLD, turn


def synthetic(conversations: int, parameters: str = "") -> list[Request]:
    return open_trace(f"synthetic:conversations={conversations}{parameters}").requests


def learning(capacity: int, page_size: int = PAGE, threshold: int = 1024) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=threshold, next_prompt_estimate=200, page_size=page_size)


def test_until_enough_is_known_it_is_tlru_decision_by_decision() -> None:
    requests = synthetic(40)
    sizes = {"threshold": 1024, "next_prompt_estimate": 200, "page_size": PAGE}
    tlru, learned = simulated_cache("tlru", 10_000, **sizes), learning(10_000)
    for request in requests:
        if learned._learner.in_force != "tlru":  # type: ignore[union-attr]
            break
        assert learned.request(request) == tlru.request(request)
        assert learned.evicted == tlru.evicted
    assert tlru.evicted["lru"] > 10_000


def test_what_is_in_force_is_kept_as_which_candidate_it_is() -> None:
    learner = Learner(Config("tlru", THRESHOLD), 10_000, PAGE)
    assert learner.candidates["tlru"] == learner.candidates["tlru Q=200"], "before anything is learned"
    assert learner.in_force == "tlru Q=200", "what has learned nothing yet is not in force"
    for number in range(400):  # four turns each of a hundred conversations
        learner.record_turn(turn(float(number), 900 + number // 100 * 64, 900 + number // 100 * 64, number % 100))
    assert learner.in_force == "tlru"
    assert learner.policy is learner.candidates["tlru"] is not learner.candidates["tlru Q=200"]


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
    monkeypatch.setattr("radix_tlru.learning.conversations._MOST_REMEMBERED", 50)
    monkeypatch.setattr("radix_tlru.learning.hazards._MOST_WATCHED", 80)
    cache = learning(50_000)
    learner = cache._learner
    assert learner is not None
    for request in synthetic(1500):
        cache.request(request)
        assert len(learner._conversations._known) <= 50
        assert len(learner._conversations._index) <= 50 * 12
        assert sum(map(len, learner._returns.hazards._bands)) <= 80


def test_a_shadow_trims_by_as_large_a_share_as_the_cache_does() -> None:
    tlru = Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.0, trim_chunk=40 * PAGE)
    selector = Selector({"tlru": tlru}, 64_000 * PAGE, PAGE, 4, ("tlru",), LeadsNeeded(1.0, 1.0))
    (shadow,) = selector._shadows.values()
    context = shadow.capacity // 4
    shadow.serve(Conversation((), 0.0, 1, 0, context, 0), turn(0.0, context, context))
    victim = shadow.order.choose_victim(1)
    assert victim is not None
    assert context - victim.keep == 10 * PAGE


def test_the_shadows_prefer_what_was_better_on_the_same_stream() -> None:
    # ξ = 600, Q̂ = 100: T-LRU trims long conversations to within the budget, LRU drops the oldest whole.
    learner = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT, median_weight=0.0), 10_000, PAGE)
    candidates = {name: learner.candidates[name] for name in ("lru", "tlru")}
    selector = Selector(candidates, 10_000, PAGE, 1, ("lru", "tlru"), LeadsNeeded(1.0, 1.0))
    conversations = Conversations(Hazards())
    for cycle in range(20):
        for name in range(1, 13):  # 12 · 960 do not fit in 10,000; trimmed to 460 they do
            told = turn(cycle * 100.0 + name, 960 + cycle * PAGE, 960 + cycle * PAGE, name)
            selector.replay_turn(conversations.record_turn(told, is_leaf=True), told)
    assert selector.tel["tlru"] < selector.tel["lru"]
    assert selector.preferred == "tlru"
    assert selector.sampled == 20 * 12
    assert selector.excess["tlru"] == 12 * (960 - THRESHOLD)  # the first turns alone
    assert selector.excess["tlru"] < selector.tel["lru"] < selector.excess["lru"]


def test_a_candidate_is_left_for_a_larger_lead_than_it_is_returned_to_for() -> None:
    learner = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT, median_weight=0.0), 10_000, PAGE)

    def preferred(leads: LeadsNeeded) -> list[str]:
        candidates = {name: learner.candidates[name] for name in ("tlru", "lru")}
        selector = Selector(candidates, 10_000, PAGE, 1, ("tlru", "lru"), leads)
        for one, other in (("tlru", "lru"), ("lru", "tlru")):
            selector._squares[one][other] = 64.0  # a standard deviation of 8 tokens
        found = []
        for tlru in (107.0, 110.0, 117.0, 100.0, 99.0, 91.0):
            selector.tel = {"tlru": tlru, "lru": 100.0}
            selector._compare()
            found.append(selector.preferred)
        return found

    assert preferred(LeadsNeeded(2.0, 0.0)) == ["tlru", "tlru", "lru", "lru", "tlru", "tlru"]
    assert preferred(LeadsNeeded(1.0, 1.0)) == ["tlru", "lru", "lru", "lru", "lru", "tlru"]


def test_what_was_served_is_tallied_by_the_threshold_of_its_time() -> None:
    learner = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)
    learner.record_turn(turn(0, 900, 900))  # 300 tokens beyond 600
    learner.use_threshold(800)
    learner.record_turn(turn(1, 900, 900, name=2)._replace(cached_len=64))  # 36 beyond 800
    learner.record_turn(turn(2, 800, 800, name=3))
    assert learner.served == Tally(requests=3, violations=2, excess=300 + 36)
    assert learner.in_force == "tlru"


def test_what_other_policies_would_have_cost_is_counted_where_it_is_asked_for() -> None:
    for config, watched, counted in (
        (Config("tlru", THRESHOLD, NEXT_PROMPT), True, True),
        (Config("tlru", THRESHOLD, NEXT_PROMPT), False, False),
        (Config("tlru", THRESHOLD), False, True),  # Q is learned, and may be put aside
        (Config("etlru", THRESHOLD, NEXT_PROMPT), False, True),
    ):
        learner = Learner(config, 10_000, PAGE, watched)
        for name in range(60):
            learner.record_turn(turn(name, 900, 900, name))
        assert (learner.selector is not None) is counted, config
        assert learner.served.requests == 60


def test_a_next_prompt_that_was_given_is_not_learned() -> None:
    requests = synthetic(300)
    for estimate, kept in ((NEXT_PROMPT, True), (None, False)):
        cache = simulated_cache("etlru", 10_000, threshold=1024, next_prompt_estimate=estimate, page_size=PAGE)
        simulate(cache, requests)
        learner = cache._learner
        assert learner is not None
        assert learner._returns.version > 0, "enough was seen to learn from"
        assert (learner.candidates["etlru"].prompts == FixedPrompt(NEXT_PROMPT)) is kept


def tail_of(requests: list[Request], capacity: int, threshold: int, estimate: int | None, policy: str = "tlru") -> int:
    sizes = {"threshold": threshold, "next_prompt_estimate": estimate, "page_size": PAGE}
    return tel(requests, simulate(simulated_cache(policy, capacity, **sizes), requests), threshold)


def test_tlru_learns_how_long_next_prompts_are_unless_it_is_told() -> None:
    long = synthetic(1500, ",prompt_mean=1000")
    learned, pinned = (tail_of(long, 300_000, 4096, estimate) for estimate in (None, 200))
    assert learned < 0.95 * pinned < pinned < tail_of(long, 300_000, 4096, None, "lru")
    learner = simulated_cache("tlru", 300_000, threshold=4096, page_size=PAGE)._learner
    assert learner is not None
    assert list(learner.candidates) == ["tlru", "tlru Q=200", "lru"]
    assert not learner._returns.version, "who comes back it does not ask"
    assert list(Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE).candidates) == ["tlru", "lru"]


def test_where_nearly_everything_fits_tlru_is_lru_unless_it_is_told() -> None:
    requests = synthetic(1500)
    lru = tail_of(requests, 300_000, 2048, None, "lru")
    learned, pinned = (tail_of(requests, 300_000, 2048, estimate) for estimate in (None, 200))
    assert lru <= learned < 1.05 * lru
    assert pinned > 1.3 * lru


def test_etlru_falls_back_to_what_tlru_has_learned() -> None:
    cache = simulated_cache("etlru", 50_000, threshold=THRESHOLD, page_size=PAGE)
    requests = synthetic(800)
    simulate(cache, requests)
    learner = cache._learner
    assert learner is not None
    learned, tlru, lru = learner.candidates.values()
    assert learned.prompts is tlru.prompts
    assert isinstance(tlru.returns, RecentTurns)
    assert (tlru.threshold, tlru.median_weight, lru.median_weight) == (THRESHOLD, 0.0, 1.0)


def test_recency_by_turns_is_one_by_the_turns_served_since() -> None:
    recent = RecentTurns()
    for served, rate in ((3, 1 / 9), (7, 1 / 5)):
        conversation = Conversation((), 0.0, 1, 0, PAGE, 0)
        conversation.turn_index = served
        leaf = Leaf(0, PAGE, PAGE, 1_000.0, conversation)
        assert recent.rate(0, recent.key(leaf), 11.0) == rate
        assert recent.stamp(leaf) == served
    assert recent.key(leaf._replace(conversation=None)) == 0.0, "of whose turn nobody knows"


# ---- a real trace ----


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"needs the Mooncake conversation trace at {MOONCAKE}")
@pytest.mark.parametrize(("threshold", "closed"), [(4096, 0.367), (16384, 0.507)])
def test_the_gap_closed_on_the_second_half_of_a_real_trace(threshold: int, closed: float) -> None:
    requests = open_trace(str(MOONCAKE), format="mooncake").requests
    later = len(requests) // 2

    def tel_of(policy: str) -> int:
        cache = simulated_cache(policy, 2_000_000, threshold=threshold, next_prompt_estimate=200, page_size=512)
        return tel(requests[later:], simulate(cache, requests)[later:], threshold)

    optimum = {4096: 29_668_471, 16384: 11_575_650}[threshold]  # Tail-Optimized Belady
    lru = tel_of("lru")
    assert round((lru - tel_of("etlru")) / (lru - optimum), 3) == closed
