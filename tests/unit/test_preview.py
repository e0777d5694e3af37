"""To look at what goes next changes nothing that decides: one rank of several may have been looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radix_tlru.hints.models import with_hints
from radix_tlru.learning.age_bands import BANDS
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.policy.models import FixedPrompt, Leaf
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import preview

LENGTH = 800


@pytest.mark.parametrize("wrapper", [lambda policy: policy, with_hints, reusable_only])
def test_a_look_beyond_the_time_of_the_order_leaves_nothing_behind(wrapper: Callable[[Policy], Policy]) -> None:
    returns = LearnedReturns()
    policy = Policy(returns=returns, prompts=FixedPrompt(100), threshold=600, median_weight=0.0)
    leaves: dict[int, Leaf] = {}
    order = EvictionOrder(wrapper(policy), 1, leaves.get)

    def add(number: int, cls: tuple[int, ...], stamp: float) -> Conversation:
        conversation = Conversation(cls, stamp, number, 0, LENGTH, 0)
        leaves[number] = Leaf(0, LENGTH, LENGTH, float(number), conversation)
        order.add_leaf(number)
        return conversation

    old = add(1, (0, 0), 0.0)
    assert order.choose_victim(1) is not None  # which enters it, at its own time
    group, numbers = old.group, dict(returns._numbers)
    assert group is not None
    add(2, (1, 0), BANDS[-1])  # pending until an eviction asks
    assert len(preview((order,), 2)) == 2
    assert old.group is group
    assert returns._numbers == numbers
