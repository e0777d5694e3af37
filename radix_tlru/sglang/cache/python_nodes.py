"""What a node of SGLang's Python tree says of itself to an order, and which nodes can be evicted.

Most of it is written on the node by :mod:`~radix_tlru.sglang.cache.python_core`, under names that begin with ``tel_``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.cache.sessions import Order

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

__all__ = ["EvictableLeaves", "access_of", "conversation_of", "end_of", "history_of"]


def end_of(node: UnifiedTreeNode) -> int:
    """Depth at which the node ends, in tokens; never changes, as a split cuts a node at its front."""
    path = []
    while (end := getattr(node, "tel_end", None)) is None and node.parent is not None:
        path.append(node)
        node = node.parent
    end = end or 0
    for below in reversed(path):
        end = below.tel_end = end + len(below.key)
    return end


def history_of(node: UnifiedTreeNode) -> int:
    """L: the deepest that any path through this node's end has been, as far as nothing below it is resident."""
    return max(end_of(node), getattr(node, "tel_history", 0))


def access_of(node: UnifiedTreeNode) -> int:
    """When the node was last used, as far as nothing below it is resident."""
    access: int = getattr(node, "tel_access", 0)
    return access


def conversation_of(node: UnifiedTreeNode) -> Any:
    """Whose turn that use was; None: not known."""
    return getattr(node, "tel_conversation", None)


class EvictableLeaves(set):
    """The tree's set of a tier's evictable leaves: the one place where the order of that tier hears of them.

    Args:
        tail: the component that adds leaves to an order and removes them.
        order: of the tier.
        prepare: called with each node before it is added to the order.
        tier: what the names of the tier's counts begin with.
    """

    def __init__(
        self, tail: TailComponent, order: Order, prepare: Callable[[UnifiedTreeNode], None], tier: str = ""
    ) -> None:
        super().__init__()
        self._tail, self._order, self._prepare, self._tier = tail, order, prepare, tier

    def follow(self, order: Order) -> None:
        """Tell another order, which is empty, of the leaves from now on."""
        self._order = order
        for node_id in sorted(node.id for node in self):
            order.add_leaf(node_id)

    def add(self, node: UnifiedTreeNode) -> None:
        if node not in self:
            self._prepare(node)  # a fault in which has all that are here added to another order
            super().add(node)
            self._tail.add_leaf(self._order, node.id)

    def discard(self, node: UnifiedTreeNode) -> None:
        if node in self:
            self._tail.remove_leaf(self._order, node.id, self._tier)
            super().discard(node)
