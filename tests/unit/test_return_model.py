"""What is learned of conversations, held against arithmetic, against a look at everything, and against itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from radix_tlru.learning.hazards import Hazards

from radix_tlru.hints.models import with_hints
from radix_tlru.learning.age_bands import BANDS
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.gittins import gittins, merge_bands
from radix_tlru.learning.records import Conversation, SharedPrefix, Use, Watched
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import preview
from radix_tlru.policy.tel import keep_within_budget
from tests.helpers.turns import NEXT_PROMPT, PAGE, THRESHOLD, turn

hazard_curves = st.lists(st.floats(1e-6, 10.0), min_size=len(BANDS), max_size=len(BANDS))


# ---- hazards ----


def test_a_hazard_is_returns_seen_by_time_spent_silent() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1e-9))
    ten = [Watched((1,), 0.0) for _ in range(10)]
    for conversation in ten:
        hazards.start_watching(conversation)
    # Four return at 20 s, in the band from 16 s to 24 s; the other six are silent until 100 s.
    for conversation in ten[:4]:
        hazards.count_return(conversation, 20.0)
    hazards.start_watching(Watched((2,), 100.0))
    found = hazards.estimate()[(1,)]
    spent = 4 * (20 - 16) + 6 * (24 - 16)
    assert found[BANDS.index(16.0)] == pytest.approx(4 / spent, rel=1e-3)
    assert found[BANDS.index(32.0)] < 1e-4


def test_who_is_still_silent_counts_up_to_now() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1e-9))
    first, second = Watched((1,), 0.0), Watched((1,), 0.0)
    hazards.start_watching(first)
    hazards.start_watching(second)
    hazards.count_return(first, 20.0)  # both have been in the band from 16 s for 4 s
    assert hazards.estimate()[(1,)][BANDS.index(16.0)] == pytest.approx(1 / 8, rel=1e-3)


def test_a_class_that_has_seen_nothing_is_taken_for_its_parent() -> None:
    hazards = Hazards()
    random = Random(0)
    for number in range(400):
        hazards.start_watching(Watched((1, number % 2), float(number)))
    hazards.start_watching(Watched((1, 7), 400.0 + random.random()))
    found = hazards.estimate()
    for band in range(len(BANDS)):
        assert found[(1, 7)][band] == pytest.approx(found[(1,)][band], rel=0.05)


def test_of_what_nobody_was_silent_for_yet_it_is_believed_that_silence_goes_on_as_it_began() -> None:
    hazards = Hazards()
    waiting = [Watched((1,), 0.0) for _ in range(1_000)]  # a hundred return after 20 s; the others are silent for 64 s
    for conversation in waiting:
        hazards.start_watching(conversation)
    for conversation in waiting[:100]:
        hazards.count_return(conversation, 20.0)
    hazards.start_watching(Watched((2,), 64.0))
    found = hazards.estimate()[()]
    last = BANDS.index(45.0)  # the last that anybody came through: 900 without a return in 19 s
    assert found[last] < 1 / (900 * 19)
    # Recency alone would predict a return within as long as the silence has lasted, of each of the 900.
    for band in range(last + 1, len(BANDS)):
        assert found[band] * BANDS[band] <= found[last] * BANDS[last + 1] * (1 + 1e-9)


def test_a_class_differs_from_its_parent_in_a_band_by_what_was_seen_about_it() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1.0))
    parent, nothing = [0.01] * len(BANDS), [0.0] * len(BANDS)
    seen, spent = nothing.copy(), nothing.copy()
    seen[10], spent[10] = 8.0, 400.0  # twice the 0.01 · 400 = 4 that the parent would have predicted
    found = hazards._of_class(seen, spent, parent)
    assert found[10] == pytest.approx(0.01 * (8 + 1 * 2) / (4 + 1))
    assert found[11] == pytest.approx(0.01 * (8 / 2 + 2) / (4 / 2 + 1))
    assert found[8] == pytest.approx(0.01 * (8 / 4 + 2) / (4 / 4 + 1))


@given(hazard_curves)
def test_the_index_is_the_best_that_any_horizon_promises(curve: list[float]) -> None:
    index = gittins(curve)
    for band in range(len(BANDS)):
        best, alive, held = curve[-1] if band == len(BANDS) - 1 else 0.0, 1.0, 0.0
        for later in range(band, len(BANDS) - 1):
            width = BANDS[later + 1] - BANDS[later]
            gone = alive * -math.expm1(-curve[later] * width)
            held, alive = held + gone / curve[later], alive - gone
            best = max(best, (1.0 - alive) / held)
        assert index[band] >= curve[band] * (1 - 1e-9)
        # Survival is multiplied up from the start in one and from the band in the other.
        assert (
            index[band] == pytest.approx(max(best, curve[band]), rel=1e-3)
            or math.prod(
                math.exp(-h * (end - start)) for h, start, end in zip(curve[:band], BANDS, BANDS[1:], strict=False)
            )
            < 1e-9
        )


def test_a_fresh_conversation_is_worth_what_it_will_soon_be_worth() -> None:
    # Nobody returns in the first 45 s, then one in a hundred a second does, for 45 s.
    curve = [0.01 if 45 <= start < 90 else 1e-9 for start in BANDS]
    index = gittins(curve)
    assert index[0] > 100 * curve[0]
    assert index[0] < index[BANDS.index(32.0)] < index[BANDS.index(45.0)]
    assert index[BANDS.index(90.0)] < 1e-6


@given(hazard_curves, st.floats(1.0, 1.2))
def test_bands_that_are_taken_for_one_are_worth_nearly_the_same(curve: list[float], slope: float) -> None:
    for index in (curve, [slope**band for band in range(len(BANDS))], [slope**-band for band in range(len(BANDS))]):
        found = merge_bands(index)
        assert len(found) == len(BANDS)
        for band, (first, end, falls) in enumerate(found):
            assert first <= band < end <= first + 4
            assert index[first] / 1.1 <= index[band] * (1 + 1e-9)
            assert index[band] <= 1.1 * index[first] * (1 + 1e-9)
            assert found[first:end] == [(first, end, falls)] * (end - first)
            # Until it falls nothing behind it is worth less.
            assert all(index[later] >= index[first] for later in range(end, falls))
            assert falls == len(BANDS) or (falls >= end and index[falls] < index[first])
        # And no fewer than could be: what follows a run of fewer than four does not belong to it.
        for first, end, _ in set(found):
            if end < min(first + 4, len(BANDS)):
                assert max(index[first], index[end]) > 1.1 * min(index[first], index[end])


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 500), st.booleans()), max_size=200))
def test_nobody_is_counted_twice_or_lost(steps: list[tuple[int, float, bool]]) -> None:
    hazards = Hazards()
    watched: dict[int, Watched] = {}
    now, spent = 0.0, 0.0
    for number, wait, returns in steps:
        now += wait
        before = watched.pop(number, None)
        if before is not None:
            spent += now - before.stamp
            (hazards.count_return(before, now) if returns else None) or hazards.stop_watching(before)
        if before is None or returns:
            watched[number] = Watched((number % 3,), now)
            hazards.start_watching(watched[number])
    if steps:
        hazards.start_watching(Watched((9,), now))
    open_ = sum(now - conversation.stamp for conversation in watched.values())
    counts = hazards._counts.values()
    exposed = sum(sum(each.exposure) for each in counts)
    pending = sum(
        each.at_risk[band] * (hazards.now - start) - each.stamps[band]
        for each in counts
        for band, start in enumerate(BANDS)
    )
    assert all(risk >= 0 for each in counts for risk in each.at_risk)
    assert exposed + pending <= spent + open_ + 1e-6 * (1 + spent + open_)


# ---- the order, where rates rise and fall ----


class Rising(LearnedReturns):
    """Rates by class and band that were given, not learned."""

    def __init__(self, curves: dict[tuple[int, ...], list[float]]) -> None:
        super().__init__()
        self._index = {(): [1.0] * len(BANDS), **curves}


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.integers(1, 1000), min_size=len(BANDS), max_size=len(BANDS)), min_size=2, max_size=2),
    st.lists(st.tuples(st.sampled_from(["appear", "use", "evict"]), st.integers(0, 10**6), st.floats(0, 300))),
    st.sampled_from([0.0, 0.3]),
)
def test_the_next_victim_is_the_one_a_look_at_all_leaves_would_choose(
    curves: list[list[int]], steps: list[tuple[str, int, float]], weight: float
) -> None:
    returns = Rising({(kind,): [float(rate) for rate in curve] for kind, curve in enumerate(curves)})
    leaves: dict[int, Leaf] = {}
    order = EvictionOrder(Policy(returns, FixedPrompt(NEXT_PROMPT), THRESHOLD, weight), PAGE, leaves.get)
    now, clock, last_id = 0.0, 0, 0

    def rate_of(cls: tuple[int, ...], band: int) -> float:
        curve = returns._index[cls]
        return curve[merge_bands(curve)[band][0]]

    def price(leaf: Leaf) -> tuple[float, float]:
        stamp = leaf.conversation.stamp  # in a band as soon as either sum says so: 256.8 - 192.8 may be just under 64
        entered = (band for band, start in enumerate(BANDS) if start <= now - stamp or stamp + start <= now)
        band = max(entered)
        rate = rate_of(leaf.conversation.cls, band)
        if leaf.conversation.prefix is not None and leaf.end <= leaf.conversation.shared_len:
            rate = max(rate, rate_of(leaf.conversation.prefix.last.cls, band))
        within = leaf.end <= keep_within_budget(leaf.history, NEXT_PROMPT, THRESHOLD, PAGE)
        return rate * ((1.0 - weight) * within + weight), rate

    def known(number: int) -> Conversation:
        """Of the one class, of the other, or of the one with some of it shared by what is used like the other."""
        kind = number % 3
        conversation = Conversation((kind % 2,), now, 0, 0, 0, shared_len=number % 50 * 2 * PAGE)
        if kind == 2:
            conversation.prefix = SharedPrefix(0, 64)
            conversation.prefix.last = Use((1,), now)
        return conversation

    for what, number, wait in steps:
        clock += 1
        if what != "evict" or not leaves:  # to the order it is as late as the last stamp it has seen
            now += wait
        if what == "appear" or not leaves:
            last_id += 1
            history = number % 90 * PAGE + PAGE
            leaves[last_id] = Leaf(0, history, history, float(clock), known(number))
            order.add_leaf(last_id)
            continue
        chosen = sorted(leaves)[number % len(leaves)]
        if what == "use":
            order.remove_leaf(chosen)
            leaf = leaves.pop(chosen)
            last_id += 1
            leaves[last_id] = leaf._replace(last_access=float(clock), conversation=known(number))
            order.add_leaf(last_id)
            continue
        foreseen = preview((order,), number % 3)
        victim = order.choose_victim(number % 500 + 1)
        assert victim is not None
        if foreseen:
            assert (foreseen[0].cost, foreseen[0].return_rate) == price(victim.leaf) == price(foreseen[0].victim.leaf)
        assert price(victim.leaf) == min(map(price, leaves.values()))
        taken = range(victim.leaf.end, victim.keep, -PAGE)
        assert {price(victim.leaf._replace(end=end)) for end in taken} == {price(victim.leaf)}
        order.remove_leaf(victim.leaf_id)
        del leaves[victim.leaf_id]
        if victim.keep > victim.leaf.start:
            last_id += 1
            leaves[last_id] = victim.leaf._replace(end=victim.keep)
            order.add_leaf(last_id)


@pytest.mark.parametrize("wrapper", [lambda policy: policy, with_hints, reusable_only])
def test_what_others_begin_with_is_priced_apart_from_what_follows_it_in_one_leaf(
    wrapper: Callable[[Policy], Policy],
) -> None:
    conversation = Conversation((0,), 0.0, 1, 0, 640, shared_len=320)
    conversation.prefix = SharedPrefix(0, 320)
    conversation.prefix.last = Use((1,), 0.0)
    policy = Policy(Rising({(0,): [1.0] * len(BANDS), (1,): [2.0] * len(BANDS)}), AnyPrompt(), THRESHOLD, 1.0)
    leaves = {1: Leaf(0, 640, 640, 1.0, conversation)}
    order = EvictionOrder(wrapper(policy), PAGE, leaves.get)
    order.add_leaf(1)
    for end, keep, rate in ((640, 320, 1.0), (320, 0, 2.0)):
        (foreseen,) = preview((order,), 1)
        victim = order.choose_victim(1_000)
        assert victim is not None
        assert (victim.leaf.end, victim.keep, foreseen.return_rate) == (end, keep, rate)
        order.remove_leaf(1)
        leaves[1] = victim.leaf._replace(end=victim.keep)
        order.add_leaf(1)


# ---- conversations ----


def test_a_conversation_is_known_by_its_tokens_and_counts_its_turns() -> None:
    conversations = Conversations(Hazards())
    first = conversations.record_turn(turn(0, 1000, 1000), is_leaf=True)
    other = conversations.record_turn(turn(5, 1000, 1000, name=2), is_leaf=True)
    second = conversations.record_turn(turn(90, 1200, 1300), is_leaf=True)
    assert (first.number, other.number, second.number) == (1, 2, 1)
    assert (first.turn, other.turn, second.turn) == (0, 0, 1)
    assert (first.cls, other.cls, second.cls) == ((0, 0), (0, 0), (1, 1))  # back after 60 to 120 s


def test_a_prompt_that_is_mostly_new_begins_another_conversation() -> None:
    conversations = Conversations(Hazards())
    conversations.record_turn(turn(0, 1000, 1000), is_leaf=True)
    assert conversations.record_turn(turn(9, 5000, 5000), is_leaf=True).turn == 0


def test_what_others_continue_is_nobodys_conversation() -> None:
    conversations = Conversations(Hazards())
    conversations.record_turn(turn(0, 1000, 1000), is_leaf=False)
    assert conversations.record_turn(turn(9, 1100, 1100), is_leaf=True).turn == 0
