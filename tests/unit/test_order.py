"""The order alone, without a cache: a dictionary of leaves stands where the tree would be."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from radix_tlru.hints.models import HintedReturns
from radix_tlru.learning.records import Conversation
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Recency
from radix_tlru.policy.order import EvictionOrder, TokenPrice, Victim
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import PreviewedVictim, preview
from radix_tlru.policy.tel import keep_within_budget
from tests.helpers.leaves import Leaves, unbounded_decisions

PAGE = 16
THRESHOLD, NEXT_PROMPT = 600, 100
TLRU = Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.0)
LRU = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)


def upcoming(order: EvictionOrder, count: int) -> list[PreviewedVictim]:
    """What an order would evict next, by a look at all of its leaves."""
    with unbounded_decisions():
        return preview((order,), count)


def conversation(history: int, last_access: float, start: int = 0) -> Leaf:
    return Leaf(start, history, history, last_access)


def test_the_tail_beyond_the_budget_goes_before_an_older_leaf_within_it() -> None:
    leaves = Leaves(TLRU)
    leaves.appear(1, conversation(400, last_access=1))  # 400 + 100 ≤ 600: all of it is safe
    leaves.appear(2, Leaf(0, 1500, 2000, last_access=0))  # 2,000 + 100 - 600 = 1,500: nothing left to give
    leaves.appear(3, conversation(2000, last_access=2))  # 500 tokens are safe
    assert leaves.order.over_budget == 400 + 0 + 500
    assert leaves.evict(10_000) == (1, 400, "tel_safe")
    assert leaves.evict(10_000) == (3, 500, "tel_safe")
    assert leaves.order.over_budget == 0
    assert leaves.evict(10_000) == (2, 1500, "lru")
    assert leaves.evict(10_000) == (1001, 1500, "lru")
    assert leaves.order.choose_victim(1) is None


def test_a_policy_without_a_threshold_says_of_no_token_whether_it_is_safe() -> None:
    leaves = Leaves(LRU)
    leaves.appear(1, conversation(400, last_access=1))
    assert leaves.order.over_budget is None
    [victim] = upcoming(leaves.order, 9)
    assert victim.price == (1, 1, None, 1)  # a token used last costs 1 / 1
    leaves.order.switch_policy(TLRU)
    leaves.order.renew_prices()
    assert leaves.order.over_budget == 400
    leaves.order.switch_policy(LRU)
    assert leaves.evict(10_000) == (1, 400, "lru")


def test_an_eviction_takes_what_is_asked_for_to_the_page() -> None:
    leaves = Leaves(TLRU, page_size=16)
    leaves.appear(1, conversation(2048, last_access=1))
    assert leaves.evict(20) == (1, 32, "tel_safe")
    assert leaves.evict(1) == (1001, 16, "tel_safe")


def test_a_leaf_is_cut_no_further_than_where_it_begins() -> None:
    leaves = Leaves(TLRU)
    leaves.appear(1, conversation(2000, last_access=1, start=1900))
    assert leaves.evict(300) == (1, 100, "tel_safe")


def test_a_leaf_evicted_whole_has_the_price_of_its_middle_token() -> None:
    leaves = Leaves(TLRU)
    # 2,000 + 100 - 600 = 1,500 tokens must stay; the newest use is 10. The middle token of what becomes unusable is
    leaves.appear(1, Leaf(1500, 2000, 2000, last_access=4, usable_without=1500))  # at 1,750: it is free
    leaves.appear(2, Leaf(1300, 2000, 2000, last_access=10, usable_without=900))  # at 1,450: 1 of 1/1
    leaves.appear(3, Leaf(1600, 2000, 2000, last_access=7, usable_without=0))  # at 1,000: 1 of 1/4
    leaves.appear(4, Leaf(1600, 1700, 2000, last_access=0, usable_without=1600))  # at 1,650: free
    leaves.appear(5, Leaf(100, 300, 2000, last_access=9, usable_without=2000))  # none: it is of no use
    leaves.appear(6, Leaf(900, 1500, 2000, last_access=8, usable_without=900))  # at 1,200: 1 of 1/3
    victims = upcoming(leaves.order, 9)
    assert [each.victim.leaf_id for each in victims] == [4, 1, 5, 3, 6, 2]
    assert [each.price.cost for each in victims] == [0, 0, 0, 1 / 4, 1 / 3, 1]
    assert leaves.order.over_budget == 500 + 0 + 0 + 100 + 200 + 0
    taken = [leaves.evict(1) for _ in range(6)]
    assert [tokens for _, tokens, _ in taken] == [100, 500, 200, 400, 600, 700]
    assert [phase for _, _, phase in taken] == ["tel_safe"] * 3 + ["lru"] * 3


def test_a_used_leaf_moves_behind_the_others_though_its_entry_is_old() -> None:
    leaves = Leaves(LRU)
    for leaf_id in (1, 2, 3):
        leaves.appear(leaf_id, conversation(100, last_access=leaf_id))
    leaves[1] = leaves[1]._replace(last_access=9)  # used without the order being told
    assert [leaves.evict(100)[0] for _ in range(3)] == [2, 3, 1]


@pytest.mark.parametrize(("weight", "first"), [(0.0, "young safe"), (0.3, "young safe"), (0.6, "old"), (1.0, "old")])
def test_the_weight_lets_age_count_against_being_safe(weight: float, first: str) -> None:
    leaves = Leaves(Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, weight))
    leaves.appear(1, Leaf(0, 1500, 2000, last_access=0))  # age 99 + 1, protected: costs 1 / 100
    leaves.appear(2, conversation(2000, last_access=50))  # age 49 + 1, safe: costs w / 50
    leaves.appear(3, Leaf(0, 1500, 2000, last_access=99))  # the newest
    assert leaves.order.choose_victim(1).leaf_id == {"old": 1, "young safe": 2}[first]  # type: ignore[union-attr]


def test_full_weight_is_lru_whatever_the_threshold() -> None:
    weighted, lru = (Leaves(policy) for policy in (Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, 1.0), LRU))
    for leaves in (weighted, lru):
        for leaf_id, history in enumerate([300, 5000, 601, 2000, 100, 9000]):
            leaves.appear(leaf_id, conversation(history, last_access=(leaf_id * 5) % 6))
    for _ in range(6):
        oldest = lru.order.choose_victim(10**6)
        assert oldest is not None
        tokens = 0
        while tokens < oldest.leaf.end:  # what is safe and what is not go in two cuts
            tokens += weighted.evict(10**6)[1]
        assert (tokens, oldest.leaf_id) == (lru.evict(10**6)[1], oldest.leaf_id)
        assert oldest.leaf_id not in weighted


def test_a_prompt_model_of_several_levels_takes_the_unlikely_loss_first() -> None:
    class Three:
        probabilities = (0.0, 0.25, 1.0)

        def next_prompt(self, leaf: Leaf, level: int) -> int | None:
            return (300, 100, None)[level]

    leaves = Leaves(Policy(Recency(), Three(), THRESHOLD, median_weight=0.0))
    leaves.appear(1, conversation(2000, last_access=0))
    leaves.appear(2, conversation(2000, last_access=1))
    # Beyond 2,000 + 300 - 600 = 1,700 free, beyond 2,000 + 100 - 600 = 1,500 at a quarter of the cost.
    taken = [leaves.evict(10**6) for _ in range(6)]
    assert [tokens for _, tokens, _ in taken] == [300, 300, 200, 200, 1500, 1500]
    assert [phase for _, _, phase in taken] == ["tel_safe"] * 2 + ["lru"] * 4


def test_where_no_level_is_free_no_token_is_safe() -> None:
    class Two:
        probabilities = (0.25, 1.0)

        def next_prompt(self, leaf: Leaf, level: int) -> int | None:
            return (100, None)[level]

    leaves = Leaves(Policy(Recency(), Two(), THRESHOLD, median_weight=0.0))
    leaves.appear(1, conversation(2000, last_access=0))
    assert leaves.order.over_budget == 0
    assert leaves.evict(10_000) == (1, 500, "lru")
    assert leaves.order.over_budget == 0


@given(
    history=st.integers(1, 2000),
    trimmed=st.integers(0, 500),
    threshold=st.integers(101, 1200),
    weight=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_every_token_costs_what_the_formula_says(history: int, trimmed: int, threshold: int, weight: float) -> None:
    class Two:
        probabilities = (0.0, 0.5, 1.0)

        def next_prompt(self, leaf: Leaf, level: int) -> int | None:
            return (300, 100, None)[level]

    def exceeds(tokens: int) -> float:
        return 0.0 if tokens >= 300 else 0.5 if tokens >= 100 else 1.0

    leaf = Leaf(0, history, history + trimmed, last_access=0.0)
    leaves = Leaves(Policy(Recency(), Two(), threshold, weight))
    leaves.appear(1, leaf)
    costs = [
        (each.price.cost, each.price.exceed_probability)
        for each in upcoming(leaves.order, 99)
        for _ in taken(each.victim)
    ]
    missing = range(trimmed + 1, history + trimmed + 1)  # L - X, once a token is taken
    assert costs == [
        ((1 - weight) * exceeds(threshold - tokens) + weight, exceeds(threshold - tokens)) for tokens in missing
    ]
    assert leaves.order.over_budget == sum(not exceed for _, exceed in costs)
    leaves.vanish(1)
    leaves.appear(2, leaf._replace(start=history // 3, usable_without=history // 3))
    [whole] = upcoming(leaves.order, 99)
    own = history - history // 3
    assert len(taken(whole.victim)) == own
    middle = costs[own - own // 2 - 1]  # the token behind the depth in the middle
    assert (whole.price.cost, whole.price.exceed_probability) == middle


def taken(victim: Victim) -> range:
    return range(victim.keep, victim.leaf.end)


def test_the_next_victims_are_told_with_what_a_token_of_them_costs() -> None:
    weight = 0.5
    leaves = Leaves(Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, weight))
    leaves.appear(1, conversation(2000, last_access=0))  # 500 of it are safe
    leaves.appear(2, conversation(900, last_access=3))  # as of this one; age 3 + 1 and 0 + 1
    victims = upcoming(leaves.order, 5)
    assert [(each.victim.leaf_id, each.victim.leaf.end, each.victim.keep) for each in victims] == [
        (1, 2000, 1500),
        (1, 1500, 0),
        (2, 900, 400),
        (2, 400, 0),
    ]
    assert [each.price for each in victims] == [
        TokenPrice(weight / 4, 1 / 4, 0, weight),
        TokenPrice(1 / 4, 1 / 4, 1, weight),
        TokenPrice(weight, 1, 0, weight),
        TokenPrice(1, 1, 1, weight),
    ]
    assert leaves.evict(10) == (1, 10, "tel_safe")  # nothing has changed


def test_to_look_ahead_changes_nothing_of_the_order_nor_of_what_its_models_remember() -> None:
    returns = HintedReturns(Recency())
    leaves = Leaves(Policy(returns, FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.5))
    for leaf_id, history in enumerate((2000, 1500, 3000, 900)):
        known = Conversation(10.0 * leaf_id, leaf_id, 0, history, 0)
        leaves.appear(leaf_id, Leaf(0, history, history, float(leaf_id**2), known))
    leaves[0] = leaves[0]._replace(last_access=20.0)  # used, so that its entry has to be put right

    def state() -> list[object]:
        order = leaves.order
        buckets = [
            (bucket.group, bucket.level, list(bucket.in_order()), bucket.is_priced)
            for bucket in order._pricings.buckets()
        ]
        entries = order._entries
        places = [(leaf_id, bucket.group, bucket.level) for leaf_id, bucket in entries.bucket.items()]
        numbers = dict(entries.key), dict(entries.expiry), dict(entries.safe_tokens)
        others = list(order._pending), list(entries.expired(math.inf, 9)), len(entries), order._now, entries.over_budget
        return [buckets, places, numbers, others, len(order._prices), copy.deepcopy(vars(returns))]

    before = state()
    assert leaves.order.over_budget == 4 * (THRESHOLD - NEXT_PROMPT)
    assert len(upcoming(leaves.order, 8)) == 8
    assert state() == before


@pytest.mark.parametrize("policy", [LRU, TLRU])
def test_a_look_at_a_large_order_judges_few_leaves_and_foresees_the_victims(policy: Policy) -> None:
    leaves, asked = Leaves(policy), list[int]()
    for number in range(1, 5_001):
        leaves.appear(number, conversation(50 + 7 * number % 900, last_access=number))
    for _ in range(100):
        leaves.evict(100)
    get = leaves.order._leaf_of
    leaves.order._leaf_of = lambda leaf_id: (asked.append(leaf_id), get(leaf_id))[1]
    foreseen = [(each.victim.leaf_id, each.victim.keep) for each in preview((leaves.order,), 5)]
    assert len(set(asked)) <= 19, "six of each kind, and the one that tells the time"
    leaves.order._leaf_of = get
    for leaf_id, keep in foreseen:
        victim = leaves.order.choose_victim(10_000)
        assert victim is not None
        assert (victim.leaf_id, victim.keep) == (leaf_id, keep)
        leaves.vanish(leaf_id)
    assert len(foreseen) == 5


def test_a_look_finds_as_many_victims_as_it_is_asked_for() -> None:
    leaves = Leaves(LRU)
    for number in range(1, 101):
        leaves.appear(number, conversation(50, last_access=number))
    leaves.evict(50)  # all have a price now
    assert [each.victim.leaf_id for each in preview((leaves.order,), 30)] == list(range(2, 32))


class OrderAgainstAScan(RuleBasedStateMachine):
    """Whatever leaves do, the order's next victim is the one that a look at all of them would choose."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = Leaves(TLRU, PAGE)
        self.next_id = 0
        self.clock = 0.0

    @rule(
        pages=st.integers(1, 80),
        trimmed=st.integers(0, 40),
        start=st.floats(0, 0.9),
        usable_without=st.none() | st.floats(0, 1.0),
    )
    def appear(self, pages: int, trimmed: int, start: float, usable_without: float | None) -> None:
        end = pages * PAGE
        self.next_id += 1
        self.clock += 1
        leaf = Leaf(int(start * pages) * PAGE, end, end + trimmed * PAGE, self.clock)
        if usable_without is not None:
            leaf = leaf._replace(usable_without=int(usable_without * leaf.start / PAGE) * PAGE)
        self.leaves.appear(self.next_id, leaf)

    @precondition(lambda self: self.leaves)
    @rule(which=st.integers(0, 10**6))
    def lose_what_was_usable_without_it(self, which: int) -> None:
        leaf_id = sorted(self.leaves)[which % len(self.leaves)]
        if self.leaves[leaf_id].usable_without:
            lost = self.leaves[leaf_id]._replace(usable_without=0)
            self.leaves.vanish(leaf_id)
            self.leaves.appear(leaf_id, lost)

    @precondition(lambda self: self.leaves)
    @rule(which=st.integers(0, 10**6))
    def use(self, which: int) -> None:
        self.clock += 1
        leaf_id = sorted(self.leaves)[which % len(self.leaves)]
        self.leaves[leaf_id] = self.leaves[leaf_id]._replace(last_access=self.clock)

    @precondition(lambda self: self.leaves)
    @rule(which=st.integers(0, 10**6))
    def lock_and_unlock(self, which: int) -> None:
        leaf_id = sorted(self.leaves)[which % len(self.leaves)]
        leaf = self.leaves[leaf_id]
        self.leaves.vanish(leaf_id)
        self.leaves.appear(leaf_id, leaf)

    @precondition(lambda self: self.leaves)
    @rule(which=st.integers(0, 10**6))
    def vanish(self, which: int) -> None:
        self.leaves.vanish(sorted(self.leaves)[which % len(self.leaves)])

    @precondition(lambda self: self.leaves)
    @rule(tokens=st.integers(1, 2000))
    def evict(self, tokens: int) -> None:
        before = dict(self.leaves)
        taken, count, phase = self.leaves.evict(tokens)
        now = self.leaves.order._now

        def cost(leaf_id: int) -> tuple[float, float]:  # one used since has a newer time than the order knows of
            rate = 1 / (now - min(before[leaf_id].last_access, now) + 1)
            return rate * dear(before[leaf_id]), rate

        assert cost(taken) == min(map(cost, before))
        leaf = before[taken]
        free = safe(leaf)
        assert phase == ("tel_safe" if free else "lru")
        if leaf.usable_without is None:
            asked = -(-tokens // PAGE) * PAGE
            assert count == min(leaf.end - leaf.start, free or leaf.end, asked)
        else:
            assert count == leaf.end - leaf.start

    @precondition(lambda self: self.leaves)
    @rule(count=st.integers(1, 6))
    def foresee(self, count: int) -> None:
        foreseen = [each.victim[1:] for each in upcoming(self.leaves.order, count)]
        for leaf, keep, phase in foreseen:
            victim = self.leaves.order.choose_victim(10**6)
            assert victim is not None
            assert victim[1:] == (leaf, keep, phase)
            self.leaves.carry_out(victim)
        assert len(foreseen) == count or not self.leaves

    @invariant()
    def the_counts_are_exact(self) -> None:
        assert len(self.leaves.order) == len(self.leaves)
        assert self.leaves.order.over_budget == sum(map(safe, self.leaves.values()))


def safe(leaf: Leaf) -> int:
    """Tokens that can go at no cost."""
    if leaf.usable_without is None:
        return max(leaf.end - keep(leaf), 0)
    return 0 if dear(leaf) else leaf.end - leaf.start


def dear(leaf: Leaf) -> float:
    """Whether the page that is priced is within the budget: the last, or the middle one of what becomes unusable."""
    if leaf.usable_without is None:
        return float(keep(leaf) >= leaf.end)
    middle = (leaf.usable_without + (leaf.end - leaf.usable_without) // 2) // PAGE * PAGE
    return float(keep(leaf) > middle)


def keep(leaf: Leaf) -> int:
    return keep_within_budget(leaf.history, NEXT_PROMPT, THRESHOLD, PAGE)


TestOrderAgainstAScan = OrderAgainstAScan.TestCase


@given(st.integers(1, 50))
def test_the_heaps_stay_a_small_multiple_of_the_leaves(leaf_count: int) -> None:
    leaves = Leaves(TLRU)
    for leaf_id in range(leaf_count):
        leaves.appear(leaf_id, conversation(2000, last_access=leaf_id))
    for round_ in range(200):
        for leaf_id in range(leaf_count):
            leaf = leaves[leaf_id]
            leaves.vanish(leaf_id)
            leaves.appear(leaf_id, leaf._replace(last_access=leaf_count * (round_ + 1) + leaf_id))
    assert leaves.order.entries <= 2 * leaf_count + 1025
    assert leaves.order.choose_victim(1).leaf_id == 0  # type: ignore[union-attr]
