"""Learned rates as the order sees them, held against their definition and against a look at all leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.hints.models import with_hints
from radix_tlru.learning.age_bands import AGES
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.records import Conversation, SharedPrefix
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.learning.shared_prefixes import prefixes_of, reuse_rate
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Recency
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import preview
from radix_tlru.policy.tel import keep_within_budget
from tests.helpers.examples import examples
from tests.helpers.leaves import unbounded_decisions
from tests.helpers.turns import NEXT_PROMPT, PAGE, THRESHOLD, conversation, new_conversations, turn

KINDS = [(0, kind, *NOTHING_KNOWN[2:]) for kind in range(3)]
"""Features of conversations."""

LENGTH = 1_440  # tokens

rows = st.lists(st.floats(-12.0, 1.0).map(math.exp), min_size=len(AGES) - 1, max_size=len(AGES) - 1)
eighths = st.integers(0, 400_000).map(lambda number: number / 8)  # s: exact, so that ages are


class Returns(LearnedReturns):
    """Indexes by quarter-octave of age that were given, not learned."""

    def __init__(self, curves: list[list[float]]) -> None:
        super().__init__()
        self._rows = dict(zip(KINDS, curves, strict=False))


def of_kind(kind: int, stamp: float, **fields: Any) -> Conversation:
    known = conversation(stamp, turn=kind, **fields)
    known.features = KINDS[kind]
    return known


def prefix_of(depth: int, uses: int, wait: float, last_use: float, above: SharedPrefix | None = None) -> SharedPrefix:
    prefix = SharedPrefix(depth, depth, depth)
    prefix.uses, prefix.wait, prefix.last_use, prefix.last_user, prefix.above = uses, wait, last_use, 9, above
    return prefix


def step_of(age: float) -> int:
    return max(step for step, start in enumerate(AGES) if start <= max(age, 0.0))


def in_groups(rate: float) -> float:
    """Rates are told apart to an eighth of a factor of e."""
    return math.exp((math.floor(8 * math.log(rate)) + 0.5) / 8)


def rate_by_definition(curves: list[list[float]], leaf: Leaf, now: float) -> float:
    """The index at its age, and the rate of others at the end of that step of age, if they share the leaf."""
    known: Conversation = leaf.conversation
    if now < known.queued_until:
        return 10.0
    step = step_of(now - known.stamp)
    rate = curves[known.turn][step]
    shared = [prefix for prefix in prefixes_of(known) if prefix.depth >= leaf.end]
    if known.prefix is not None and leaf.end <= known.common:
        used = max(shared, key=lambda prefix: prefix.uses, default=known.prefix)
        rate += reuse_rate(used, known.stamp + AGES[step + 1])
    return in_groups(rate)


# ---- groups ----


class Case(NamedTuple):
    returns: Returns
    curves: list[list[float]]
    leaf: Leaf


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A leaf of a conversation of some stamp, that shares all of it, some, or nothing with others."""
    curves = [draw(rows)]
    stamp = draw(eighths)
    known = of_kind(0, stamp, context_len=LENGTH, shared_len=draw(st.sampled_from([0, 640])))
    for depth in sorted(draw(st.sets(st.sampled_from([320, 640, 2_000])))):
        known.prefix = prefix_of(
            depth, draw(st.integers(0, 5)), draw(st.floats(1.0, 500.0)), stamp - draw(eighths), known.prefix
        )
    return Case(Returns(curves), curves, Leaf(0, draw(st.sampled_from([160, 640, LENGTH])), LENGTH, 1.0, known))


@given(cases(), eighths)
def test_a_group_is_the_rate_at_that_age_until_the_next_step_of_age(case: Case, age: float) -> None:
    returns, curves, leaf = case
    stamp = leaf.conversation.stamp
    group = returns.group(leaf, stamp + age)
    assert returns.rate(group.number, 1.0, 0.0) == rate_by_definition(curves, leaf, stamp + age)
    assert group.expiry == stamp + AGES[step_of(age) + 1]


