"""What watches the turns of a server: what it does until it knows, and what it prefers by its shadows."""

from __future__ import annotations

import weakref
from array import array
from dataclasses import replace

import pytest

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.traces import open_trace
from eval.traces.request import Path, Request
from radix_tlru import Config
from radix_tlru.hints.schema import Hints
from radix_tlru.learning.guard import Guard
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.least_tel import LeastTel
from radix_tlru.learning.prompt_lengths import NextPrompts
from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf
from radix_tlru.policy.sharded_dict import SHARDS
from radix_tlru.policy.tel import Tally
from tests.helpers.paths import MOONCAKE
from tests.helpers.random_traces import tel
from tests.helpers.rules import InTurn
from tests.helpers.turns import (
    NEXT_PROMPT,
    PAGE,
    THRESHOLD,
    Words,
    conversation,
    fingerprint_of,
    told,
    turn,
)


def synthetic(conversations: int, parameters: str = "") -> list[Request]:
    return open_trace(f"synthetic:conversations={conversations}{parameters}").requests


def learning(capacity: int, page_size: int = PAGE, threshold: int = 1024) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=threshold, page_size=page_size)


def learner_of(cache: SimulatedCache) -> Learner:
    assert cache.learner is not None
    return cache.learner


def test_etlru_evicts_exactly_as_lru_until_another_candidate_is_admitted() -> None:
    requests = open_trace("chat-mix:conversations=800").requests
    lru, learned = simulated_cache("lru", 100_000, threshold=1024, page_size=PAGE), learning(100_000)
    for request in requests:
        if learner_of(learned).in_force != "lru":
            break
        assert learned.request(request) == lru.request(request)
        assert learned.evicted == lru.evicted
    assert lru.evicted["lru"] > 10_000
    assert learner_of(learned).in_force == "etlru"


def test_lru_in_force_is_stock_lru_even_where_prompts_leave_thoughts_out() -> None:
    requests = open_trace("thinking:sessions=120,span_s=1200").requests
    told = learning(200_000)
    learner_of(told).rule = InTurn(["lru"])
    assert simulate(told, requests) == simulate(
        simulated_cache("lru", 200_000, threshold=1024, page_size=PAGE), requests
    )


def test_what_is_in_force_is_kept_as_which_candidate_it_is() -> None:
    learner = Learner(Config("tlru", THRESHOLD), 10_000, PAGE)
    first = learner.policy
    for number in range(400):  # four turns each of a hundred conversations
        learner.record_turn(turn(float(number), 900 + number // 100 * 64, 900 + number // 100 * 64, number % 100))
    assert learner.in_force == "tlru"
    assert learner.policy is learner.candidates["tlru"] is not first


def test_two_that_are_told_the_same_evict_the_same() -> None:
    requests = open_trace("chat-mix:conversations=400").requests
    one, other, lru = (
        learning(50_000),
        learning(50_000),
        simulated_cache("lru", 50_000, threshold=1024, page_size=PAGE),
    )
    found = simulate(one, requests)
    assert found == simulate(other, requests) != simulate(lru, requests)
    assert learner_of(one).returns_by_age == learner_of(other).returns_by_age
    assert one.evicted == other.evicted


def test_time_that_runs_backwards_is_time_that_stands_still() -> None:
    requests = synthetic(800)
    shaken = [
        replace(request, arrival_s=request.arrival_s - 30 * (number % 2)) for number, request in enumerate(requests)
    ]
    cache = learning(50_000)
    assert len(simulate(cache, shaken)) == len(requests)


def test_memory_is_bounded_by_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * SHARDS
    for module in ("known_conversations", "last_users"):
        monkeypatch.setattr(f"radix_tlru.learning.{module}._MOST_REMEMBERED", most)
    cache = learning(50_000)
    conversations = learner_of(cache)._conversations
    known = conversations._known
    for number, request in enumerate(synthetic(1500)):
        cache.request(replace(request, session=f"{number // 2}"))
        assert len(known) <= most
        assert len(known._by_session) <= most
        assert len(known.index) <= most * 12
        assert len(conversations._users._last) <= most
    assert len(known) > most / 2
    assert len(known._by_session) > most / 2
    assert conversations.begun > most


def test_a_turn_that_waits_to_be_learned_from_holds_no_tokens() -> None:
    """Of a server that is never idle thousands may wait, each with a prompt of megabytes."""
    learner, prompt = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE), array("q", range(900))
    tokens = weakref.ref(prompt)
    for number in range(60):
        served = told(float(number), prompt)._replace(prompt_ids=prompt, fingerprint=fingerprint_of(prompt))
        learner.record_turn(served, learns_later=True)
    del prompt, served
    assert (tokens(), learner.unlearned) == (None, 60)
    assert learner.learn() == 60
    assert learner.selector is not None
    assert learner.selector.sampled > 0


def test_what_was_served_is_tallied_by_the_threshold_of_its_time() -> None:
    learner = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)
    learner.record_turn(turn(0, 900, 960))  # 300 tokens beyond 600
    learner.use_threshold(800)
    learner.record_turn(turn(1, 900, 900, name=2)._replace(cached_len=64))  # 36 beyond 800
    learner.record_turn(turn(2, 800, 800, name=3))
    assert learner.served == Tally(requests=3, uncached=900 + 836 + 800, violations=2, excess=300 + 36)
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
            assert name >= 50 or learner.selector is None, "it takes 50 turns to know how many contexts fit"
            learner.record_turn(turn(name, 900, 900, name))
        assert (learner.selector is not None) is counted, config
        assert learner.served.requests == 60


