"""The host tier of a hierarchical cache: which host copy is dropped next, by an order of its own.

A node of the tree is on the device, on the host, or on both. Under device pressure a tail with a host copy is
*demoted*: the node stays in the tree without its device value, and its parent becomes the device leaf. Under host
pressure a node is *dropped*, and its tokens must be computed again. Both tiers follow one rule, each over its leaves:

============  ==============================  ==========================================================  ==============
tier          its leaves                      X, the end of a leaf: tokens of the path                    its threshold
============  ==============================  ==========================================================  ==============
device        nothing below is on the device  on the device; the next turn loads or computes the others   ξ
host          host copy alone, no children    on either tier; the next turn computes the others           ξ of the host
============  ==============================  ==========================================================  ==============

So tokens beyond the budget of a path are demoted first, and dropped first. Nothing within a budget is dropped while
another path has tokens on the host beyond its own. The host's ξ is that of the device unless
``--tlru-host-threshold`` is given. With the same ξ a conversation loses as many tokens for good as in a cache without a
host tier. Loading back is cheaper than computing, so the device can have a larger ξ. Where the time to load back
counts, the host should have a smaller one.

With storage (``--hicache-storage-backend``) SGLang writes the pages of the host to it. What was dropped is read back
before its next turn if storage still has it. X does not count that, because storage evicts by rules of its own and
reports nothing. So the host drops as if tokens were lost, which is right in the worst case. Where storage is large and
fast, the host can have a larger ξ. A node that is being written or read holds a lock on the host, and a cut hands the
lock to both parts: such a node is demoted and cut, but not dropped. A host that only buffers
(``--hicache-host-memory-mode buffer_only``) has no leaves, and what the device evicts is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from radix_tlru.config import Config
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import Victim
from radix_tlru.policy.policy import Policy
from radix_tlru.sglang.cache.sessions import Order

__all__ = ["HostTier", "TieredComponent"]

FULL = ComponentType.FULL


class TieredComponent(Protocol):
    """What the host tier needs of the component of the device tier."""

    config: Config
    policy: Policy
    tree_core: Any

    def order_of(self, policy: Policy, leaf_of: Callable[[int], Leaf | None]) -> Order:
        """An order of the leaves of a tier, empty."""

    def take_victim(self, order: Order, missing: int, tier: str = "") -> Victim | None:
        """What goes next in an order, counted."""

    def cut(self, victim: Victim, cache_actions: list[Any] | None) -> None:
        """Split off the tail that a victim names."""

    def leaf(self, node: Any) -> Leaf:
        """The node as the order sees it."""


class HostTier:
    """Drops the host copies that ``tail``'s tree can do without."""

    order: Order
    """As that of the device tier: a new one whenever the tree is emptied, and after a fault."""

    def __init__(self, tail: TieredComponent) -> None:
        self._tail = tail

    @property
    def policy(self) -> Policy:
        """The policy of the device tier, with the threshold of the host."""
        threshold = self._tail.config.host_threshold
        return self._tail.policy if threshold is None else replace(self._tail.policy, threshold=threshold)

    def reset_order(self) -> None:
        """Put a new order in place, which is empty."""
        self.order = self._tail.order_of(self.policy, self._leaf_of)

    def switch_policy(self) -> None:
        """The policy of the device tier has changed."""
        self.order.switch_policy(self.policy)

    def evict(
        self,
        tokens: int,
        tracker: dict[ComponentType, int],
        device_frees: dict[ComponentType, list[Any]],
        host_frees: dict[ComponentType, list[Any]],
        cache_actions: list[Any],
    ) -> None:
        """Drop ``tokens`` tokens of host copies if there are as many, counted in ``tracker``, tail after tail."""
        core = self._tail.tree_core
        while (missing := tokens - tracker[FULL]) > 0:
            victim = self._tail.take_victim(self.order, missing, tier="host_")
            if victim is None:
                return
            self._tail.cut(victim, cache_actions)
            leaf = core.node_by_id(victim.leaf_id)
            core._evict_host_leaf(leaf, tracker, device_frees, host_frees, cache_actions=cache_actions)

    def _leaf_of(self, node_id: int) -> Leaf | None:
        core = self._tail.tree_core
        node = core._node_arena.get(node_id)
        return self._tail.leaf(node) if node is not None and node in core.evictable_host_leaves else None