@settings(max_examples=examples(200))
@given(cases(), eighths, st.floats(-14.0, 2.0).map(math.exp), st.lists(eighths, max_size=8), st.none() | eighths)
def test_a_lasting_group_is_a_lower_bound_of_the_group_for_as_long_as_it_lasts(
    case: Case, age: float, least: float, later: list[float], used: float | None
) -> None:
    """Whether or not others use what the leaf shares with them meanwhile."""
    returns, _, leaf = case
    now = leaf.conversation.stamp + age

    def rate_at(time: float) -> float:
        return returns.rate(returns.group(leaf, time).number, 1.0, time)

    at_now, lasting = rate_at(now), returns.lasting_group(leaf, now, least)
    bound = returns.rate(lasting.number, 1.0, now)
    assert lasting.expiry >= returns.group(leaf, now).expiry > now
    # What is worth more than `least` now is not told to be worth less, but for the width of a group.
    assert bound >= min(at_now, least * math.exp(-1 / 8))
    end = min(lasting.expiry, now + 10 * (age + 100.0))
    times = sorted({now, *(now + wait % (end - now) for wait in later), now + (end - now) / 2})
    for time in times:
        if used is not None and time >= now + used:
            for prefix in prefixes_of(leaf.conversation):
                wait = now + used - prefix.last_use
                prefix.wait = wait if not prefix.uses else 0.7 * prefix.wait + 0.3 * wait
                prefix.uses, prefix.last_use = prefix.uses + 1, now + used
            used = None
        if time < lasting.expiry:
            assert rate_at(time) >= bound


@pytest.mark.parametrize(("longer", "shorter"), [(9, 1), (1, 9)])
def test_of_the_prefixes_that_a_leaf_is_in_the_one_with_the_most_uses_says_how_often_others_come(
    longer: int, shorter: int
) -> None:
    """Uses of each, every 2 s: the one that was found last, of whatever length, has few as yet."""
    returns = Returns([[1e-6] * (len(AGES) - 1)])
    known = of_kind(0, 0.0, context_len=LENGTH)
    known.prefix = prefix_of(640, longer, 2.0, 0.0, prefix_of(320, shorter, 2.0, 0.0))
    group = returns.group(Leaf(0, 320, LENGTH, 1.0, known), 0.0)
    assert returns.rate(group.number, 1.0, 0.0) == in_groups(0.5 * 9 / 10 / 4.0 + 1e-6)  # the price is of 4 s later


def test_what_a_queued_request_waits_for_goes_last_until_it_is_waited_for_no_more() -> None:
    returns = Returns([[0.5] * (len(AGES) - 1)])
    known = of_kind(0, 100.0, queued_until=160.0)
    leaf = Leaf(0, LENGTH, LENGTH, 1.0, known)
    queued, after = returns.group(leaf, 159.0), returns.group(leaf, 160.0)
    assert (returns.rate(queued.number, 1.0, 0.0), queued.expiry) == (10.0, 160.0)
    assert queued == returns.lasting_group(leaf, 159.0, 0.01)
    assert returns.rate(after.number, 1.0, 0.0) == in_groups(0.5)


def test_another_model_counts_from_the_next_look_on() -> None:
    returns, leaf = LearnedReturns(), Leaf(0, LENGTH, LENGTH, 1.0, conversation(0.0))
    before = returns.group(leaf, 50.0)
    model = HazardModel(HazardModel().base + math.log(2.0))
    returns.use_model(model)
    assert returns.model is model
    after = returns.group(leaf, 50.0)
    assert returns.rate(after.number, 1.0, 0.0) == pytest.approx(2 * returns.rate(before.number, 1.0, 0.0), rel=0.14)


def test_a_leaf_of_nobody_is_one_of_whom_nothing_is_known_from_the_start_of_time() -> None:
    returns = LearnedReturns()
    leaf, plain = Leaf(0, 64, 64, 5.0), Leaf(0, 64, 64, 5.0, of_kind(0, 0.0))
    assert returns.stamp(leaf) == 0.0
    assert returns.floor(leaf) == 0
    for now in (0.0, 3.0, 1e3, 1e7):
        assert returns.group(leaf, now) == returns.group(plain, now)


def test_who_was_used_later_than_now_has_only_just_been_used() -> None:
    """As where another policy counted time by look-ups: the newest of them is not that of the latest turn."""
    returns = Returns([[1 / 2] * 3 + [1 / 64] * (len(AGES) - 4)])
    leaf = Leaf(0, LENGTH, LENGTH, 1.0, of_kind(0, 100.0))
    assert returns.group(leaf, 90.0) == returns.group(leaf, 100.0)
    assert returns.rate(returns.group(leaf, 90.0).number, 1.0, 0.0) == in_groups(1 / 2)


def test_before_anything_is_learned_the_order_is_that_of_recency() -> None:
    returns = LearnedReturns()
    leaves = [Leaf(0, 64, 64, 1.0, conversation(stamp, turn=int(stamp) % 5)) for stamp in range(0, 90_000, 1_000)]
    rates = [returns.rate(returns.group(leaf, 90_000.0).number, 1.0, 0.0) for leaf in leaves]
    assert rates == sorted(rates)
    assert len(set(rates)) > 15