def test_shadows_have_the_room_that_running_requests_leave_in_sixteenths() -> None:
    capacity = 1_600 * PAGE
    ranks = [Learner(Config("etlru", THRESHOLD), capacity, PAGE) for _ in range(2)]
    for held, room in ((0, capacity), (capacity // 2, capacity // 2), (capacity, capacity // 16), (0, capacity)):
        for number in range(600):
            for rank, learner in enumerate(ranks):  # whose pools differ by a page
                learner.record_turn(turn(float(number), 900, 900, number), held=max(held - rank * PAGE, 0))
                assert learner.selector is None or {
                    shadow.capacity for shadow in learner.selector._shadows.values()
                } == {learner.room}
        assert [learner.room for learner in ranks] == [room, room]


@pytest.mark.parametrize(("held", "one_in"), [(0, 4), (200 * 640, 3)])
def test_shadows_begin_with_the_contexts_that_fit_in_beside_what_running_requests_hold(held: int, one_in: int) -> None:
    """400 of 640 tokens, whatever the prompts; half held in 50 turns is a fifth on the mean, which leaves 13 of 16."""
    learner = Learner(Config("etlru", THRESHOLD), 400 * 640, PAGE)
    for number in range(50):
        learner.record_turn(turn(float(number), 320, 640, number), held=held)
    assert learner.selector is not None
    assert learner.selector.one_in == one_in


@pytest.mark.parametrize("held", [0, 50_000])
def test_what_lru_would_have_cost_is_what_it_costs_beside_requests_that_hold_much(held: int) -> None:
    requests = open_trace("chat-mix:conversations=800").requests
    cache = learning(100_000)
    learner_of(cache).rule = InTurn(["lru"])
    if held:
        running = replace(requests[0], context=Path((-1,), (held,)), prompt_tokens=held)
        cache.request(running)
        cache.hold(running)
    found = simulate(cache, requests)
    selector = learner_of(cache).selector
    assert selector is not None
    told, cost = selector.served["lru"], 0
    for request, cached in [*zip(requests, found, strict=True)][-told.requests :]:
        cost += request.prompt_tokens - cached
    assert told.uncached == pytest.approx(cost, rel=0.03)


def test_a_next_prompt_that_was_given_is_not_learned() -> None:
    requests = synthetic(300)
    for estimate, kept in ((NEXT_PROMPT, True), (None, False)):
        cache = simulated_cache("etlru", 10_000, threshold=1024, next_prompt_estimate=estimate, page_size=PAGE)
        simulate(cache, requests)
        learner = learner_of(cache)
        assert learner._prompts.distribution() is not None, "enough was seen to learn from"
        assert (learner.candidates["etlru w=0.6"].prompts == FixedPrompt(NEXT_PROMPT)) is kept


def test_the_candidates_of_etlru_are_one_without_a_threshold_one_with_it_and_lru() -> None:
    learner = Learner(Config("etlru", THRESHOLD), 10_000, PAGE)
    weights = {name: policy.median_weight for name, policy in learner.candidates.items()}
    assert weights == {"etlru": 1.0, "etlru w=0.6": 0.6, "lru": 1.0}
    assert learner.in_force == "lru"
    pinned = Learner(Config("etlru", THRESHOLD, median_weight=0.2), 10_000, PAGE).candidates
    assert {name: policy.median_weight for name, policy in pinned.items()} == {"etlru": 0.2, "lru": 1.0}


def test_where_w_is_given_or_q_alone_is_learned_the_least_tel_decides() -> None:
    rules = {
        Config("etlru", THRESHOLD): Guard,
        Config("etlru", THRESHOLD, median_weight=0.2): LeastTel,
        Config("etlru", THRESHOLD, median_weight=1.0): LeastTel,
        Config("tlru", THRESHOLD): LeastTel,
    }
    for config, rule in rules.items():
        assert type(Learner(config, 10_000, PAGE).rule) is rule, config


@pytest.mark.parametrize(("estimate", "in_force"), [(NEXT_PROMPT, "tlru"), (None, "lru")])
def test_tlru_with_a_pinned_q_stays_in_force_whatever_its_shadows_cost(estimate: int | None, in_force: str) -> None:
    learner = Learner(Config("tlru", THRESHOLD, estimate), 10_000, PAGE)
    learner.rule = InTurn(["lru"])
    for number in range(60):
        learner.record_turn(turn(float(number), 900, 900, number))
    assert learner.selector is not None
    assert learner.in_force == in_force


def test_the_model_in_force_is_the_last_one_that_was_fitted() -> None:
    learner = Learner(Config("etlru", THRESHOLD), 10_000, PAGE)
    assert learner._refits is not None
    fitted = []
    for number in range(400):  # four turns each of a hundred conversations
        length, before = 900 + number // 100 * 64, learner._refits.model
        learner.record_turn(turn(float(number), length, length, number % 100))
        if learner._refits.model is not before:
            fitted.append(learner._refits.model)
        assert not fitted or learner._returns.model is fitted[-1]
    assert len(fitted) > 3
    assert sum(group.returns for group in learner.returns_by_age) > 100


def test_of_requests_that_are_queued_the_last_is_the_most_recent_and_each_is_waited_for_a_minute() -> None:
    learner, words = Learner(Config("etlru", THRESHOLD), 10_000, PAGE), Words()
    first, second = (learner.record_turn(told(stamp, words.fresh(64))) for stamp in (0.0, 100.0))
    for each in (second, first):
        learner.mark_queued(each)
    assert (second.turn_index, first.turn_index) == (2 + 1 / 2, 2 + 2 / 3)
    assert first.queued_until == second.queued_until == 160.0
    assert learner.record_turn(told(110.0, words.fresh(64))).turn_index == 3
    learner.mark_queued(second)
    assert (second.turn_index, second.queued_until) == (3 + 1 / 2, 170.0)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_hints_are_taken_of_a_context_that_nothing_cached_continues(is_leaf: bool) -> None:
    learner, said = Learner(Config("etlru", THRESHOLD), 10_000, PAGE), Hints(returns_in_s=30.0)
    known = learner.record_turn(told(0.0, range(640), hints=said), is_leaf)
    assert (learner.candidates.takes_hints, known.hints) == ((True, said) if is_leaf else (False, None))
    learner.record_turn(told(1.0, range(1_000, 1_640), hints=said))
    inner = learner.record_turn(told(2.0, range(2_000, 2_640), hints=said), is_leaf)
    assert inner.hints == (said if is_leaf else None)


def test_who_is_not_recorded_was_used_now_and_is_nobody() -> None:
    learner, words = Learner(Config("etlru", THRESHOLD), 10_000, PAGE), Words()
    for stamp in (0.0, 40.0, 70.0):
        learner.record_turn(told(stamp, words.fresh(64)))
    newcomer = learner.newcomer()
    assert (newcomer.number, newcomer.stamp, newcomer.turn_index) == (0, 70.0, 3)


def test_a_conversation_that_a_client_ends_leaves_its_claim_to_others() -> None:
    learner, words, claim = Learner(Config("etlru", THRESHOLD), 6_400, PAGE), Words(), Hints(returns_in_s=600.0)
    first, second = (learner.record_turn(told(0.0, words.fresh(1_600), hints=claim)) for _ in range(2))
    assert (first.hints, second.hints) == (claim, claim.without_claims()), "1,600 tokens are a quarter of the pool"
    learner.end_conversation(first)
    assert learner.record_turn(told(1.0, words.fresh(1_600), hints=claim)).hints == claim


def test_a_conversation_that_a_client_ends_is_watched_no_more() -> None:
    learner = Learner(Config("etlru", THRESHOLD), 10_000, PAGE)
    ended, silent = (learner.record_turn(told(0.0, range(at, at + 64))) for at in (0, 1_000))
    learner.record_turn(told(10.0, range(2_000, 2_064)))
    learner.end_conversation(ended)
    learner.record_turn(told(30.0, range(3_000, 3_064)))
    ends = dict(zip((ended.log_serial, silent.log_serial), learner._log.intervals().end.tolist(), strict=False))
    assert ends == {ended.log_serial: 10.0, silent.log_serial: 30.0}
    assert ended.hints is not None
    assert ended.hints.conversation_ends


@pytest.mark.parametrize("by_hint", [True, False])
def test_a_turn_that_its_client_says_is_the_last_is_watched_no_more(by_hint: bool) -> None:
    learner = Learner(Config("etlru", THRESHOLD), 10_000, PAGE)
    last = learner.record_turn(told(0.0, range(64), hints=Hints(conversation_ends=True) if by_hint else None))
    learner.record_turn(told(10.0, range(2_000, 2_064)))
    assert learner._log.intervals().end.tolist()[last.log_serial] == (0.0 if by_hint else 10.0)


def test_a_conversation_that_a_client_ends_goes_first_in_every_shadow() -> None:
    learner = Learner(Config("etlru", THRESHOLD), 10_000, PAGE)
    served = [learner.record_turn(turn(float(number), 640, 640, number)) for number in range(100)]
    assert learner.selector is not None
    learner.end_conversation(served[0])  # which no shadow holds any more
    for ended in (served[-2], served[-1]):  # with the first of them the policies are others, and all get new prices
        learner.end_conversation(ended)
        for shadow in learner.selector._shadows.values():
            victim = shadow.order.choose_victim(640)
            assert victim is not None
            assert victim.leaf.conversation is ended
            shadow._evict(victim.leaf_id, victim.keep)


def tail_of(requests: list[Request], capacity: int, threshold: int, estimate: int | None, policy: str = "tlru") -> int:
    sizes = {"threshold": threshold, "next_prompt_estimate": estimate, "page_size": PAGE}
    return tel(requests, simulate(simulated_cache(policy, capacity, **sizes), requests), threshold)


def test_tlru_learns_how_long_next_prompts_are_unless_it_is_told() -> None:
    long = synthetic(1500, ",prompt_mean=1000")
    learned, pinned = (tail_of(long, 300_000, 4096, estimate) for estimate in (None, 200))
    assert learned < 0.95 * pinned < pinned < tail_of(long, 300_000, 4096, None, "lru")
    learner = learner_of(simulated_cache("tlru", 300_000, threshold=4096, page_size=PAGE))
    assert list(learner.candidates) == ["tlru", "lru"]
    assert not learner.returns_by_age, "who comes back it does not ask"


def test_where_nearly_everything_fits_tlru_is_lru_unless_it_is_told() -> None:
    requests = synthetic(1500)
    lru = tail_of(requests, 300_000, 2048, None, "lru")
    learned, pinned = (tail_of(requests, 300_000, 2048, estimate) for estimate in (None, 200))
    assert lru <= learned < 1.05 * lru
    assert pinned > 1.3 * lru


def test_the_tail_candidate_follows_learned_prompt_lengths_and_the_threshold() -> None:
    learner = Learner(Config("etlru", THRESHOLD), 50_000, PAGE)
    for number in range(600):  # six turns each of a hundred conversations
        length = 900 + number // 100 * 64
        learner.record_turn(turn(float(number), length, length, number % 100))
    learner.use_threshold(800)
    learned, tail, lru = learner.candidates.values()
    assert isinstance(tail.prompts, NextPrompts)
    assert learned.prompts == lru.prompts == AnyPrompt()
    assert {policy.threshold for policy in learner.candidates.values()} == {800}
    assert learner.selector is not None
    assert [shadow.order.policy for shadow in learner.selector._shadows.values()] == [learned, tail, lru]


def test_recency_by_turns_is_one_by_the_turns_served_since() -> None:
    recent = RecentTurns()
    for served, rate in ((3, 1 / 9), (7, 1 / 5)):
        leaf = Leaf(0, PAGE, PAGE, 1_000.0, conversation(turn_index=served))
        assert recent.rate(0, recent.key(leaf), 11.0) == rate
        assert recent.stamp(leaf) == served
    assert recent.key(leaf._replace(conversation=None)) == 0.0, "of whose turn nobody knows"


# ---- a real trace ----


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"needs the Mooncake conversation trace at {MOONCAKE}")
@pytest.mark.parametrize("threshold", [4096, pytest.param(16384, marks=pytest.mark.long)])
def test_more_than_35_per_cent_of_the_gap_is_closed_on_the_second_half_of_a_real_trace(threshold: int) -> None:
    requests = open_trace(str(MOONCAKE), format="mooncake").requests
    later = len(requests) // 2

    def tel_of(policy: str) -> int:
        cache = simulated_cache(policy, 2_000_000, threshold=threshold, page_size=512)
        return tel(requests[later:], simulate(cache, requests)[later:], threshold)

    optimum = {4096: 29_668_471, 16384: 11_575_650}[threshold]  # Tail-Optimized Belady
    lru = tel_of("lru")
    assert (lru - tel_of("etlru")) / (lru - optimum) > 0.35
