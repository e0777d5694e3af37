"""The victim is the cheapest of all leaves, whatever moves: the clock, ξ, w, what clients say, who is queued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.hints.models import with_hints
from radix_tlru.hints.schema import Hints, Range
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.policy.models import FixedPrompt, Leaf, ReturnModel
from radix_tlru.policy.order import CORRECTED, CORRECTED_IN_A_TURN, REPRICED, EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import keep_within_budget
from tests.helpers.examples import examples
from tests.helpers.leaves import unbounded_decisions

PAGE, NEXT_PROMPT = 16, 100
MOST = 32
"""Leaves."""

STEPS = ("appear", "use", "look up", "queue", "advance", "ξ", "w", "evict", "evict")


@pytest.mark.parametrize("returns", [LearnedReturns, RecentTurns])
@pytest.mark.parametrize("wrapper", [lambda policy: policy, with_hints], ids=["learned", "hints"])
@settings(max_examples=examples(150))
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10**6), st.floats(0.0, 4_000.0)), max_size=80),
    threshold=st.integers(120, 4_000),
)
def test_the_victim_is_the_cheapest_leaf_whatever_moves(
    returns: Callable[[], ReturnModel],
    wrapper: Callable[[Policy], Policy],
    steps: list[tuple[str, int, float]],
    threshold: int,
) -> None:
    """Of many where a decision may give all of them a new price, of few by the bounds that a server has."""

    def policy() -> Policy:
        return wrapper(Policy(returns(), FixedPrompt(NEXT_PROMPT), threshold, median_weight=0.0))

    with unbounded_decisions():
        take_steps(policy(), steps, MOST)
    take_steps(policy(), steps, CORRECTED // 2)  # a decision may correct a leaf twice


def take_steps(policy: Policy, steps: list[tuple[str, int, float]], most: int) -> None:
    """Carry out the steps, and hold each victim against a look at all leaves."""
    in_seconds = getattr(policy.returns, "in_seconds", False)
    leaves: dict[int, Leaf] = {}
    order = EvictionOrder(policy, PAGE, leaves.get)
    now, clock, last_id = 0.0, 0, 0

    def told(number: int) -> Conversation:
        """The conversation of a turn that came now, with what its client said of it."""
        conversation = Conversation(now, last_id, 0, 1_000, 0)
        conversation.features, conversation.turn_index = NOTHING_KNOWN, float(clock)
        if number % 3 == 0:
            conversation.hints = Hints(retention=(Range(0, None, number % 101, 1_000.0),))
        return conversation

    def price(leaf: Leaf) -> tuple[float, float]:
        current, time = order.policy, order.advance_clock(0.0)
        rate = current.returns.rate(current.returns.group(leaf, time).number, current.returns.key(leaf), time)
        within = leaf.end <= keep_within_budget(leaf.history, NEXT_PROMPT, current.threshold, PAGE)
        return rate * ((1.0 - current.median_weight) * within + current.median_weight), rate

    for what, number, seconds in steps:
        clock += 1
        chosen = sorted(leaves)[number % len(leaves)] if leaves else 0
        match what:
            case "appear" if len(leaves) < most:
                now += seconds / 100
                last_id += 1
                history = (number % 90 + 1) * PAGE
                end = max(history - number % 7 * 10 * PAGE, PAGE)
                leaves[last_id] = Leaf(0, end, history, float(clock), told(number))
                order.add_leaf(last_id)
            case "use" if leaves:
                now += seconds / 100
                order.remove_leaf(chosen)
                last_id += 1
                leaves[last_id] = leaves.pop(chosen)._replace(last_access=float(clock), conversation=told(number))
                order.add_leaf(last_id)
            case "look up" if leaves:  # and no turn follows: the request is given up
                leaves[chosen] = leaves[chosen]._replace(last_access=float(clock))
            case "queue" if leaves:
                conversation = leaves[chosen].conversation
                conversation.queued_until = max(conversation.queued_until, now + seconds)
            case "advance":  # something elsewhere was used
                now += seconds
                order.advance_clock(now if in_seconds else float(clock))
            case "ξ":
                order.switch_policy(replace(order.policy, threshold=120 + number % 4_000))
            case "w":
                order.switch_policy(replace(order.policy, median_weight=number % 3 / 2))
            case "evict" if leaves:
                victim = order.choose_victim(number % 500 + 1)
                assert victim is not None
                assert price(victim.leaf)[0] == pytest.approx(min(price(leaf)[0] for leaf in leaves.values()))
                order.remove_leaf(victim.leaf_id)
                del leaves[victim.leaf_id]
                if victim.keep > victim.leaf.start:
                    last_id += 1
                    leaves[last_id] = victim.leaf._replace(end=victim.keep)
                    order.add_leaf(last_id)
                order.renew_prices()


def test_after_a_pause_a_decision_looks_at_few_of_the_leaves_whose_prices_have_fallen() -> None:
    """3,000 leaves of one age, each looked at by a counter, and a clock that jumps by a day."""
    leaves: dict[int, Leaf] = {}
    looks = 0

    def leaf_of(leaf_id: int) -> Leaf | None:
        nonlocal looks
        looks += 1
        return leaves.get(leaf_id)

    order = EvictionOrder(Policy(LearnedReturns(), FixedPrompt(NEXT_PROMPT), 600, median_weight=1.0), PAGE, leaf_of)
    for leaf_id in range(3_000):
        conversation = Conversation(leaf_id / 100, leaf_id, 0, 1_000, 0)
        conversation.features = NOTHING_KNOWN
        leaves[leaf_id] = Leaf(0, 960, 960, float(leaf_id), conversation)
        order.add_leaf(leaf_id)
    order.choose_victim(PAGE)
    for day in range(1, 4):
        order.advance_clock(day * 86_400.0)
        order.renew_prices()
        looks = 0
        for _ in range(3):
            victim = order.choose_victim(1_000)
            assert victim is not None
            order.remove_leaf(victim.leaf_id)
            del leaves[victim.leaf_id]
        corrected = min(3 * CORRECTED, CORRECTED_IN_A_TURN + 2)  # a decision may always do one
        assert looks <= REPRICED + corrected + 3, "expired, first by a price that was too low, the victim"
    for _ in range(3_000 // REPRICED + 1):
        order.renew_prices()
        victim = order.choose_victim(1_000)
    assert victim is not None
    assert victim.leaf_id == min(leaves), "all have their new price: the one that was used first"
