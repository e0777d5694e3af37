"""The host tier of a hierarchical cache: which host copy is dropped next, by an order of its own.

A node of the tree is on the device, on the host, or on both. Device pressure *demotes* a tail that has a host copy: the
node stays in the tree without its device value, and what is above it becomes the device leaf. Host pressure *drops*:
the node is gone, and its tokens must be computed again. Both tiers follow the same rule, each over its own leaves:

============  ==============================  ==========================================================  ==============
tier          its leaves                      X, the end of a leaf: tokens of the path                    its threshold
============  ==============================  ==========================================================  ==============
device        nothing below is on the device  on the device; the next turn loads or computes the others   ξ
host          host copy alone, no children    on either tier; the next turn computes the others           ξ of the host
============  ==============================  ==========================================================  ==============

So what lies beyond the budget is demoted first, and dropped first once it is demoted; nothing within the budget of a
path is dropped while another path has tokens on the host beyond its own. The host's ξ is that of the device unless it
is given (``--tlru-host-threshold``): then a conversation may lose as many tokens for good as it would in a cache
without a host tier. As loading back is cheaper than computing, the device can do with a larger ξ, and the host should
have a smaller one where the time to load back counts.

With storage behind it (``--hicache-storage-backend``) SGLang writes down what is on the host, page by page, and what is
dropped is read back before its next turn if storage has it still. X says nothing of that: storage makes room by rules
of its own, and tells nobody. So the host drops as if what it drops were lost, which is right in the worst case; where
storage is large and fast, the host can do with a larger ξ of its own. What is being written or read into holds a lock
on the host, which a cut hands to both parts: it is demoted and cut, and not dropped. Where the host is but a buffer on
the way to storage (``--hicache-host-memory-mode buffer_only``) it has no leaves, and what the device evicts is dropped.
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

    def __init__(self, tail: TieredComponent) -> None:
        self._tail = tail
        self.order = tail.order_of(self.policy, self._leaf_of)

    @property
    def policy(self) -> Policy:
        """The policy of the device tier, with the threshold of the host."""
        threshold = self._tail.config.host_threshold
        return self._tail.policy if threshold is None else replace(self._tail.policy, threshold=threshold)

    def reset_order(self) -> None:
        """The tree was emptied."""
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
