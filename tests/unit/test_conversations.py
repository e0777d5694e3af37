"""Whose turn it is, and what that tells of the answer before it and of others on its path."""

from __future__ import annotations

import pytest

from radix_tlru.learning import known_conversations
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import STEPS
from radix_tlru.learning.prompt_lengths import PromptLengths
from radix_tlru.learning.records import Supersession
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.learning.turn_log import TurnLog
from radix_tlru.policy.models import AnyPrompt, Recency
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.sharded_dict import SHARDS
from tests.helpers.turns import PAGE, THRESHOLD, Words, new_conversations, told

LRU = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)


def test_a_prompt_that_adds_nothing_to_a_context_goes_on_with_it() -> None:
    conversations, words = new_conversations(), Words()
    prompt, answer = words.fresh(500), words.fresh(100)
    conversations.record_turn(told(0.0, prompt, answer), is_leaf=True)
    again = conversations.record_turn(told(9.0, prompt + answer, words.fresh(40)), is_leaf=True)
    assert (again.number, again.turn, again.new_len) == (1, 1, 0)


def test_what_is_prefilled_ahead_goes_beyond_the_last_prompt() -> None:
    conversations, words = new_conversations(), Words()
    prompt = words.fresh(500)
    conversations.record_turn(told(0.0, prompt, words.fresh(100)), is_leaf=True)
    assert conversations.prefilled(told(1.0, prompt)) is None
    found = conversations.prefilled(told(1.0, prompt + words.fresh(1)))
    assert found is not None
    assert found.number == 1


def test_a_session_begins_anew_after_the_last_turn_of_its_conversation_alone() -> None:
    """One that went on elsewhere is where it is."""
    conversations, words = new_conversations(), Words()
    history = words.fresh(500)
    first = conversations.record_turn(told(0.0, history, session="mine"), is_leaf=True)
    second = conversations.record_turn(told(1.0, history + words.fresh(100), session="yours"), is_leaf=True)
    assert second.number == first.number
    conversations.record_turn(told(2.0, words.fresh(500), session="mine"), is_leaf=True)
    assert (first.superseded, second.superseded) == (Supersession.NONE, Supersession.NONE)


