"""The Full-attention component that evicts what :class:`~radix_tlru.policy.order.EvictionOrder` names.

SGLang's ``FullComponent`` builds a heap of all evictable leaves for each eviction and takes whole nodes. This one keeps
the order between evictions and takes tails. A victim is split at the page boundary that must stay. Its tail alone is
handed to SGLang's eviction driver, which treats it as any leaf.

This file decides what goes next, whatever the tree. ``rust_core`` and ``python_core``, one for each of SGLang's tree
cores, tell the order of the leaves and take the tails.

Recency is counted in matches and inserts of this cache. A use is written on the node that it ends at, with the
conversation whose use it was. When that node is evicted, its parent takes over both, and the history: the parent may be
a leaf now, and only leaves are priced. The root is never a leaf, and takes over nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import Victim
from radix_tlru.sglang.cache.journal import Journal
from radix_tlru.sglang.cache.learning_component import LearningComponent
from radix_tlru.sglang.cache.sessions import Order

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

__all__ = ["EvictedTails", "TailComponent"]

FULL = ComponentType.FULL


@dataclass(slots=True)
class EvictedTails:
    """What was evicted so far, and is to be freed by whoever asked."""

    slots: list[torch.Tensor] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)  # what the cache has to do about it
    tokens: int = 0


class TailComponent(LearningComponent):
    """Full-attention KV under a TEL-aware order.

    A subclass for each tree core answers the abstract methods.
    """

    order: Order
    """What can be evicted; a new one whenever the tree is emptied, as it is before its first use, and after a fault."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        self._core: Any = None
        super().__init__(cache, params)
        self.counts: Counter[str] = Counter()
        """Since the start: tokens evicted in each phase (``tel_safe``, ``lru``) and ``splits`` made to evict a tail.
        The same of the host tier under ``host_tel_safe``, ``host_lru`` and ``host_splits``."""
        self.clock = 0
        """Matches and inserts so far."""
        self.available_target: int | None = None
        """Tokens that must be available for the allocation under way; None if this eviction serves none."""
        self.journal = Journal.if_wanted()
        self.lru_since: tuple[int, int] | None = None
        """When a fault put lru in force: matches and inserts, and what was evicted, until then."""

    # ---- the tree ----

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
        self._listen(core)

    @abstractmethod
    def _listen(self, core: Any) -> None:
        """Have the order hear of the leaves of a tree."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """Every leaf that can be evicted."""

    @abstractmethod
    def reset_order(self) -> None:
        """Put a new order in place, which is empty."""

    def advance_clock(self) -> None:
        """A match or an insert begins."""
        self.clock += 1

    # ---- the policy in force ----

    def switch_policy(self) -> None:
        """Order the leaves by the policy in force."""
        self.order.switch_policy(self.policy)

    def renew_prices(self) -> None:
        self.order.renew_prices()

    def _fall_back(self) -> None:
        super()._fall_back()
        self.lru_since = self.clock, self.counts.total()
        self.restart_order()

    @abstractmethod
    def restart_order(self) -> None:
        """Put a new order, of the same leaves, in place of one that may be broken."""

    def order_of_tier(self, tier: str) -> Order:
        """The order in force of the device (an empty name) or the host (``host_``)."""
        return self.order

    # ---- eviction ----

    def add_leaf(self, order: Order, leaf_id: int) -> None:
        """A leaf became evictable: an order is told, and may price it."""
        try:
            order.add_leaf(leaf_id)
        except Exception as error:
            self.breaker.trip("to price a leaf", error)

    def remove_leaf(self, order: Order, leaf_id: int, tier: str = "") -> None:
        """A leaf will not be evictable any more, or will be another one: the order of a tier is told."""
        try:
            order.remove_leaf(leaf_id)
        except Exception as error:
            self.breaker.trip("to forget a leaf", error)
            self.order_of_tier(tier).remove_leaf(leaf_id)  # which is new, and has all leaves

    def missing(self, requested: int) -> int:
        """Tokens still to be freed, of those that the driver requests."""
        if self.available_target is None or requested <= 0:
            return requested
        # The driver asks for all there is and stops when the allocation fits, so the shortfall is computed here. An
        # allocator may hold freed pages back: then there is none, yet the driver goes on, page by page.
        shortfall: int = self.available_target - self.cache._component_available_size(FULL)
        return max(1, min(requested, shortfall))

    def next_victim(self, missing: int) -> Victim | None:
        """What goes next when ``missing`` tokens are to be freed, counted as evicted; None if nothing can go."""
        return self.take_victim(self.order, missing)

    def take_victim(self, order: Order, missing: int, tier: str = "") -> Victim | None:
        """What goes next in an order, counted; ``tier``: what the names of its counts begin with."""
        try:
            victim = order.choose_victim(missing)
        except Exception as error:
            self.breaker.trip("to choose what goes", error)
            victim = self.order_of_tier(tier).choose_victim(missing)
        if victim is not None:
            if self.journal is not None:
                self.journal.record(victim)
            if self.explainer is not None and not tier:
                self.explainer.count_eviction(victim, order)
            self.counts[tier + victim.phase] += victim.leaf.end - victim.keep
            if victim.keep > victim.leaf.start:
                self.counts[f"{tier}splits"] += 1
        return victim
