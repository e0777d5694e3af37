"""To look at what goes next changes nothing that decides: one rank of several may have been looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from radix_tlru.hints.models import with_hints
from radix_tlru.learning.age_bands import AGES, BANDS
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.policy.entries import Entries
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Recency
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import preview
from tests.helpers.turns import conversation

LENGTH = 800


@pytest.mark.parametrize("wrapper", [lambda policy: policy, with_hints, reusable_only])
def test_a_look_beyond_the_time_of_the_order_leaves_nothing_behind(wrapper: Callable[[Policy], Policy]) -> None:
    def victims(looks: int) -> list[object]:
        """What is decided, and by which prices, if somebody looks so often meanwhile."""
        policy = Policy(LearnedReturns(), FixedPrompt(100), threshold=600, median_weight=0.0)
        leaves: dict[int, Leaf] = {}
        order = EvictionOrder(wrapper(policy), 1, leaves.get)
        found: list[object] = []
        for number, stamp in enumerate((0.0, 1.0, 30.0, BANDS[-1], BANDS[-1] + 1)):
            # Pending until an eviction asks, while the time of the order is that of the leaf before.
            known = conversation(stamp, number, turn=number % 2)
            leaves[number] = Leaf(0, LENGTH, LENGTH, float(number), known)
            order.add_leaf(number)
            for _ in range(looks):
                assert len(preview((order,), 2)) == 2
            victim = order.choose_victim(1)
            assert victim is not None
            prices = {leaf_id: (bucket.group, bucket.level) for leaf_id, bucket in order._entries.bucket.items()}
            found.append((victim.leaf_id, victim.keep, prices, dict(order._entries.expiry), order._now, order.entries))
        return found

    assert victims(looks=2) == victims(looks=0)


def test_what_goes_next_is_told_as_of_the_newest_use_even_if_that_leaf_has_no_price_yet() -> None:
    returns = LearnedReturns()
    falls, stays, newest = (conversation(stamp, turn=kind) for kind, stamp in enumerate((0.0, 0.0, 300.0)))
    steps = len(AGES) - 1
    returns._rows = {
        falls.features: [1.0] * 4 + [0.001] * (steps - 4),
        stays.features: [0.02] * steps,
        newest.features: [1.0] * steps,
    }
    leaves = {number: Leaf(0, LENGTH, LENGTH, 1.0, known) for number, known in enumerate((falls, stays, newest))}
    order = EvictionOrder(Policy(returns, AnyPrompt(), threshold=600, median_weight=1.0), 1, leaves.get)
    for number, cheapest in ((0, 0), (1, 1), (2, 0)):
        order.add_leaf(number)
        (told,) = preview((order,), 1)
        victim = order.choose_victim(LENGTH)
        assert victim is not None
        assert told.victim.leaf_id == victim.leaf_id == cheapest


def test_prices_are_told_as_of_the_time_of_the_order_though_every_leaf_was_used_before() -> None:
    leaves = {number: Leaf(0, LENGTH, LENGTH, float(number)) for number in range(3)}
    order = EvictionOrder(Policy(Recency(), AnyPrompt(), threshold=600, median_weight=1.0), 1, leaves.get)
    for number in leaves:
        order.add_leaf(number)
    order.advance_clock(1_000.0)
    assert [each.price.return_rate for each in preview((order,), 3)] == [1 / 1_001, 1 / 1_000, 1 / 999]


@pytest.mark.parametrize("in_force", ["learned", "lru"])
def test_a_decision_meets_few_expired_entries_and_none_under_another_policy(
    in_force: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 leaves with learned rates, that expire by seconds. lru counts by lookups: 1,000 of them in each second."""
    met: list[int] = []
    is_expiry = Entries._is_expiry
    monkeypatch.setattr(Entries, "_is_expiry", lambda entries, *entry: (met.append(1), is_expiry(entries, *entry))[1])
    leaves: dict[int, Leaf] = {}
    learned = Policy(LearnedReturns(), AnyPrompt(), threshold=600, median_weight=1.0)
    order = EvictionOrder(learned, 1, leaves.get)
    for number in range(500):
        leaves[number] = Leaf(0, LENGTH, LENGTH, 1_000.0 * number, conversation(float(number), number))
        order.add_leaf(number)
    order.choose_victim(1)
    if in_force == "lru":
        order.switch_policy(replace(learned, returns=Recency()))
    else:
        for number in range(480):  # the first, which leave their expiries behind
            order.remove_leaf(number)
        order.advance_clock(1e5)
        order.choose_victim(1)  # drops some of those
    met.clear()
    assert len(preview((order,), 5)) == 5
    assert len(met) == (0 if in_force == "lru" else 32)


def test_leaves_that_wait_for_a_price_are_looked_at_whatever_the_clock_in_force() -> None:
    """By the clock of lru it was used at 11, by stamps at 10 s."""
    leaves = {1: Leaf(0, LENGTH, LENGTH, 11.0, conversation(10.0, 1))}
    order = EvictionOrder(Policy(Recency(), AnyPrompt(), threshold=600, median_weight=1.0), 1, leaves.get)
    order.add_leaf(1)
    order.choose_victim(1)
    order.switch_policy(Policy(LearnedReturns(), AnyPrompt(), threshold=600, median_weight=1.0))
    (found,) = preview((order,), 2)
    assert found.victim.leaf_id == 1
