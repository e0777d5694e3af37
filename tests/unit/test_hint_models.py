"""What hints make of a return model: groups, rates and expiries of leaves of which something is said."""

from __future__ import annotations

import math

import pytest

from radix_tlru import Leaf
from radix_tlru.hints.models import BANDS, DEAREST, HintedReturns, factor
from radix_tlru.hints.schema import HIGHEST, LONGEST_S, Hints, Range
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.policy.models import Group


def test_who_returns_soon_gets_a_new_price_each_time_that_half_as_much_time_is_left() -> None:
    returns, at, moves = HintedReturns(RecentTurns()), 0.0, []
    leaf = Leaf(0, 64, 64, 0.0, Conversation(0.0, 1, 0, 64, 0, hints=Hints(returns_in_s=100.0)))
    while at < 200.0:
        at = returns.group(leaf, at).expiry
        moves.append(at)
    assert moves == [*(100 - left for left in (64, 32, 16, 8, 4, 2, 1)), 200]
    assert returns.group(leaf, at) == RecentTurns().group(leaf, at), "it is not coming, and nothing is said of it"


@pytest.mark.parametrize("pace", [1.0, 2.0])  # turns a second
def test_who_returns_soon_is_as_dear_as_the_time_left_says_but_four_times_as_dear_at_most(pace: float) -> None:
    returns = HintedReturns(RecentTurns())
    now = 100.0
    returns.stamp(Leaf(0, 64, 64, 0.0, Conversation(0.0, 1, 0, 64, 0)))
    returns.stamp(Leaf(0, 64, 64, 0.0, Conversation(now, 2, 0, 64, 0, turn_index=pace * now)))
    rates = {}
    for left in (1.5, 40.0, 300.0):
        known = Conversation(61.0, 3, 0, 64, 0, turn_index=pace * 61.0, hints=Hints(returns_in_s=now - 61.0 + left))
        leaf = Leaf(0, 64, 64, 0.0, known)
        rates[left] = returns.rate(returns.group(leaf, now).number, pace * 61.0, now)
    # 39 or 78 turns ago: 1 / 40 or 1 / 79. The time left is rounded down to a power of 2.
    rate = 1 / (39 * pace + 1)
    assert rates == {
        1.5: pytest.approx(DEAREST * rate),
        40.0: pytest.approx(1 / (32 * pace)),
        300.0: pytest.approx(rate),
    }
    known = Conversation(now - 1.0, 4, 0, 64, 0, turn_index=pace * (now - 1.0), hints=Hints(returns_in_s=1.5))
    group = returns.group(Leaf(0, 64, 64, 0.0, known), now)
    assert returns.rate(group.number, pace * (now - 1.0), now) == pytest.approx(1 / pace), (
        "within a second, and less is not told"
    )


class Fresh(RecentTurns):
    """Told from others for ten turns."""

    __slots__ = ()

    def group(self, leaf: Leaf, now: float) -> Group:
        until = self.stamp(leaf) + 10.0
        return Group(1, until) if now < until else Group(0, math.inf)


def test_a_group_that_expires_in_turns_expires_in_seconds_at_the_pace_of_late() -> None:
    returns = HintedReturns(Fresh())
    seen = ((1, 100.0), (2, 105.0), (5, 120.0))  # 4 turns in 20 s
    first, older, leaf = (
        Leaf(0, 1_600, 1_600, 0.0, Conversation(stamp, 1, 0, 1_600, 0, turn_index=turn)) for turn, stamp in seen
    )
    same_turn = Leaf(0, 1_600, 1_600, 0.0, Conversation(130.0, 1, 0, 1_600, 0, turn_index=1))
    for each in (first, same_turn):
        returns.stamp(each)
    assert returns.group(same_turn, 130.0).expiry == 130.0 + 10, "no turn has passed: the pace is not known"
    for each in (first, leaf, older):  # time does not run backwards
        assert returns.stamp(each) == each.conversation.stamp
    assert returns.group(leaf, 120.0).expiry == 120.0 + 10 * 20 / 4
    assert returns.group(leaf._replace(conversation=None), 120.0).expiry == 120.0 + 5 * 20 / 4, "from turn 0 to 10"
    assert returns.stamp(leaf._replace(conversation=None)) == 0.0
    assert returns.group(leaf, 1e18).expiry > 1e18, "later, though 50 s make no difference there"