# ---- the order, where rates rise and fall ----


class Cache:
    """Leaves of conversations, the order that is told of them, and what each of them costs by a look at it."""

    def __init__(self, curves: list[list[float]]) -> None:
        self.curves, returns = curves, Returns(curves)
        self.policies = [
            Policy(returns, AnyPrompt(), THRESHOLD, 1.0),
            Policy(returns, FixedPrompt(NEXT_PROMPT), THRESHOLD, 0.3),
            Policy(returns, FixedPrompt(NEXT_PROMPT), 2 * THRESHOLD, 0.0),
            Policy(Recency(), AnyPrompt(), THRESHOLD, 1.0),
        ]
        self.leaves: dict[int, Leaf] = {}
        self.order = EvictionOrder(self.policies[0], PAGE, self.leaves.get)
        self.prefix = prefix_of(800, 3, 20.0, 0.0, prefix_of(330, 30, 2.0, 0.0))
        self.now, self.clock, self.last_id = 0.0, 0, 0

    def add(self, leaf: Leaf) -> None:
        self.last_id += 1
        self.leaves[self.last_id] = leaf
        self.order.add_leaf(self.last_id)

    def remove(self, leaf_id: int) -> None:
        self.order.remove_leaf(leaf_id)
        del self.leaves[leaf_id]

    def serve(self, number: int, pages: int) -> None:
        """A turn is served at ``now``, of a conversation that may have begun as others do."""
        self.clock += 1
        length = pages * PAGE
        known = of_kind(number % len(KINDS), self.now, number=self.clock, context_len=length)
        if number % 5 == 0:
            known.prefix = self.prefix
            for prefix in prefixes_of(known):
                prefix.wait = 0.7 * prefix.wait + 0.3 * (self.now - prefix.last_use)
                prefix.uses, prefix.last_use = prefix.uses + 1, self.now
        self.add(Leaf(0, length, length + number % 40 * PAGE, float(self.clock), known))

    def price(self, leaf: Leaf) -> tuple[float, float]:
        policy = self.order.policy
        if isinstance(policy.returns, Recency):
            rate = 1 / (self.clock - leaf.last_access + 1)
        else:
            rate = rate_by_definition(self.curves, leaf, self.now)
        within = leaf.end <= keep_within_budget(leaf.history, NEXT_PROMPT, policy.threshold, PAGE)
        exceeds = within or isinstance(policy.prompts, AnyPrompt)
        return rate * ((1.0 - policy.median_weight) * exceeds + policy.median_weight), rate

    def evict(self, tokens: int) -> None:
        foreseen = preview((self.order,), tokens % 3)
        victim = self.order.choose_victim(tokens)
        assert victim is not None
        price = self.price(victim.leaf)
        assert price == min(map(self.price, self.leaves.values()))
        for each in foreseen[:1]:
            assert (each.price.cost, each.price.return_rate) == price == self.price(each.victim.leaf)
        for end in range(victim.leaf.end, victim.keep, -PAGE):
            assert self.price(victim.leaf._replace(end=end)) == price, "what goes together costs the same"
        self.remove(victim.leaf_id)
        if victim.keep > victim.leaf.start:
            self.add(victim.leaf._replace(end=victim.keep))
        self.order.renew_prices()


