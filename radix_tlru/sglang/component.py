"""The Full-attention component that evicts what :class:`~radix_tlru.order.EvictionOrder` names.

SGLang's ``FullComponent`` builds a heap of all evictable leaves for each eviction and takes whole nodes. This one
keeps the order between evictions and takes tails: the victim is split at the page boundary that must stay, and its
tail alone is handed to the eviction driver, which does with it what it does with any leaf.

What the tree has to tell the order, and where it does (``unified_cache/unified_tree_core.py``):

======================  =========================================================================================
a leaf appears, goes    ``evictable_device_leaves``, the set that every place in the tree adds to and discards from
a tail is evicted       ``evict_component``: the parent takes over the history
a node is split         ``_split_node``: both halves keep the recency; stock refreshes the suffix nobody asked for
everything is dropped   ``reset``
======================  =========================================================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from radix_tlru.config import Config
from radix_tlru.models import Leaf, policy_for
from radix_tlru.order import EvictionOrder

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore, UnifiedTreeNode
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

__all__ = ["EvictionCounts", "TailComponent", "component_for"]

FULL = ComponentType.FULL


class EvictionCounts(Counter[str]):
    """Since the start: tokens evicted in each phase (``tel_safe``, ``lru``) and ``splits`` made to evict a tail."""


class TailComponent(FullComponent):
    """Full-attention KV under a TEL-aware order. Subclasses fix the ``config``: see :func:`component_for`."""

    config: ClassVar[Config]

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        self._core: Any = None
        super().__init__(cache, params)
        self.policy = policy_for(self.config)
        self.page_size: int = params.page_size
        self.counts = EvictionCounts()
        self.order = self._new_order()
        self.available_target: int | None = None
        """Tokens that must be available for the allocation under way; None if this eviction serves none."""

    # ---- what the tree tells the order ----

    @property
    def tree_core(self) -> UnifiedTreeCore:
        """The tree that this component belongs to."""
        return self._core

    @tree_core.setter
    def tree_core(self, core: UnifiedTreeCore | None) -> None:
        """The core hands itself over before its first ``reset()``; from then on this component listens to it."""
        if core is None or core is self._core:
            return
        self._core = core
        self._stock_reset, self._stock_split = core.reset, core._split_node
        core.reset = self._reset
        if self.config.policy != "lru":  # `lru` is there to be compared with stock, whose recency it keeps
            core._split_node = self._split_node

    def _new_order(self) -> EvictionOrder:
        return EvictionOrder(self.policy, self.page_size, self._leaf_of)

    def use_threshold(self, threshold: int) -> None:
        """Evict by another ξ (tokens) from now on; the order sorts its leaves once."""
        self.policy = replace(self.policy, threshold=threshold)
        self.order.use(self.policy)

    def _reset(self) -> None:
        self._stock_reset()
        self.order = self._new_order()
        self._core.evictable_device_leaves = _EvictableLeaves(self)

    def _split_node(self, key: Any, child: UnifiedTreeNode, split_len: int) -> tuple[UnifiedTreeNode, Any]:
        """Split without touching recency: a match that ends inside a node is no use of what lies behind it."""
        last_access = child.last_access_time
        prefix, action = self._stock_split(key, child, split_len)
        prefix.last_access_time = child.last_access_time = last_access
        return prefix, action

    def evict_component(
        self,
        node: UnifiedTreeNode,
        device_frees: dict[ComponentType, list[Any]],
        host_frees: dict[ComponentType, list[Any]],
        cache_actions: list[Any],
        target: EvictLayer = EvictLayer.DEVICE,
    ) -> tuple[int, int]:
        """The history of a path survives its tail: the parent remembers how deep it has been."""
        if EvictLayer.DEVICE in target and node.component_data[FULL].value is not None:
            parent = node.parent
            parent.tel_history = max(_history(parent), _history(node))
        freed: tuple[int, int] = super().evict_component(
            node, device_frees, host_frees, cache_actions=cache_actions, target=target
        )
        return freed

    def leaf(self, node: UnifiedTreeNode) -> Leaf:
        """The node as the order sees it; depths in tokens from the root."""
        end = _end(node)
        return Leaf(end - len(node.key), end, _history(node), float(node.last_access_time))

    def _leaf_of(self, node_id: int) -> Leaf | None:
        node = self._core._node_arena.get(node_id)
        if node is None or node not in self._core.evictable_device_leaves:
            return None
        return self.leaf(node)

    # ---- the walk that the eviction driver asks for ----

    def _evict_device_start(self, request_cnt: int) -> None:
        self._requested = request_cnt

    def _evict_device_next_node(
        self,
        tracker: dict[ComponentType, int],
        device_frees: dict[ComponentType, list[Any]],
        host_frees: dict[ComponentType, list[Any]],
        cache_actions: list[Any],
    ) -> int | None:
        """The next leaf to evict, cut to the tail that has to go; None when enough was freed or nothing is left."""
        missing = self._requested - tracker[FULL]
        if missing <= 0:
            return None
        if self.available_target is not None:
            # The driver asks for all there is and stops when the allocation fits, so the shortfall is ours to see. An
            # allocator may hold freed pages back: then it is not positive yet the driver goes on, page by page.
            missing = min(missing, self.available_target - self.cache._component_available_size(FULL))
        victim = self.order.victim(missing)
        if victim is None:
            return None
        node = self._core.node_by_id(victim.leaf_id)
        if victim.keep > victim.leaf.start:
            # The tail keeps the id, so the driver is given what it would be given without the split.
            _, action = TailComponent._split_node(self, node.key, node, victim.keep - victim.leaf.start)
            if action is not None:
                cache_actions.append(action)
            self.counts["splits"] += 1
        self.counts[victim.phase] += victim.leaf.end - victim.keep
        return victim.leaf_id

    def _evict_device_end(self) -> None:
        self._requested = 0

    # ---- the host tier: refused at start until it follows the same order ----

    def drive_host_eviction(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("hierarchical caches are refused at start")


def component_for(config: Config) -> type[TailComponent]:
    """The component class to register for ``ComponentType.FULL`` so that a cache follows ``config``."""
    return type("TailComponent", (TailComponent,), {"config": config, "__doc__": TailComponent.__doc__})


class _EvictableLeaves(set):
    """The tree's set of evictable leaves, and the one place where the order learns of them."""

    def __init__(self, component: TailComponent) -> None:
        super().__init__()
        self._leaf, self._order = component.leaf, component.order

    def add(self, node: UnifiedTreeNode) -> None:
        if node not in self:
            super().add(node)
            self._order.add(node.id, self._leaf(node))

    def discard(self, node: UnifiedTreeNode) -> None:
        if node in self:
            super().discard(node)
            self._order.discard(self._leaf(node))


def _end(node: UnifiedTreeNode) -> int:
    """Depth at which the node ends, in tokens; never changes, as a split cuts a node at its front."""
    path = []
    while (end := getattr(node, "tel_end", None)) is None and node.parent is not None:
        path.append(node)
        node = node.parent
    end = end or 0
    for below in reversed(path):
        end = below.tel_end = end + len(below.key)
    return end


def _history(node: UnifiedTreeNode) -> int:
    """L: the deepest that any path through this node's end has been, as far as nothing below it is resident."""
    return max(_end(node), getattr(node, "tel_history", 0))