def test_conversations_that_have_ended_are_one_group_whoever_they_were() -> None:
    returns, ended = HintedReturns(Fresh()), Hints(conversation_ends=True)
    leaves = [
        Leaf(0, 64, 64, 0.0, Conversation(turn, 1, 0, 64, 0, turn_index=turn, hints=hints))
        for turn in (0.0, 50.0)
        for hints in (None, ended)
    ]
    for leaf in leaves:
        returns.stamp(leaf)
    old, old_ended, fresh, fresh_ended = (returns.group(leaf, 50.0).number for leaf in leaves)
    assert old_ended == fresh_ended
    assert len({old, fresh, old_ended}) == 3


def test_priorities_are_told_apart_in_eight_bands() -> None:
    """However many priorities clients use, a decision compares no more groups than that."""
    assert len(BANDS) == 8
    returns = HintedReturns(RecentTurns())
    known = Conversation(0.0, 1, 0, 1_600, 0)
    groups, factors = {returns.group(Leaf(0, 1_600, 1_600, 0.0, known), 1.0).number}, []
    for priority in range(HIGHEST + 1):
        known = Conversation(0.0, 1, 0, 1_600, 0)
        known.hints = Hints(retention=(Range(0, None, priority, 60.0),))
        groups.add(returns.group(Leaf(0, 1_600, 1_600, 0.0, known), 1.0).number)
        factors.append(factor(priority))
    assert len(groups) == len(BANDS) == len(set(factors))
    assert factors == sorted(factors)
    assert factor(40) == factor(43) == factor(35) == 1.0, "the nearest band; 43 is as near to 51"


@pytest.mark.parametrize(
    "hints",
    [
        Hints(conversation_ends=True),
        Hints(returns_in_s=2.0),
        Hints(retention=(Range(0, None, HIGHEST, 60.0),)),
    ],
)
def test_hints_say_nothing_of_tokens_that_others_share(hints: Hints) -> None:
    returns, now = HintedReturns(RecentTurns()), 50.0
    known = Conversation(now, 1, 0, 1_600, 512, turn_index=now, hints=hints)
    whole, shared = (Leaf(0, end, 1_600, 0.0, known) for end in (1_600, 512))
    returns.stamp(whole)
    plain = returns.rate(returns.group(whole._replace(conversation=None), now).number, 0.0, now)
    assert returns.rate(returns.group(shared, now).number, 0.0, now) == plain
    assert returns.rate(returns.group(whole, now).number, 0.0, now) in (0.0, DEAREST * plain)


class Deep(RecentTurns):
    """Beyond 640 tokens told from others."""

    __slots__ = ()

    def floor(self, leaf: Leaf) -> int:
        return 640


def test_a_leaf_is_taken_no_further_than_what_is_said_of_its_last_token() -> None:
    hints = Hints(retention=(Range(800, 1_200, 0, 60.0),))
    known, returns = Conversation(0.0, 1, 0, 1_600, 512, hints=hints), HintedReturns(Deep())
    ends = (1_600, 1_200, 800, 640, 512)
    assert [returns.floor(Leaf(0, end, 1_600, 0.0, known)) for end in ends] == [1_200, 800, 640, 512, 0]


@pytest.mark.parametrize("priority", [12, 84])
def test_a_lasting_group_of_a_leaf_with_a_priority_is_worth_what_is_asked_for(priority: int) -> None:
    returns = HintedReturns(LearnedReturns())
    hints = Hints(retention=(Range(0, None, priority, LONGEST_S),))
    leaf = Leaf(0, 64, 64, 0.0, Conversation(0.0, 1, 0, 64, 0, features=NOTHING_KNOWN, hints=hints))
    least = returns.rate(returns.group(leaf, 1.0).number, 0.0, 1.0) / 2
    lasting = returns.lasting_group(leaf, 1.0, least)
    assert returns.rate(lasting.number, 0.0, 1.0) >= least
