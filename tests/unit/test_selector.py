"""Candidates side by side: how many conversations their shadows sample, and what these have served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from radix_tlru import Config
from radix_tlru.hints.models import HintedReturns
from radix_tlru.learning.guard import Guard
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.least_tel import LeastTel
from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.learning.selector import IN_FORCE, Selector, is_sampled, sparsity
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Recency
from radix_tlru.policy.policy import Policy
from tests.helpers.turns import NEXT_PROMPT, PAGE, THRESHOLD, conversation, new_conversations, turn


@pytest.mark.parametrize(
    ("fits", "tokens", "one_in"),
    [
        *((0, 256, 1), (99, 256, 1), (199, 256, 1), (200, 256, 2), (1_599, 256, 15), (1_600, 256, 16)),
        *((10**6, 256, 16), (10**6, 300, 13), (10**6, 2_000, 2), (10**6, 2_049, 1), (10**6, 9_000, 1)),
    ],
)
def test_a_shadow_holds_100_contexts_or_more_and_serves_one_of_4096_tokens_or_more(
    fits: int, tokens: int, one_in: int
) -> None:
    assert sparsity(fits * tokens, turns=10, tokens=10 * tokens) == one_in


def test_a_shadow_trims_by_as_large_a_share_as_the_cache_does() -> None:
    tlru = Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.0, trim_chunk=40 * PAGE)
    selector = Selector({"tlru": tlru}, 64_000 * PAGE, PAGE, 4, LeastTel(["tlru"]))
    (shadow,) = selector._shadows.values()
    context = shadow.capacity // 4
    shadow.serve(conversation(context_len=context), turn(0.0, context, context))
    victim = shadow.order.choose_victim(1)
    assert victim is not None
    assert context - victim.keep == 10 * PAGE


def test_shadows_are_made_anew_where_contexts_become_much_longer() -> None:
    """60 turns of 64 tokens: 100,000 / 64 fit, so one in 15 is sampled. Of 2,000 tokens 50 fit: all are."""
    lru = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)
    selector = Selector({"lru": lru}, 100_000, PAGE, sparsity(100_000, 60, 60 * 64), LeastTel(["lru"]))
    conversations = new_conversations()
    found = []
    for name in range(2_000):
        tokens = 64 if name < 60 else 2_000
        served = turn(float(name), tokens, tokens, name)
        for _ in selector.replay_turn(conversations.record_turn(served, is_leaf=True), served, "lru"):
            pass
        found.append(selector.one_in)
    assert found == [15] * 999 + [1] * 1_001
    before = sum(is_sampled(number, 15) for number in range(1, 1_000))
    assert selector.sampled == before + 1_001, "what was sampled before still counts"
    assert not selector._replaced, "what was replaced is given back"


@pytest.mark.parametrize("cycle", [2, 3, 8, 16])
@pytest.mark.parametrize("one_in", [2, 6, 16])
def test_of_calls_that_come_in_a_cycle_the_shadows_see_each(one_in: int, cycle: int) -> None:
    sampled = Counter(number % cycle for number in range(200 * one_in * cycle) if is_sampled(number, one_in))
    assert len(sampled) == cycle
    assert sampled.total() == 200 * cycle
    assert all(100 < count < 300 for count in sampled.values()), "200 each, but for chance"


@pytest.mark.parametrize(("fits", "is_new"), [(1, True), (2, False), (4, False), (8, False), (9, True)])
def test_shadows_stay_unless_more_than_twice_or_less_than_half_as_many_contexts_fit(fits: int, is_new: bool) -> None:
    """One in four is sampled, as if 400 of 64 tokens fitted in. In truth 100 times ``fits`` do."""
    lru = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)
    selector = Selector({"lru": lru}, 100 * fits * 64, PAGE, 4, LeastTel(["lru"]))
    before, known = selector._shadows, conversation(family=1)
    for name in range(1_000):
        for _ in selector.replay_turn(known, turn(float(name), 64, 64), "lru"):
            pass
    assert (selector._shadows is not before) is is_new
    assert selector.one_in == (fits if is_new else 4)


def test_how_many_contexts_fit_is_asked_of_the_last_1000_turns_each_time() -> None:
    """Of contexts of 64 tokens 400 fit in, so that one in four is sampled; of 640 tokens 40 do."""
    lru = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)
    selector, known = Selector({"lru": lru}, 400 * 64, PAGE, 4, LeastTel(["lru"])), conversation(family=1)
    found = []
    for name in range(2_000):
        tokens = 64 if name < 1_000 else 640
        for _ in selector.replay_turn(known, turn(float(name), tokens, tokens), "lru"):
            pass
        found.append(selector.one_in)
    assert found == [4] * 1_999 + [1]


def test_a_rule_is_told_how_long_prompts_are_and_what_of_them_no_shadow_had_cached() -> None:
    lru, rule = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0), Guard(["lru"])
    selector, conversations = Selector({"lru": lru}, 100_000, PAGE, 1, rule), new_conversations()
    for at, (prompt, context) in enumerate([(900, 960), (1_000, 1_104)]):  # each with an answer
        served = turn(float(at), prompt, context)
        for _ in selector.replay_turn(conversations.record_turn(served, is_leaf=True), served, "lru"):
            pass
    assert rule._prompt_len[:2].tolist() == [900, 1_000]
    assert rule._uncached[:, :2].tolist() == [[900, 1_000 - 960]]


def test_the_shadows_prefer_what_was_better_on_the_same_stream() -> None:
    # ξ = 600, Q̂ = 100: T-LRU trims long conversations to within the budget, LRU drops the oldest whole.
    candidates = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE).candidates
    in_order = {name: candidates[name] for name in ("lru", "tlru")}
    selector = Selector(in_order, 10_000, PAGE, 1, LeastTel(["lru", "tlru"]))
    conversations = new_conversations()
    for cycle in range(20):
        for name in range(1, 13):  # 12 · 960 do not fit in 10,000; trimmed to 460 they do
            served = turn(cycle * 100.0 + name, 960 + cycle * PAGE, 960 + cycle * PAGE, name)
            for _ in selector.replay_turn(conversations.record_turn(served, is_leaf=True), served, "tlru"):
                pass
    assert selector.preferred == "tlru"
    assert selector.sampled == 20 * 12
    assert selector.prompt_tokens == sum(12 * (960 + cycle * PAGE) for cycle in range(20))
    assert selector.served["tlru"].excess == 12 * (960 - THRESHOLD)  # the first turns alone
    assert selector.served["tlru"].excess < selector.served["lru"].excess
    assert selector.served[IN_FORCE] == selector.served["tlru"]


def test_shadows_that_are_made_anew_have_the_candidates_of_now_and_clocks_of_their_own() -> None:
    """One in four was sampled; 100 contexts fit in, so that all are."""
    lru = Policy(HintedReturns(RecentTurns()), AnyPrompt(), THRESHOLD, median_weight=1.0)
    selector = Selector({"lru": lru}, 100 * 64, PAGE, 4, LeastTel(["lru"]))
    selector.replace_candidate("lru", replace(lru, threshold=2 * THRESHOLD))
    before, known = selector._shadows["lru"].order.policy, conversation(family=1)
    for name in range(1_000):
        for _ in selector.replay_turn(known, turn(float(name), 64, 64), "lru"):
            pass
    after = selector._shadows["lru"].order.policy
    assert (selector.one_in, after.threshold) == (1, 2 * THRESHOLD)
    assert after.returns is not before.returns