@pytest.mark.parametrize("answer", [STEPS[0] - 1, STEPS[0]])
def test_of_an_answer_of_less_than_a_step_nobody_can_tell_whether_it_is_repeated(answer: int) -> None:
    """Behind a prompt that ends at a checkpoint, which is then the last one of the context, too."""
    conversations, words = new_conversations(), Words()
    context = words.fresh(512 + answer)
    first = conversations.record_turn(told(0.0, context[:512], context[512:]), is_leaf=True)
    assert first.is_known_by_prompt == (answer == STEPS[0])
    conversations.record_turn(told(9.0, context + words.fresh(50)), is_leaf=True)
    assert conversations.answers.returns == {True: answer // STEPS[0], False: 0}


def test_a_context_of_less_than_a_step_is_not_known_again_and_not_watched() -> None:
    conversations, words = new_conversations(), Words()
    short = words.fresh(STEPS[0] - 1)
    assert conversations.record_turn(told(0.0, short), is_leaf=True).log_serial == -1
    assert conversations.record_turn(told(1.0, short + words.fresh(1)), is_leaf=True).number == 2
    assert conversations._log.written == 1


def test_who_was_silent_for_longest_is_known_and_watched_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * SHARDS
    monkeypatch.setattr(known_conversations, "_MOST_REMEMBERED", most)
    conversations, words = new_conversations(), Words()
    for at in range(3 * most):
        conversations.record_turn(told(float(at), words.fresh(64)), is_leaf=True)
    conversations._log.write_turn(NOTHING_KNOWN, 1_000.0)  # all are watched
    ages = conversations._log.intervals()
    watched = (ages.stamp + ages.end == 1_000.0).sum() - 1
    assert watched == len(conversations._known) == most


def test_a_chain_of_calls_is_of_use_to_its_last_prompt_until_prompts_leave_out_whole_chains() -> None:
    conversations, words = new_conversations(), Words()
    prompt, called = words.fresh(500), words.fresh(100)
    conversations.record_turn(told(0.0, prompt, called, thought_len=80), is_leaf=True)
    chain = [*prompt, *called, *words.fresh(50)]
    second = conversations.record_turn(told(1.0, chain, words.fresh(100), thought_len=80), is_leaf=True)
    assert (second.number, second.chain_len) == (1, len(prompt))
    assert not conversations.answers.leaves_out_chains
    assert second.reusable_len == len(chain)


def test_who_returns_with_an_answer_that_was_taken_to_be_left_out_finds_it_in_a_shadow() -> None:
    shadow, conversations, words = ShadowCache(LRU, 100_000, 1), new_conversations(), Words()
    prompt, answer = words.fresh(500), words.fresh(100)
    first = told(0.0, prompt, answer, thought_len=80)
    known = conversations.record_turn(first, is_leaf=True)
    assert known.reusable_len == len(prompt)
    found = [shadow.serve(known, first)]
    again = told(9.0, [*prompt, *answer, *words.fresh(50)])
    found.append(shadow.serve(conversations.record_turn(again, is_leaf=True), again))
    assert found == [0, len(prompt) + len(answer)]


def test_whether_whole_chains_are_left_out_is_asked_of_chains_alone() -> None:
    conversations, words = new_conversations(), Words()
    prompt, called = words.fresh(500), words.fresh(100)
    chain = [*prompt, *called, *words.fresh(50)]
    for at, (asked, answer) in enumerate([(prompt, called), (chain, words.fresh(100)), (prompt + words.fresh(50), [])]):
        known = conversations.record_turn(told(float(at), asked, answer, thought_len=len(answer)), is_leaf=True)
    assert (known.number, known.turn) == (1, 2)
    assert conversations.answers.snapshot().chains == 0.05
    alone = words.fresh(500)
    for at, (asked, answer) in enumerate([(alone, words.fresh(100)), (alone + words.fresh(50), [])], start=3):
        known = conversations.record_turn(told(float(at), asked, answer, thought_len=len(answer)), is_leaf=True)
    assert (known.number, known.turn) == (2, 1)
    assert conversations.answers.snapshot().chains == 0.05


def test_who_leaves_out_an_answer_that_was_taken_to_be_repeated_finds_whole_pages_of_its_prompt_in_a_shadow() -> None:
    shadow, conversations, words = (
        ShadowCache(LRU, 100_000, PAGE),
        Conversations(TurnLog(), PromptLengths(), PAGE),
        Words(),
    )
    prompt, answer = words.fresh(500), words.fresh(108)  # 608 tokens, 38 pages
    first, again = told(0.0, prompt, answer), told(9.0, [*prompt, *words.fresh(140)])
    known = conversations.record_turn(first, is_leaf=True)
    assert known.reusable_len > len(prompt) + len(answer)
    found = [shadow.serve(known, first)]
    found.append(shadow.serve(conversations.record_turn(again, is_leaf=True), again))
    assert found == [0, 500 // PAGE * PAGE]


@pytest.mark.parametrize(("more", "rewritten"), [(19, 0.95), (20, 1.0)])
def test_a_prompt_may_hold_an_answer_in_other_words_if_it_is_as_much_longer_as_that_was_spoken(
    more: int, rewritten: float
) -> None:
    conversations, words = new_conversations(), Words()
    prompt = words.fresh(500)
    conversations.record_turn(told(0.0, prompt, words.fresh(100), thought_len=80), is_leaf=True)
    again = conversations.record_turn(told(9.0, [*prompt, *words.fresh(more)]), is_leaf=True)
    assert (again.number, conversations.answers.snapshot().rewritten) == (1, rewritten)


def test_a_turn_whose_stamp_is_before_the_newest_is_one_of_now() -> None:
    conversations, words = new_conversations(), Words()
    history = words.fresh(500)
    conversations.record_turn(told(100.0, history), is_leaf=True)
    again = conversations.record_turn(told(70.0, [*history, *words.fresh(100)]), is_leaf=True)
    assert (again.number, again.stamp, again.wait) == (1, 100.0, 0.0)


def test_no_more_is_shared_than_can_be_cached() -> None:
    """As where the last page of a prompt was found, and is cached no more."""
    first = new_conversations().record_turn(told(0.0, range(512), cached_len=512, context_len=496), is_leaf=True)
    assert first.shared_len == 496


def test_a_conversation_knows_its_last_two_waits() -> None:
    conversations, words = new_conversations(), Words()
    history, found = words.fresh(500), []
    for at in (0.0, 10.0, 40.0, 45.0):
        known = conversations.record_turn(told(at, history), is_leaf=True)
        found.append((known.wait, known.wait_before))
        history = [*history, *words.fresh(100)]
    assert found == [(-1.0, -1.0), (10.0, -1.0), (30.0, 10.0), (5.0, 30.0)]


@pytest.mark.parametrize(("more", "known_next"), [(100, 0), (99, -100)])
def test_an_answer_that_no_prompt_is_long_enough_to_hold_is_no_part_of_the_next_one(more: int, known_next: int) -> None:
    """Nobody tells of reasoning. Of 20 returns none repeats the answer of 100 tokens as it was cached."""
    conversations, words = new_conversations(), Words()
    history = words.fresh(500)
    for at in range(21):
        known = conversations.record_turn(told(float(at), history, words.fresh(100)), is_leaf=True)
        history = [*history, *words.fresh(more)]
    assert (known.number, known.turn) == (1, 20)
    assert known.reusable_len == known.prompt_len
    assert known.known_next_tokens == known_next


def test_what_was_said_beside_reasoning_is_no_part_of_what_a_prompt_adds() -> None:
    """Even where other answers, of which nobody tells what was reasoning, are left out whole."""
    prompts, words = PromptLengths(), Words()
    conversations, history = new_conversations(prompts), words.fresh(500)
    for at in range(21):
        conversations.record_turn(told(float(at), history, words.fresh(100)), is_leaf=True)
        history = [*history, *words.fresh(50)]
    assert not conversations.answers.is_rewritten
    prompt = words.fresh(500)
    conversations.record_turn(told(30.0, prompt, words.fresh(100), thought_len=80), is_leaf=True)
    conversations.record_turn(told(31.0, [*prompt, *words.fresh(20 + 30)]), is_leaf=True)
    assert prompts.snapshot()[-1][0] == 30


def test_a_prompt_is_that_of_whoever_was_asked_it_last_even_if_another_goes_on_with_its_answer() -> None:
    conversations, words = new_conversations(), Words()
    prompt, one, other = words.fresh(500), words.fresh(100), words.fresh(100)
    asked = [(prompt, one), (prompt, other), ([*prompt, *one, *words.fresh(50)], words.fresh(100))]
    said = [told(float(at), *each, thought_len=80) for at, each in enumerate(asked)]
    assert [conversations.record_turn(each, is_leaf=True).number for each in said] == [1, 2, 1]
    assert conversations.record_turn(told(9.0, [*prompt, *words.fresh(50)]), is_leaf=True).number == 2
