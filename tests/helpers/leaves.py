"""Leaves by id, where a tree would be, with the order that is told about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, Victim
from radix_tlru.policy.policy import Policy


class Leaves(dict[int, Leaf]):
    """Leaves by id, with the order that is told about them."""

    def __init__(self, policy: Policy, page_size: int = 1) -> None:
        super().__init__()
        self.order = EvictionOrder(policy, page_size, self.get)
        self._remainders = 1000  # ids of leaves that are what a trim left

    def appear(self, leaf_id: int, leaf: Leaf) -> None:
        self[leaf_id] = leaf
        self.order.add_leaf(leaf_id)

    def vanish(self, leaf_id: int) -> None:
        self.order.remove_leaf(leaf_id)
        del self[leaf_id]

    def evict(self, tokens: int) -> tuple[int, int, str]:
        """Carry out one decision as a cache does, in a turn of its own; returns (leaf id, tokens evicted, phase)."""
        victim = self.order.choose_victim(tokens)
        assert victim is not None
        self.carry_out(victim)
        self.order.renew_prices()
        return victim.leaf_id, victim.leaf.end - victim.keep, victim.phase

    def carry_out(self, victim: Victim) -> None:
        self.vanish(victim.leaf_id)
        if victim.keep > victim.leaf.start:
            self._remainders += 1
            self.appear(self._remainders, victim.leaf._replace(end=victim.keep))


@contextmanager
def unbounded_decisions() -> Iterator[None]:
    """Each decision gives all leaves their new price that need one, so that the cheapest of all leaves must go.

    A preview judges all leaves, too.
    """
    with pytest.MonkeyPatch.context() as changed:
        for bound in ("_JUDGED", "_LOOKS"):
            changed.setattr(f"radix_tlru.policy.preview.{bound}", 1 << 30)
        for bound in ("REPRICED", "CORRECTED", "CORRECTED_IN_A_TURN", "_LOOKS"):
            changed.setattr(f"radix_tlru.policy.order.{bound}", 1 << 30)
        yield
