"""The Full-attention component that evicts what :class:`~radix_tlru.policy.order.EvictionOrder` names.

SGLang's ``FullComponent`` builds a heap of all evictable leaves for each eviction and takes whole nodes. This one
keeps the order between evictions and takes tails: the victim is split at the page boundary that must stay, and its
tail alone is handed to the eviction driver, which does with it what it does with any leaf.

Here is what does not depend on the tree: which policy is in force, whose request was served, what goes next. How the
order hears of the leaves, and how a tail is taken, is the business of ``rust_core`` and ``python_core``, one for each
of SGLang's tree cores.

Recency is counted here, in matches and inserts of this cache. A use, and the conversation whose use it was, is written
on the node that it ends at. Both go to the parent when that node is evicted, as the history does: only leaves are
asked how recent they are and who may come back for them.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from radix_tlru.config import Config
from radix_tlru.learning.learner import Learner
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, Victim
from radix_tlru.policy.policy import Policy, policy_for
from radix_tlru.sglang.cache.breaker import Breaker
from radix_tlru.sglang.cache.journal import Journal
from radix_tlru.sglang.cache.sessions import Order
from radix_tlru.sglang.requests.metadata import metadata_of
from radix_tlru.sglang.requests.turns import is_health_check, turn_of
from radix_tlru.sglang.state import StateKeeper

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radix_tlru.learning.records import Conversation, Turn
    from radix_tlru.objective.load_weight import LoadWeight, PrefillLoad

__all__ = ["EvictedTails", "EvictionCounts", "TailComponent", "component_for"]

FULL = ComponentType.FULL

logger = logging.getLogger(__name__)


class EvictionCounts(Counter[str]):
    """Since the start: tokens evicted in each phase (``tel_safe``, ``lru``) and ``splits`` made to evict a tail.

    The same of the host tier under ``host_tel_safe``, ``host_lru`` and ``host_splits``.
    """


@dataclass(slots=True)
class EvictedTails:
    """What was evicted so far, and is to be freed by whoever asked."""

    slots: list[torch.Tensor] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)  # what the cache has to do about it
    tokens: int = 0


class TailComponent(FullComponent):
    """Full-attention KV under a TEL-aware order.

    A subclass for each tree core answers the abstract methods. A subclass of that fixes the ``config``
    (:func:`component_for`).
    """

    config: Config

    state: StateKeeper | None = None
    """Keeps what is learned from one run to the next, if it is kept."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        self._core: Any = None
        super().__init__(cache, params)
        self.page_size: int = params.page_size
        pool: int = params.token_to_kv_pool_allocator.size_full  # of what full attention caches
        self.config = self.config.for_pool(pool)
        self.learner: Learner | None = None
        """Told of every request that was served, and names the policy in force; none under ``lru``."""
        if self.config.policy != "lru":
            learned = None if self.state is None else self.state.load()
            watched = params.enable_metrics
            self.learner = Learner(self.config, pool, self.page_size, watched, learned)
        self.policy = policy_for(self.config)
        self.counts = EvictionCounts()
        self.clock = 0
        """Matches and inserts so far."""
        self.order = self._new_order()
        self.available_target: int | None = None
        """Tokens that must be available for the allocation under way; None if this eviction serves none."""
        self.one_by_one = False
        """Whether the driver has to look at the pool after each victim."""
        self.journal = Journal.if_wanted()
        self.breaker = Breaker(self._fall_back)
        self.call_tokens: Sequence[int] = ()
        """Token ids that begin a call of a tool; none: how an answer ended is told by its last tokens."""
        self._stamp = 0.0  # of the last request that was served, s

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
    def _leaf_of(self, node_id: NodeId) -> Leaf | None:
        """The node as the order sees it, if it can be evicted."""

    @abstractmethod
    def has_children(self, node_id: NodeId) -> bool:
        """Whether anything cached continues the path that ends at the node."""

    @abstractmethod
    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        """Write on a node whose turn has just used it, and still locks it, which conversation that was."""

    def _new_order(self) -> Order:
        return EvictionOrder(self.policy, self.page_size, self._leaf_of)

    def reset_order(self) -> None:
        """The tree was emptied."""
        if self.learner is not None:
            self.learner.clear_claims()
        self.order = self._new_order()

    def advance_clock(self) -> None:
        """A match or an insert begins."""
        self.clock += 1

    # ---- the policy in force ----

    @property
    def load(self) -> LoadWeight | None:
        """What w follows, if it follows the load."""
        return None if self.learner is None else self.learner.load

    def count_prefill(self, prefill: PrefillLoad) -> None:
        """A prefill starts; w follows the load, unless it is given."""
        load = self.load
        if self.learner is None or load is None:
            return
        before = load.weight
        try:
            self.learner.count_prefill(prefill)
            if load.weight != before:
                logger.info("radix_tlru: w by the load %.2f, as %.2f requests wait", load.weight, load.waiting)
                self._put_in_force(self.learner.policy)
        except Exception as error:
            self.breaker.trip("to learn how many requests wait", error)

    def use_threshold(self, threshold: int) -> None:
        """Evict by another ξ (tokens) from now on; the order sorts its leaves once."""
        assert self.learner is not None, "lru has no threshold"
        self.learner.use_threshold(threshold)
        self._put_in_force(self.learner.policy)

    def _put_in_force(self, policy: Policy) -> None:
        if policy is not self.policy:
            self.policy = policy
            self.switch_policy()

    def switch_policy(self) -> None:
        """Order the leaves by the policy in force."""
        self.order.switch_policy(self.policy)

    def _fall_back(self) -> None:
        """Evict by lru from now on, learn nothing, and order all leaves anew."""
        self.learner = None
        self.policy = policy_for(Config("lru", trim_chunk=self.config.trim_chunk))
        self.restart_order()

    @abstractmethod
    def restart_order(self) -> None:
        """Put a new order, of the same leaves, in place of one that may be broken."""

    def order_of_tier(self, tier: str) -> Order:
        """The order in force of the device (an empty name) or the host (``host_``)."""
        return self.order

    # ---- conversations ----

    def mark_queued(self, conversation: Conversation | None) -> None:
        """All that is cached of a conversation was looked up, for a request that is queued or about to be served."""
        if self.learner is not None and conversation is not None:
            try:
                self.learner.mark_queued(conversation)
            except Exception as error:
                self.breaker.trip("to learn that a request is queued", error)

    def end_conversation(self, conversation: Conversation) -> None:
        """Nobody will come back for what that conversation alone has. Its leaf must be out of the order meanwhile."""
        if self.learner is not None:
            try:
                self.learner.end_conversation(conversation)
                self._put_in_force(self.learner.policy)
            except Exception as error:
                self.breaker.trip("to learn of the end of a conversation", error)

    def cleanup_after_caching_req(
        self,
        req: Req,
        is_finished: bool,
        insert_result: InsertResult | None = None,
        insert_params: InsertParams | None = None,
    ) -> None:
        """A request has been served, if it is finished and its context is in the tree."""
        super().cleanup_after_caching_req(req, is_finished, insert_result, insert_params)
        if not is_finished or insert_result is None or insert_result.rotation_tail_declined:
            return
        try:
            self._learn_from(req, insert_result.last_device_node, insert_params)
        except Exception as error:
            self.breaker.trip("to read what a request was", error)

    def _learn_from(self, req: Req, node_id: NodeId, insert_params: InsertParams | None) -> None:
        """A request has been served, and its context ends at that node."""
        assert insert_params is not None, "what was inserted has a key"
        # Before n answers to one prompt SGLang asks for none, to have the prompt cached: that is no turn.
        is_turn = req.sampling_params.max_new_tokens != 0 and not is_health_check(req)
        if len(insert_params.key) and is_turn:
            stamp, hints = metadata_of(req)
            if stamp is None and self.config.policy == "etlru":
                _warn_unstamped()
            self._stamp = self._stamp if stamp is None else stamp
            self.record_turn(node_id, turn_of(req, insert_params.key, self._stamp, hints, self.call_tokens))

    def record_turn(self, node_id: NodeId, turn: Turn) -> None:
        """A turn was served, and its context ends at that node; the policy in force follows what is learned of it."""
        if self.learner is None:
            return
        before = self.learner.in_force
        try:
            self.write_use(node_id, self.learner.record_turn(turn, is_leaf=not self.has_children(node_id)))
            if self.learner.in_force != before:
                logger.info("radix_tlru: evicting by %s from now on", self.learner.in_force)
            self._put_in_force(self.learner.policy)
            if self.state is not None:
                self.state.count_turn(self.learner)
        except Exception as error:
            self.breaker.trip("to learn from a turn", error)

    def save_state(self) -> None:
        """The server shuts down: save what was learned, if it is kept, unless it may be broken."""
        if self.state is not None and self.learner is not None:
            self.state.close(self.learner)

    # ---- eviction ----

    def missing(self, requested: int) -> int:
        """Tokens still to be freed, of those that the driver requests."""
        if self.available_target is None or requested <= 0:
            return requested
        # The driver asks for all there is and stops when the allocation fits, so the shortfall is ours to see. An
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
            self.counts[tier + victim.phase] += victim.leaf.end - victim.keep
            if victim.keep > victim.leaf.start:
                self.counts[f"{tier}splits"] += 1
        return victim


def component_for(config: Config, base: type[TailComponent], state: StateKeeper | None = None) -> type[TailComponent]:
    """The component class to register for ``ComponentType.FULL`` so that a cache follows ``config``."""
    return type(base.__name__, (base,), {"config": config, "state": state, "__doc__": base.__doc__})


@cache
def _warn_unstamped() -> None:
    """Once: etlru learns without time, and is not what it could be."""
    logger.warning("radix_tlru: requests come without a stamp, so etlru does not see time pass between turns")