steps = st.lists(
    st.tuples(
        st.sampled_from(["serve", "serve", "serve", "use", "queue", "evict", "evict", "evict", "switch"]),
        st.integers(0, 10**6),
        st.sampled_from([0.0, 0.125, 1.0, 5.0, 40.0, 300.0, 5_000.0]),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=examples(200))
@given(st.lists(rows, min_size=len(KINDS), max_size=len(KINDS)), steps)
def test_the_next_victim_is_the_one_a_look_at_all_leaves_would_choose(
    curves: list[list[float]], steps_taken: list[tuple[str, int, float]]
) -> None:
    """At any time, whatever was used, queued or evicted before, and whichever policies were in force."""
    with unbounded_decisions():
        take_steps(Cache(curves), steps_taken)


def take_steps(cache: Cache, steps_taken: list[tuple[str, int, float]]) -> None:
    for what, number, wait in steps_taken:
        chosen = sorted(cache.leaves)[number % len(cache.leaves)] if cache.leaves else None
        if what == "serve" or chosen is None:
            cache.now += wait  # to the order it is as late as the last stamp it has seen
            cache.serve(number, number % 90 + 1)
        elif what == "use":
            cache.now += wait
            pages = cache.leaves[chosen].history // PAGE
            cache.remove(chosen)
            cache.serve(number, pages + number % 5)
        elif what == "queue":
            cache.leaves[chosen].conversation.queued_until = cache.now + 60.0
        elif what == "switch":
            cache.order.switch_policy(cache.policies[number % len(cache.policies)])
            while len(cache.order._pricings) > 1:  # until all leaves have a price by the policy in force
                cache.order.renew_prices()
        else:
            cache.evict(number % 500 + 1)


def test_a_look_judges_few_leaves_where_the_groups_of_many_have_expired() -> None:
    """One that waits for a new price may be missed; what is shown is what it says."""
    cache, asked = Cache([[1 / 8] * (len(AGES) - 1)] * len(KINDS)), set[int]()
    for number in range(2_000):
        cache.now += 1.0
        cache.serve(number, number % 90 + 1)
    cache.evict(1)
    cache.order.advance_clock(cache.now + 1e5)
    assert sum(1 for _ in cache.order._entries.expired(cache.order._now, 2_000)) > 1_000
    get = cache.leaves.get
    cache.order._leaf_of = lambda leaf_id: (asked.add(leaf_id), get(leaf_id))[1]
    foreseen = preview((cache.order,), 5)
    assert len(foreseen) == 5
    assert len(asked) <= 19, "six of each kind, and the one that tells the time"
    assert all(cache.leaves[each.victim.leaf_id] == each.victim.leaf for each in foreseen)


@pytest.mark.parametrize("wrapper", [lambda policy: policy, with_hints, reusable_only])
def test_what_others_begin_with_is_priced_apart_from_what_follows_it_in_one_leaf(
    wrapper: Callable[[Policy], Policy],
) -> None:
    known = of_kind(0, 0.0, context_len=640, shared_len=320)
    known.prefix = prefix_of(320, uses=10**9, wait=2.0, last_use=0.0)
    returns = Returns([[1 / 8] * (len(AGES) - 1)])
    leaves = {1: Leaf(0, 640, 640, 1.0, known)}
    order = EvictionOrder(wrapper(Policy(returns, AnyPrompt(), THRESHOLD, 1.0)), PAGE, leaves.get)
    order.add_leaf(1)
    # Others come every 4 s, as of the next look at the price: half of that is believed.
    for end, keep, rate in ((640, 320, 1 / 8), (320, 0, 1 / 8 + 0.5 / 4)):
        (foreseen,) = preview((order,), 1)
        victim = order.choose_victim(1_000)
        assert victim is not None
        assert (victim.leaf.end, victim.keep) == (end, keep)
        assert foreseen.price.return_rate == pytest.approx(in_groups(rate))
        order.remove_leaf(1)
        leaves[1] = victim.leaf._replace(end=victim.keep)
        order.add_leaf(1)


# ---- conversations ----


def test_a_conversation_is_known_by_its_tokens_and_counts_its_turns_and_waits() -> None:
    conversations = new_conversations()
    first = conversations.record_turn(turn(0, 1000, 1000), is_leaf=True)
    other = conversations.record_turn(turn(5, 1000, 1000, name=2), is_leaf=True)
    second = conversations.record_turn(turn(90, 1200, 1300), is_leaf=True)
    third = conversations.record_turn(turn(100, 1400, 1400), is_leaf=True)
    assert (first.number, other.number, second.number, third.number) == (1, 2, 1, 1)
    assert (first.turn, other.turn, second.turn, third.turn) == (0, 0, 1, 2)
    assert (first.turn_index, other.turn_index, second.turn_index, third.turn_index) == (1, 2, 3, 4)
    assert [(each.wait, each.wait_before) for each in (first, second, third)] == [(-1, -1), (90, -1), (10, 90)]
    assert [each.new_len for each in (first, second, third)] == [1000, 200, 100]


def test_a_mostly_new_prompt_continues_its_conversation_and_is_no_sample_of_lengths() -> None:
    conversations = new_conversations()
    conversations.record_turn(turn(0, 1000, 1000), is_leaf=True)
    assert conversations.record_turn(turn(9, 5000, 5000), is_leaf=True).turn == 1
    assert conversations._prompts.distribution() is None
    conversations.record_turn(turn(20, 6000, 6000), is_leaf=True)
    found = conversations._prompts.distribution()
    assert found is not None
    assert set(found.quantiles) == {1_000}


def test_what_others_continue_is_nobodys_conversation() -> None:
    conversations = new_conversations()
    conversations.record_turn(turn(0, 1000, 1000), is_leaf=False)
    assert conversations.record_turn(turn(9, 1100, 1100), is_leaf=True).turn == 0
