"""Lengths of next prompts: quantiles of what was seen, by kind of conversation, drawn towards those of all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.learning.prompt_lengths import NextPrompts, PromptLengths, kind_of
from radix_tlru.learning.records import Turn
from radix_tlru.policy.models import Leaf
from tests.helpers.turns import conversation, new_conversations

SHORT, LONG = kind_of(0, 500), kind_of(3, 20_000)
LEVELS = (0.998, 0.985, 0.95, 0.85, 0.6, 0.3, 0.1)


def learned(*seen: tuple[int, int, int]) -> NextPrompts:
    """From so many prompts of a length after conversations of a kind, each."""
    prompts = PromptLengths()
    for times, tokens, kind in seen:
        for _ in range(times):
            prompts.count_prompt(tokens, kind)
    found = prompts.distribution()
    assert found is not None
    return found


def leaf(turn: int, length: int) -> Leaf:
    return Leaf(0, length, length, 1.0, conversation(turn=turn, context_len=length))


def test_a_kind_is_a_turn_and_a_length() -> None:
    assert len({kind_of(turn, length) for turn in range(9) for length in range(0, 40_000, 100)}) == 4 * 4
    assert kind_of(0, 1_023) != kind_of(0, 1_024) != kind_of(1, 1_024)
    assert kind_of(2, 5_000) == kind_of(3, 16_383)  # the third and the fourth turn
    assert kind_of(4, 16_384) == kind_of(99, 10**6)


def test_kinds_that_differ_are_told_apart() -> None:
    found = learned((900, 100, SHORT), (900, 3_000, LONG))
    # 900 short ones and 200 · 1/2 of the long: 9 % of a short one's next prompts are taken to be long.
    assert found.of_kind[SHORT] == (3_000, 3_000, 3_000, 100, 100, 100, 100)
    # 900 long ones and 200 · 1/2 of the short: 91 % are long, and 90 % of them begin with the long.
    assert found.of_kind[LONG] == (3_000,) * 7
    assert found.quantiles == (3_000, 3_000, 3_000, 3_000, 3_000, 100, 100)
    assert [found.next_prompt(leaf(0, 500), step) for step in (2, 3, 7)] == [3_000, 100, None]
    assert [found.next_prompt(leaf(3, 20_000), step) for step in (2, 3, 7)] == [3_000, 3_000, None]


def test_of_a_kind_that_was_not_seen_what_is_known_of_all_is_believed() -> None:
    found = learned((700, 100, SHORT), (300, 3_000, LONG))
    unseen = found.of_kind[kind_of(1, 500)]
    assert unseen == (3_000, 3_000, 3_000, 3_000, 100, 100, 100)
    assert found.next_prompt(Leaf(0, 64, 64, 1.0), 4) == found.quantiles[4] == 100  # nothing known of the leaf at all


def test_what_was_said_and_fills_no_page_is_part_of_the_next_prompt_for_certain() -> None:
    prompts = PromptLengths()
    conversations = new_conversations(prompts)
    for at in range(10):  # a prompt of 100 tokens, an answer of 60, of which 128 are whole pages; the next turn adds 50
        told = Turn(2.0 * at, 100, 60, 128, 0, lambda start, end, above, name=at: hash((name, end)))
        first = conversations.record_turn(told, is_leaf=True)
        conversations.record_turn(
            told._replace(stamp=2.0 * at + 1, prompt_len=100 + 60 + 50, cached_len=128), is_leaf=True
        )
        assert first.known_next_tokens == 100 + 60 - 128
    found = prompts.distribution()
    assert found is not None
    assert set(found.quantiles) == {50}
    assert found.next_prompt(Leaf(0, 128, 128, 1.0, first), 0) == 32 + 50


def test_a_prompt_that_adds_less_than_the_history_is_a_next_prompt() -> None:
    prompts = PromptLengths()
    conversations = new_conversations(prompts)
    first = Turn(0.0, 900, 100, 512, 0, lambda start, end, above: end)  # pages of 512
    conversations.record_turn(first, is_leaf=True)
    conversations.record_turn(first._replace(stamp=9.0, prompt_len=1_100, context_len=1_024), is_leaf=True)
    found = prompts.distribution()
    assert found is not None
    assert set(found.quantiles) == {100}


@pytest.mark.parametrize(("prompt", "counted"), [(1_999, [999]), (2_000, [])])
def test_a_prompt_of_which_half_or_more_is_new_is_no_length_of_a_next_prompt(prompt: int, counted: list[int]) -> None:
    prompts = PromptLengths()
    conversations = new_conversations(prompts)
    first = Turn(0.0, 900, 100, 1_000, 0, lambda start, end, above: end)
    conversations.record_turn(first, is_leaf=True)
    again = first._replace(stamp=9.0, prompt_len=prompt, context_len=prompt)
    assert conversations.record_turn(again, is_leaf=True).turn == 1
    assert [tokens for tokens, _ in prompts.snapshot()] == counted


def test_a_prompt_that_leaves_out_more_than_it_adds_adds_nothing() -> None:
    prompts = PromptLengths()
    conversations = new_conversations(prompts)
    first = Turn(0.0, 900, 100, 512, 0, lambda start, end, above: end)  # pages of 512
    conversations.record_turn(first, is_leaf=True)
    conversations.record_turn(first._replace(stamp=9.0, prompt_len=950), is_leaf=True)
    assert [tokens for tokens, _ in prompts.snapshot()] == [0]


def test_what_has_hardly_changed_is_what_it_was() -> None:
    prompts = PromptLengths()
    assert prompts.distribution() is None
    for tokens in range(1_000):
        prompts.count_prompt(1_000 + tokens, SHORT)
    first = prompts.distribution()
    for tokens in range(1_000):
        prompts.count_prompt(1_100 + tokens, SHORT)
    assert prompts.distribution(first) is first
    for tokens in range(1_000):
        prompts.count_prompt(4_000 + tokens, SHORT)
    changed = prompts.distribution(first)
    assert changed is not None
    assert changed is not first
    assert changed.quantiles[0] > 4_900


@pytest.mark.parametrize(("before", "now", "stays"), [(1_000, 751, True), (1_000, 749, False), (750, 1_001, False)])
def test_a_change_of_more_than_a_quarter_of_the_larger_is_one(before: int, now: int, stays: bool) -> None:
    one, other = (NextPrompts((tokens,) * 7) for tokens in (before, now))
    assert one.is_close_to(other) == other.is_close_to(one) == stays
    kinds = [NextPrompts((500,) * 7, ((500,) * 7, (tokens,) * 7)) for tokens in (before, now)]
    assert kinds[0].is_close_to(kinds[1]) == stays, "of one kind alone"
    assert not one.is_close_to(NextPrompts(one.quantiles, (one.quantiles,))), "it tells kinds apart"


def test_the_lengths_that_are_remembered_are_the_last_the_oldest_first() -> None:
    prompts = PromptLengths()
    for tokens in range(2_500):
        prompts.count_prompt(tokens, tokens % 16)
    assert prompts.snapshot() == tuple((tokens, tokens % 16) for tokens in range(500, 2_500))


def test_the_chance_of_a_level_is_the_middle_between_its_quantile_and_the_next_shorter() -> None:
    found = learned(*((1, tokens, SHORT) for tokens in range(1_001)))
    assert found.quantiles == (998, 985, 950, 850, 600, 300, 100)
    middles = [1 - (longer + shorter) / 2 for longer, shorter in pairwise(LEVELS)]
    assert found.probabilities == (0.0, *(pytest.approx(chance) for chance in middles), 1.0)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 15)), min_size=1, max_size=200))
def test_quantiles_fall_from_step_to_step_and_were_all_seen(seen: list[tuple[int, int]]) -> None:
    found = learned(*((1, tokens, kind) for tokens, kind in seen))
    lengths = {tokens for tokens, _ in seen}
    for quantiles in (found.quantiles, *found.of_kind):
        assert lengths >= set(quantiles)
        assert all(longer >= shorter for longer, shorter in pairwise(quantiles))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.sampled_from(range(len(LEVELS))))
def test_where_there_is_one_kind_its_quantiles_are_those_of_the_sorted_list(lengths: list[int], step: int) -> None:
    found = learned(*((1, tokens, SHORT) for tokens in lengths))
    of_kind, ranked = found.of_kind[SHORT][step], sorted(lengths)
    # The smallest length that so large a share of them does not exceed.
    assert sum(tokens <= of_kind for tokens in ranked) >= (LEVELS[step] - 1e-9) * len(ranked)
    assert sum(tokens < of_kind for tokens in ranked) < (LEVELS[step] + 1e-9) * len(ranked)


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 15)), min_size=1, max_size=50),
    st.integers(-4_000, 9_000),
    st.sampled_from([(0, 500), (3, 20_000)]),
)
def test_a_level_that_is_found_at_once_is_the_first_that_ends_there(
    seen: list[tuple[int, int]], longest: int, kind: tuple[int, int]
) -> None:
    prompts = learned(*((1, *one) for one in seen))
    ends = [prompts.next_prompt(leaf(*kind), level) for level in range(len(prompts.probabilities))]
    first = next(level for level, tokens in enumerate(ends) if tokens is None or tokens <= longest)
    assert prompts.first_level(leaf(*kind), longest) == first


@pytest.mark.parametrize("turns", [1, 3])
def test_lengths_of_long_ago_are_forgotten(turns: int) -> None:
    found = learned((5_000, 90_000, kind_of(turns, 500)), (2_000, 70, SHORT))
    assert set(found.quantiles) == {70}
