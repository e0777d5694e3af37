"""To look at what goes next changes nothing that decides: one rank of several may have been looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radix_tlru.hints.models import with_hints
from radix_tlru.learning.age_bands import BANDS
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.policy.models import FixedPrompt, Leaf
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
            prices = {leaf_id: (bucket.group, bucket.level) for leaf_id, bucket in order._bucket.items()}
            found.append((victim.leaf_id, victim.keep, prices, dict(order._expiry), order._now, order.entries))
        return found

    assert victims(looks=2) == victims(looks=0)
