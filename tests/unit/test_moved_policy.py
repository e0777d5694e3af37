"""ξ, w or a model moves while many leaves are ordered: few are looked at, and a victim is always found."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.hints.models import HintedReturns
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Recency, ReturnModel
from radix_tlru.policy.order import CORRECTED, REPRICED, EvictionOrder, Victim
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import keep_within_budget
from tests.helpers.leaves import Leaves, unbounded_decisions
from tests.helpers.turns import conversation

PAGE = 16
THRESHOLD, NEXT_PROMPT = 600, 100
RECENCY = Recency()
LRU = Policy(RECENCY, AnyPrompt(), THRESHOLD, median_weight=1.0)


class CountedLeaves(Leaves):
    """Leaves that count how often the order looks at one."""

    looks = 0

    def get(self, leaf_id: int) -> Leaf | None:  # type: ignore[override]
        self.looks += 1
        return super().get(leaf_id)


def moved(threshold: int, weight: float, returns: ReturnModel = RECENCY) -> Policy:
    return Policy(returns, FixedPrompt(NEXT_PROMPT), threshold, weight)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 60)), min_size=1, max_size=200),
    moves=st.lists(st.tuples(st.integers(120, 4_000), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=8),
    decisions=st.integers(1, 8),
)
def test_a_moved_threshold_reprices_few_leaves_and_the_cheapest_of_them_goes(
    sizes: list[tuple[int, int]], moves: list[tuple[int, float]], decisions: int
) -> None:
    leaves = CountedLeaves(moved(THRESHOLD, 0.0), PAGE)
    for leaf_id, (end, trimmed) in enumerate(sizes):
        leaves.appear(leaf_id, Leaf(0, end * PAGE, (end + trimmed) * PAGE, float(leaf_id)))
    leaves.order.choose_victim(1)
    newest = float(len(sizes) - 1)

    def cost(leaf: Leaf) -> tuple[float, float]:
        rate = 1.0 / (newest - leaf.last_access + 1.0)
        protected = keep_within_budget(leaf.history, NEXT_PROMPT, threshold, PAGE) >= leaf.end
        return rate * (weight + (1.0 - weight) * protected), rate

    def decide() -> Victim:
        leaves.looks = 0
        leaves.order.renew_prices()
        victim = leaves.order.choose_victim(10**6)
        assert victim is not None
        assert leaves.looks <= REPRICED + CORRECTED + 2, "… first by an old price, what was left of the last victim"
        priced = [
            each
            for each, bucket in leaves.order._entries.bucket.items()
            if bucket.pricing is leaves.order._pricings.in_force
        ]
        assert cost(victim.leaf) == min(cost(leaves[each]) for each in priced)
        assert len(priced) == len(leaves) or len(priced) >= REPRICED
        return victim

    for threshold, weight in moves:
        leaves.looks = 0
        leaves.order.switch_policy(moved(threshold, weight))
        assert leaves.looks <= REPRICED + 1
        for _ in range(decisions):
            leaves.carry_out(decide())
            if not leaves:
                return
    for _ in range(len(leaves) // REPRICED + 1):
        decide()
    assert len(leaves.order._pricings) == 1, "all leaves have been priced by the last policy"
    victim = decide()
    assert cost(victim.leaf) == min(map(cost, leaves.values())), "the cheapest of all"
    expected = sum(
        max(leaf.end - keep_within_budget(leaf.history, NEXT_PROMPT, threshold, PAGE), 0) for leaf in leaves.values()
    )
    assert leaves.order.over_budget == expected


@pytest.mark.parametrize("returns", [RECENCY, LearnedReturns()])
@given(weights=st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]), min_size=1, max_size=4), taken=st.integers(0, 9))
def test_an_order_that_follows_w_is_as_if_it_had_had_it_from_the_start(
    returns: ReturnModel, weights: list[float], taken: int
) -> None:
    held: dict[int, Leaf] = {}
    for n in range(1, 11):
        conversation = Conversation(100.0 * (7 * n % 11), n, 0, 1_000, 0)
        conversation.features = NOTHING_KNOWN
        held[n] = Leaf(0, 100 * n, 100 * n, float(7 * n % 11), conversation)
    with unbounded_decisions():
        order, fresh = (
            EvictionOrder(moved(THRESHOLD, 0.5, returns), 1, held.get),
            EvictionOrder(moved(THRESHOLD, weights[-1], returns), 1, held.get),
        )
        for leaf_id in held:
            order.add_leaf(leaf_id)
            fresh.add_leaf(leaf_id)
        for weight in weights:
            order.choose_victim(1)
            order.switch_policy(moved(THRESHOLD, weight, returns))
        for _ in range(taken):
            victim = order.choose_victim(10_000)
            assert victim == fresh.choose_victim(10_000)
            assert victim is not None
            order.remove_leaf(victim.leaf_id)
            fresh.remove_leaf(victim.leaf_id)
            rest = held.pop(victim.leaf_id)._replace(end=victim.keep)
            if victim.keep:
                held[100 + victim.leaf_id] = rest
                order.add_leaf(100 + victim.leaf_id)
                fresh.add_leaf(100 + victim.leaf_id)
            assert order.over_budget == fresh.over_budget


def test_at_the_end_of_a_turn_a_leaf_without_a_price_tells_the_time() -> None:
    """It was used 1,000 s after the others, whose groups have expired by then: those get their new prices at once."""
    leaves = Leaves(Policy(LearnedReturns(), AnyPrompt(), THRESHOLD, median_weight=1.0))
    for leaf_id, stamp in enumerate((0.0, 1.0, 2.0, 1_000.0)):
        if stamp == 1_000.0:
            leaves.order.choose_victim(1)  # the others get a price
        conversation = Conversation(stamp, leaf_id, 0, 1_000, 0)
        conversation.features = NOTHING_KNOWN
        leaves.appear(leaf_id, Leaf(0, 960, 960, float(leaf_id), conversation))
    assert sorted(leaves.order._entries.expired(1_000.0, 9)) == [0, 1, 2]
    leaves.order.renew_prices()
    assert [*leaves.order._entries.expired(1_000.0, 9)] == []


def test_without_price_levels_a_move_of_the_threshold_or_of_w_gives_no_leaf_a_new_price() -> None:
    leaves = CountedLeaves(LRU)
    for leaf_id in range(100):
        leaves.appear(leaf_id, Leaf(0, 100, 300, float(leaf_id)))
    leaves.order.choose_victim(1)
    leaves.looks = 0
    for threshold, weight in ((200, 1.0), (4_000, 0.5), (4_000, 0.0)):
        leaves.order.switch_policy(Policy(Recency(), AnyPrompt(), threshold, weight))
    assert leaves.looks == 0
    assert leaves.evict(100)[0] == 0


def test_a_return_model_that_comes_while_old_entries_are_in_front_finds_a_victim() -> None:
    leaves = Leaves(LRU)
    leaves.appear(1, Leaf(0, 100, 100, 0.0))
    for last_access in range(1, 200):  # each use leaves an entry behind
        leaf = leaves[1]
        leaves.vanish(1)
        leaves.appear(1, leaf._replace(last_access=float(last_access)))
        leaves.order.advance_clock(float(last_access))
    leaves.order.switch_policy(Policy(HintedReturns(Recency()), AnyPrompt(), THRESHOLD, median_weight=1.0))
    assert leaves.evict(100)[0] == 1


def used(leaf_id: int, last_access: float, stamp: float, end: int = 960) -> Leaf:
    """A leaf of a history of 960 tokens, of which those beyond 464 are TEL-safe, that a turn used at ``stamp`` (s)."""
    return Leaf(0, end, 960, last_access, conversation(stamp, leaf_id))


def test_a_return_model_that_comes_back_goes_on_with_its_own_time() -> None:
    """The leaf that was used last by the clock of lru was used first by stamps, and waits for a new price."""
    learned = Policy(LearnedReturns(), AnyPrompt(), THRESHOLD, median_weight=1.0)
    leaves = Leaves(LRU, PAGE)
    for number in range(1, REPRICED + 1):
        leaves.appear(number, used(number, float(number), stamp=100.0 + number))
    leaves.appear(REPRICED + 1, used(REPRICED + 1, REPRICED + 1.0, stamp=1.0))
    leaves.order.choose_victim(1)
    leaves.order.switch_policy(learned)
    leaves.order.renew_prices()
    assert leaves.order.advance_clock(0.0) == 100.0 + REPRICED
    leaves.order.switch_policy(LRU)
    assert leaves.order.advance_clock(0.0) == REPRICED + 1.0
    assert leaves.evict(1_000)[0] == REPRICED + 1, "the one that has a price by lru"
    assert leaves.evict(1_000)[0] == 1


@pytest.mark.parametrize("stamp", [0.5, 1e6])
def test_whatever_the_clock_in_force_those_that_were_the_cheapest_get_their_new_prices_first(stamp: float) -> None:
    """Leaves of tlru wait behind one of lru, half of them TEL-safe, when rates come that are learned in s."""
    looked: list[int] = []

    class Watched(Leaves):
        def get(self, leaf_id: int) -> Leaf | None:  # type: ignore[override]
            looked.append(leaf_id)
            return super().get(leaf_id)

    leaves = Watched(LRU, PAGE)
    leaves.appear(0, used(0, 0.0, stamp))
    leaves.order.choose_victim(1)
    leaves.order.switch_policy(moved(THRESHOLD, 0.0))
    safe, other = range(1, REPRICED + 1), range(REPRICED + 1, 2 * REPRICED + 1)
    for leaf_id in (*safe, *other):
        leaves.appear(leaf_id, used(leaf_id, 1_000.0 + leaf_id, stamp, end=960 if leaf_id in safe else 464))
    leaves.order.switch_policy(Policy(LearnedReturns(), AnyPrompt(), THRESHOLD, median_weight=1.0))
    looked.clear()
    leaves.order.renew_prices()
    assert looked == [0, *safe[: REPRICED - 1]]


def test_groups_that_expire_in_seconds_do_not_expire_by_the_clock_of_lru() -> None:
    """300 leaves, one each second, and a clock of lookups that is slow or fast. As it counts, nothing depends on it."""

    def decided(lookups_a_second: float) -> list[tuple[int, list[int]]]:
        """The victims under lru after a minute of learned rates; and each time the leaves that have a new price."""
        leaves = Leaves(Policy(LearnedReturns(), AnyPrompt(), THRESHOLD, median_weight=1.0), PAGE)
        for leaf_id in range(300):
            conversation = Conversation(float(leaf_id), leaf_id, 0, 1_000, 0)
            conversation.features = NOTHING_KNOWN
            leaves.appear(leaf_id, Leaf(0, 960, 960, leaf_id * lookups_a_second, conversation))
        leaves.evict(PAGE)
        leaves.order.switch_policy(LRU)
        found = []
        for _ in range(20):
            leaves.order.renew_prices()
            victim = leaves.order.choose_victim(1_000)
            assert victim is not None
            leaves.carry_out(victim)
            priced, in_force = leaves.order._entries.bucket, leaves.order._pricings.in_force
            found.append((victim.leaf_id, [each for each, bucket in priced.items() if bucket.pricing is in_force]))
        return found

    assert decided(0.01) == decided(1.0) == decided(100.0)


def test_what_a_decision_passes_over_as_it_may_correct_no_more_comes_first_at_the_next() -> None:
    """200 leaves of one age, all free at ξ = 4,000 and dear at 200. No turn ends: decisions alone price them."""
    returns = LearnedReturns()
    leaves = Leaves(Policy(returns, FixedPrompt(NEXT_PROMPT), 4_000, median_weight=0.0))
    for leaf_id in range(200):
        conversation = Conversation(0.0, leaf_id, 0, 1_000, 0)
        conversation.features = NOTHING_KNOWN
        leaves.appear(leaf_id, Leaf(0, 960, 960, float(leaf_id), conversation))
    leaves.order.choose_victim(1)
    leaves.order.switch_policy(Policy(returns, FixedPrompt(NEXT_PROMPT), 200, median_weight=0.0))
    priced = []
    for taken in range(20):
        victim = leaves.order.choose_victim(10_000)
        assert victim is not None
        in_force = leaves.order._pricings.in_force
        prices = leaves.order._entries.bucket
        assert prices[victim.leaf_id].pricing is in_force
        priced.append(taken + sum(bucket.pricing is in_force for bucket in prices.values()))
        leaves.vanish(victim.leaf_id)
    assert priced[0] <= REPRICED + CORRECTED
    assert all(more == fewer + 1 for fewer, more in pairwise(priced[2:])), "a decision may always correct one"


@pytest.mark.parametrize("moves", [1, 12])
def test_of_many_leaves_a_decision_looks_at_few_however_many_are_dearer_than_before(moves: int) -> None:
    """Each path has lost 3,000 tokens: at ξ = 4,000 another 900 are free (4,000 - 3,000 - 100), at 200 none."""
    leaves = CountedLeaves(moved(4_000, 0.0))
    for leaf_id in range(5_000):
        end = 1_000 + leaf_id % 2_000
        leaves.appear(leaf_id, Leaf(0, end, end + 3_000, last_access=leaf_id))
    leaves.order.choose_victim(1)
    for number in range(moves):
        leaves.looks = 0
        leaves.order.switch_policy(moved(200 - 5 * number, 0.0))
        assert leaves.looks <= REPRICED + 1, "repriced, what was left of the last victim"
        leaves.looks = 0
        victim = leaves.order.choose_victim(1)
        assert victim is not None
        assert leaves.looks <= REPRICED + CORRECTED + 1
        leaves.carry_out(victim)
        leaves.order.renew_prices()
    assert len(list(leaves.order._pricings.comparable_buckets())) <= 4 * 2, "two levels of each policy that is compared"
