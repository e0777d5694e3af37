"""Hybrid models: what of a path a next turn can use, where more than full-attention KV is cached of its tokens.

Beside the KV of full attention SGLang keeps the KV of the last window of a path (sliding-window attention, SWA), or the
state at its end (Mamba). Each has a pool of its own, and a component that evicts from it. A path can be used as far
down as all of that is there, which is mostly the end of a turn. So leaves are evicted whole:

============  ===========================================  ==========================================================
eviction of   takes                                        leaves
============  ===========================================  ==========================================================
a page        the window or the state at the end as well   nothing that a next turn can use down to the turn before
a leaf        what one turn added, or a window of it       what a next turn can use without it (``usable_without``)
============  ===========================================  ==========================================================

Without the last window of a turn the front of that turn cannot be used. The front is the next leaf then, with the
recency, the history and the ``usable_without`` of the one that went. So it goes when that would have gone. A leaf that
has no window or no state cannot be used anyway: no turn misses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from radix_tlru.policy.models import Leaf
from radix_tlru.sglang.cache.breaker import Breaker
from radix_tlru.sglang.cache.sessions import Order

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

__all__ = ["HybridComponent", "WholeLeaves"]


class HybridComponent(Protocol):
    """What whole leaves need of the component of full attention."""

    tree_core: Any
    order: Order
    breaker: Breaker

    def leaf(self, node: Any) -> Leaf:
        """The node as the order sees it."""


class WholeLeaves:
    """What is usable of the paths of a hybrid without their leaves; asks SGLang's components what a match asks them."""

    def __init__(self, tail: HybridComponent) -> None:
        self._tail = tail

    def usable_without(self, leaf: UnifiedTreeNode) -> int:
        """Tokens from the root that a next turn can use without ``leaf``; the history, if it uses nothing of the leaf.

        The order is told once, when the leaf becomes evictable; see :meth:`correct_next`.
        """
        core: Any = self._tail.tree_core
        path, node = [], leaf
        while node is not core.root_node:
            path.append(node)
            node = node.parent
        validators = [component.create_match_validator(match_device_only=True) for component in core.components]
        depth = usable = 0
        for node in reversed(path):
            verdicts = [validator(node) for validator in validators]  # each has to see every node
            if node is leaf:
                return usable if all(verdicts) else self._tail.leaf(leaf).history
            depth += len(node.key)
            usable = depth if all(verdicts) else usable
        raise AssertionError("the root is no leaf")

    def correct_next(self, missing: int) -> None:
        """Make sure that the next victim costs what the order takes it to: what it relied on may be gone by now.

        What came back above a leaf makes the leaf cheaper. That is seen when the leaf is next, which may take a while.
        Under lru, after a fault, whatever is next goes.
        """
        core: Any = self._tail.tree_core
        while not self._tail.breaker.has_tripped:
            victim = self._tail.order.choose_victim(missing)
            if victim is None:
                return
            node = core.node_by_id(victim.leaf_id)
            if self.usable_without(node) == victim.leaf.usable_without:
                return
            core.evictable_device_leaves.discard(node)
            core.evictable_device_leaves.add(node)
