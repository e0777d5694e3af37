"""What is learned of conversations, held against arithmetic, against a look at everything, and against itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.hints.schema import hinted
from radix_tlru.learning.conversations import Conversation, Conversations, Turn
from radix_tlru.learning.hazards import BANDS, Hazards, Watched, gittins, runs
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import said_again
from radix_tlru.learning.shared_prefixes import SharedPrefix, Use
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Policy
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.tel import keep_within_budget

PAGE, THRESHOLD, NEXT_PROMPT = 16, 600, 100
hazard_curves = st.lists(st.floats(1e-6, 10.0), min_size=len(BANDS), max_size=len(BANDS))


# ---- hazards ----


def test_a_hazard_is_returns_seen_by_time_spent_silent() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1e-9))
    ten = [Watched((1,), 0.0) for _ in range(10)]
    for conversation in ten:
        hazards.watch(conversation)
    # Four return at 20 s, in the band from 16 s to 24 s; the other six are silent until 100 s.
    for conversation in ten[:4]:
        hazards.returned(conversation, 20.0)
    hazards.watch(Watched((2,), 100.0))
    found = hazards.estimate()[(1,)]
    spent = 4 * (20 - 16) + 6 * (24 - 16)
    assert found[BANDS.index(16.0)] == pytest.approx(4 / spent, rel=1e-3)
    assert found[BANDS.index(32.0)] < 1e-4


def test_who_is_still_silent_counts_up_to_now() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1e-9))
    first, second = Watched((1,), 0.0), Watched((1,), 0.0)
    hazards.watch(first)
    hazards.watch(second)
    hazards.returned(first, 20.0)  # both have been in the band from 16 s for 4 s
    assert hazards.estimate()[(1,)][BANDS.index(16.0)] == pytest.approx(1 / 8, rel=1e-3)


def test_a_class_that_has_seen_nothing_is_taken_for_its_parent() -> None:
    hazards = Hazards()
    random = Random(0)
    for number in range(400):
        hazards.watch(Watched((1, number % 2), float(number)))
    hazards.watch(Watched((1, 7), 400.0 + random.random()))
    found = hazards.estimate()
    for band in range(len(BANDS)):
        assert found[(1, 7)][band] == pytest.approx(found[(1,)][band], rel=0.05)


def test_of_what_nobody_was_silent_for_yet_it_is_believed_that_silence_goes_on_as_it_began() -> None:
    hazards = Hazards()
    waiting = [Watched((1,), 0.0) for _ in range(1_000)]  # a hundred return after 20 s; the others are silent for 64 s
    for conversation in waiting:
        hazards.watch(conversation)
    for conversation in waiting[:100]:
        hazards.returned(conversation, 20.0)
    hazards.watch(Watched((2,), 64.0))
    found = hazards.estimate()[()]
    last = BANDS.index(45.0)  # the last that anybody came through: 900 without a return in 19 s
    assert found[last] < 1 / (900 * 19)
    # Recency alone would foretell a return within as long as the silence has lasted, of each of the 900.
    for band in range(last + 1, len(BANDS)):
        assert found[band] * BANDS[band] <= found[last] * BANDS[last + 1] * (1 + 1e-9)


def test_a_class_differs_from_its_parent_in_a_band_by_what_was_seen_about_it() -> None:
    hazards = Hazards(strength=(1e-9, 1e-9, 1.0))
    parent, nothing = [0.01] * len(BANDS), [0.0] * len(BANDS)
    seen, spent = nothing.copy(), nothing.copy()
    seen[10], spent[10] = 8.0, 400.0  # twice the 0.01 · 400 = 4 that the parent would have foretold
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
        found = runs(index)
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
            (hazards.returned(before, now) if returns else None) or hazards.forget(before)
        if before is None or returns:
            watched[number] = Watched((number % 3,), now)
            hazards.watch(watched[number])
    if steps:
        hazards.watch(Watched((9,), now))
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
        return curve[runs(curve)[band][0]]

    def price(leaf: Leaf) -> tuple[float, float]:
        stamp = leaf.known.stamp  # in a band as soon as either sum says so: 256.8 - 192.8 may be just under 64
        entered = (band for band, start in enumerate(BANDS) if start <= now - stamp or stamp + start <= now)
        band = max(entered)
        rate = rate_of(leaf.known.cls, band)
        if leaf.known.prefix is not None and leaf.end <= leaf.known.shared:
            rate = max(rate, rate_of(leaf.known.prefix.last.cls, band))
        within = leaf.end <= keep_within_budget(leaf.history, NEXT_PROMPT, THRESHOLD, PAGE)
        return rate * ((1.0 - weight) * within + weight), rate

    def known(number: int) -> Conversation:
        """Of the one class, of the other, or of the one with some of it shared by what is used like the other."""
        kind = number % 3
        conversation = Conversation((kind % 2,), now, 0, 0, 0, shared=number % 50 * 2 * PAGE)
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
            order.add(last_id)
            continue
        chosen = sorted(leaves)[number % len(leaves)]
        if what == "use":
            order.discard(chosen)
            leaf = leaves.pop(chosen)
            last_id += 1
            leaves[last_id] = leaf._replace(last_access=float(clock), known=known(number))
            order.add(last_id)
            continue
        foreseen = order.upcoming(number % 3)
        victim = order.victim(number % 500 + 1)
        assert victim is not None
        if foreseen:
            assert foreseen[0].victim._replace(keep=victim.keep) == victim
            assert (foreseen[0].cost, foreseen[0].return_rate) == price(victim.leaf)
        assert price(victim.leaf) == min(map(price, leaves.values()))
        taken = range(victim.leaf.end, victim.keep, -PAGE)
        assert {price(victim.leaf._replace(end=end)) for end in taken} == {price(victim.leaf)}
        order.discard(victim.leaf_id)
        del leaves[victim.leaf_id]
        if victim.keep > victim.leaf.start:
            last_id += 1
            leaves[last_id] = victim.leaf._replace(end=victim.keep)
            order.add(last_id)


@pytest.mark.parametrize("wrapper", [lambda policy: policy, hinted, said_again])
def test_what_others_begin_with_is_priced_apart_from_what_follows_it_in_one_leaf(
    wrapper: Callable[[Policy], Policy],
) -> None:
    conversation = Conversation((0,), 0.0, 1, 0, 640, shared=320)
    conversation.prefix = SharedPrefix(0, 320)
    conversation.prefix.last = Use((1,), 0.0)
    policy = Policy(Rising({(0,): [1.0] * len(BANDS), (1,): [2.0] * len(BANDS)}), AnyPrompt(), THRESHOLD, 1.0)
    leaves = {1: Leaf(0, 640, 640, 1.0, conversation)}
    order = EvictionOrder(wrapper(policy), PAGE, leaves.get)
    order.add(1)
    for end, keep, rate in ((640, 320, 1.0), (320, 0, 2.0)):
        (foreseen,) = order.upcoming(1)
        victim = order.victim(1_000)
        assert victim is not None
        assert (victim.leaf.end, victim.keep, foreseen.return_rate) == (end, keep, rate)
        order.discard(1)
        leaves[1] = victim.leaf._replace(end=victim.keep)
        order.add(1)


# ---- conversations ----


def turn(stamp: float, prompt: int, context: int, name: int = 1) -> Turn:
    return Turn(stamp, prompt, 0, context, 0, lambda start, end, above: name * 1_000_000 + end)


def test_a_conversation_is_known_by_its_tokens_and_counts_its_turns() -> None:
    conversations = Conversations(Hazards())
    first = conversations.turn(turn(0, 1000, 1000), alone=True)
    other = conversations.turn(turn(5, 1000, 1000, name=2), alone=True)
    second = conversations.turn(turn(90, 1200, 1300), alone=True)
    assert (first.number, other.number, second.number) == (1, 2, 1)
    assert (first.turn, other.turn, second.turn) == (0, 0, 1)
    assert (first.cls, other.cls, second.cls) == ((0, 0), (0, 0), (1, 1))  # back after 60 to 120 s


def test_a_prompt_that_is_mostly_new_begins_another_conversation() -> None:
    conversations = Conversations(Hazards())
    conversations.turn(turn(0, 1000, 1000), alone=True)
    assert conversations.turn(turn(9, 5000, 5000), alone=True).turn == 0


def test_what_others_continue_is_nobodys_conversation() -> None:
    conversations = Conversations(Hazards())
    conversations.turn(turn(0, 1000, 1000), alone=False)
    assert conversations.turn(turn(9, 1100, 1100), alone=True).turn == 0
