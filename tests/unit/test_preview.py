"""To look at what goes next changes nothing that decides: one rank of several may have been looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radix_tlru.hints.schema import hinted
from radix_tlru.learning.conversations import Conversation
from radix_tlru.learning.hazards import BANDS
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import said_again
from radix_tlru.policy.models import FixedPrompt, Leaf, Policy
from radix_tlru.policy.order import EvictionOrder

LENGTH = 800


@pytest.mark.parametrize("wrapper", [lambda policy: policy, hinted, said_again])
def test_a_look_beyond_the_time_of_the_order_leaves_nothing_behind(wrapper: Callable[[Policy], Policy]) -> None:
    returns = LearnedReturns()
    policy = Policy(returns=returns, prompts=FixedPrompt(100), threshold=600, median_weight=0.0)
    leaves: dict[int, Leaf] = {}
    order = EvictionOrder(wrapper(policy), 1, leaves.get)

    def add(number: int, cls: tuple[int, ...], stamp: float) -> Conversation:
        conversation = Conversation(cls, stamp, number, 0, LENGTH, 0)
        leaves[number] = Leaf(0, LENGTH, LENGTH, float(number), conversation)
        order.add(number)
        return conversation

    old = add(1, (0, 0), 0.0)
    assert order.victim(1) is not None  # which admits it, at its own time
    group, numbers = old.group, dict(returns._numbers)
    assert group is not None
    add(2, (1, 0), BANDS[-1])  # noted, and not admitted before an eviction asks
    assert len(order.upcoming(2)) == 2
    assert old.group is group
    assert returns._numbers == numbers
