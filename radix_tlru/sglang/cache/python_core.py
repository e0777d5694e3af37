"""Our order on SGLang's Python tree core, which a component reaches into.

What the tree has to tell the order, and where it does (``unified_cache/unified_tree_core.py``):

======================  =========================================================================================
a leaf appears, goes    ``evictable_device_leaves``, the set that every place in the tree adds to and discards from,
                        and ``evictable_host_leaves`` (see :mod:`~radix_tlru.sglang.cache.host_tier`)
a tail is evicted       ``evict_component``: the parent takes over the history
a node is split         ``_split_node``: the front takes over the conversation and the history of the node
a path comes back       ``insert_host``: from storage to the host; what is above it has been as deep
a path is used          ``match_prefix``, ``begin_insert``: the node that they end at
everything is dropped   ``reset``
sessions come and go    ``_advance_session_coverage`` and its like: the path of one is referred to, or no longer
======================  =========================================================================================

With a host tier a use may end below the device: then it is one of the deepest node on the device, too. Leaves of hybrid
models are evicted whole (see :mod:`~radix_tlru.sglang.cache.hybrids`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer

from radix_tlru.learning.records import Conversation, is_known, is_later, session_key
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, Victim
from radix_tlru.policy.policy import Policy
from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.cache.host_tier import HostTier
from radix_tlru.sglang.cache.hybrids import WholeLeaves
from radix_tlru.sglang.cache.python_nodes import EvictableLeaves, access_of, conversation_of, end_of, history_of
from radix_tlru.sglang.cache.sessions import Order, SessionOrder
from radix_tlru.sglang.requests.turns import namespace_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult, MatchPrefixParams, MatchResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import InsertStepResult, NodeId
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

__all__ = ["PythonTailComponent"]

FULL = ComponentType.FULL


class PythonTailComponent(TailComponent):
    """The component in the cache. It replaces some methods of the tree, and names the leaves to evict."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        self._has_sessions = params.enable_session_radix_cache
        super().__init__(cache, params)
        self.host = HostTier(self)
        self._whole = WholeLeaves(self) if len(params.tree_components or ()) > 1 else None
        self._set_aside: list[UnifiedTreeNode] = []  # victims that could not be evicted in this walk
        self._named: int | None = None  # the last victim
        self._requested = 0

    # ---- what the tree tells the order ----

    def _listen(self, core: Any) -> None:
        self._stock = _Stock(
            core.reset, core._split_node, core.match_prefix, core.begin_insert, core.resume_insert, core.insert_host
        )
        core.reset, core._split_node, core.insert_host = self._reset_tree, self._split_used_node, self._insert_host
        core.match_prefix, core.begin_insert, core.resume_insert = self._match, self._insert, self._resume_insert

    def order_of(self, policy: Policy, leaf_of: Callable[[int], Leaf | None]) -> Order:
        """An order of the leaves of a tier, empty."""
        if self._has_sessions:
            return SessionOrder(policy, self.page_size, leaf_of, self._is_referred_to)
        return EvictionOrder(policy, self.page_size, leaf_of)

    def switch_policy(self) -> None:
        super().switch_policy()
        self.host.switch_policy()

    def renew_prices(self) -> None:
        super().renew_prices()
        self.host.order.renew_prices()

    def reset_order(self) -> None:
        self.order = self.order_of(self.policy, self._leaf_of)
        self.host.reset_order()

    def restart_order(self) -> None:
        self.reset_order()
        self._core.evictable_device_leaves.follow(self.order)
        self._core.evictable_host_leaves.follow(self.host.order)

    def order_of_tier(self, tier: str) -> Order:
        return self.host.order if tier else self.order

    def _reset_tree(self) -> None:
        self._stock.reset()
        self.reset_order()
        self._core.evictable_device_leaves = EvictableLeaves(self, self.order, self.prepare)
        self._core.evictable_host_leaves = EvictableLeaves(self, self.host.order, self.prepare, tier="host_")

    def _match(self, params: MatchPrefixParams) -> MatchResult:
        self.advance_clock()
        result = self._stock.match_prefix(params)
        for node_id in dict.fromkeys((result.last_device_node, result.best_match_node)):
            node = self._core._node_arena[node_id]
            node.tel_access = self.clock
            if not node.children and node.parent is not None:  # nothing is found at the root of an empty tree
                self.mark_queued(node_id, params.req)
        return result

    def _insert(self, params: InsertParams) -> InsertStepResult:
        self.advance_clock()
        return self._inserted(self._stock.begin_insert(params))

    def _resume_insert(self) -> InsertStepResult:
        return self._inserted(self._stock.resume_insert())

    def _inserted(self, step: InsertStepResult) -> InsertStepResult:
        if step.result is not None and not step.result.rotation_tail_declined:
            self._core._node_arena[step.result.last_device_node].tel_access = self.clock
        return step

    def _insert_host(self, *args: Any, **kwargs: Any) -> InsertResult:
        """Storage gives back what the tree had dropped, for a request that waits for it.

        The paths that lead there have been as deep. Whose it was is not known: the node above has the last conversation
        of all that were dropped below it, and what that one's client claims is not for others.
        """
        result = self._stock.insert_host(*args, **kwargs)
        if result.inserted_host_node is not None:
            node = self._core._node_arena[result.inserted_host_node]
            self._write(node, tel_access=self.clock)
            self._write_first_use(node.id)
            history = history_of(node)
            while (node := node.parent) is not None and history_of(node) < history:
                self._write(node, tel_history=history)
        return result

    def _write(self, node: UnifiedTreeNode, **attributes: Any) -> None:
        """Write to a node that may be an evictable leaf of either tier."""
        tiers = self._core.evictable_device_leaves, self._core.evictable_host_leaves
        evictable_in = [leaves for leaves in tiers if node in leaves]
        for leaves in evictable_in:
            leaves.discard(node)
        vars(node).update(attributes)
        for leaves in evictable_in:
            leaves.add(node)

    def _split_used_node(self, key: Any, child: UnifiedTreeNode, split_len: int) -> tuple[UnifiedTreeNode, Any]:
        """A match or an insert ends inside a node, which does not use what lies behind its end."""
        if self.config.policy == "lru":  # it is there to be compared with stock, which counts it as a use
            child.tel_access = self.clock
        return self._split(key, child, split_len)

    def _split(self, key: Any, child: UnifiedTreeNode, split_len: int) -> tuple[UnifiedTreeNode, Any]:
        """Split a node; the front was last used as the node was, and has been as deep."""
        if self._whole is not None:  # more is usable without the tail than without the node; SGLang adds it again
            self._core.evictable_device_leaves.discard(child)
        prefix, action = self._stock.split(key, child, split_len)
        prefix.tel_access, prefix.tel_conversation = access_of(child), conversation_of(child)
        prefix.tel_history = history_of(child)  # it may become a device leaf while the tail is still there, on the host
        return prefix, action

    def has_children(self, node_id: NodeId) -> bool:
        return bool(self._core.node_by_id(node_id).children)

    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        """As of the class above. Of what is on the host alone, what is left on the device has the last use, too."""
        node = self._core._node_arena.get(node_id)
        if node is None:
            return
        self._write(node, tel_conversation=conversation)
        while node.evicted and is_known(conversation) and (node := node.parent).parent is not None:
            if is_later(conversation, conversation_of(node)):
                self._write(node, tel_conversation=conversation)

    def conversation_at(self, node_id: NodeId) -> Conversation | None:
        conversation: Conversation | None = conversation_of(self._core._node_arena[node_id])
        return conversation

    # ---- sessions ----

    def _is_referred_to(self, node_id: int) -> bool:
        return bool(self.session_ref(self._core.node_by_id(node_id)) > 0)

    def _advance_session_coverage(self, session_id: str, leaf: UnifiedTreeNode, *args: Any) -> None:
        with self._out_of_the_orders(leaf):
            super()._advance_session_coverage(session_id, leaf, *args)

    def _recede_session_coverage(self, session_id: str, leaf: UnifiedTreeNode, *args: Any) -> None:
        with self._out_of_the_orders(leaf):
            super()._recede_session_coverage(session_id, leaf, *args)

    def _dec_session_coverage(self, session_id: str, leaf: UnifiedTreeNode) -> None:
        with self._out_of_the_orders(leaf):
            super()._dec_session_coverage(session_id, leaf)

    def release_session(self, session_id: str) -> int:
        """A session was closed. What conversations alone it had goes first from now on."""
        ends = sorted(self._session_leaves.get(session_id, ()), key=lambda node: node.id)  # alike on all ranks
        with self._out_of_the_orders(*ends):
            for end in ends:
                if self.session_ref(end) == 1:  # no other session refers to it
                    self._end_at(end, session_key(session_id, namespace_of(end.key)))
            closed: int = super().release_session(session_id)
        return closed

    def _end_at(self, end: UnifiedTreeNode, session: int) -> None:
        """End the conversation that took the last turn at a node, if it is of that session; once it is recorded."""
        waiting, conversation = self._unrecorded.last_at(end.id), conversation_of(end)
        if waiting is not None:
            name = waiting.turn.session
            waiting.is_over = name is not None and session_key(name, waiting.turn.namespace) == session
        elif conversation is not None and conversation.session == session:
            self.end_conversation(conversation)

    @contextmanager
    def _out_of_the_orders(self, *ends: UnifiedTreeNode) -> Iterator[None]:
        """Take the leaves on the paths to these nodes out of the orders while something about them changes."""
        tiers, held = (self._core.evictable_device_leaves, self._core.evictable_host_leaves), []
        for end in ends:
            node: UnifiedTreeNode | None = end
            while node is not None:
                held += [(leaves, node) for leaves in tiers if node in leaves]
                for leaves in tiers:
                    leaves.discard(node)
                node = node.parent
        yield
        for leaves, leaf in held:
            leaves.add(leaf)

    # ---- eviction ----

    def evict_component(
        self,
        node: UnifiedTreeNode,
        *args: Any,
        target: EvictLayer = EvictLayer.DEVICE,
        **kwargs: Any,
    ) -> tuple[int, int]:
        """The history of a path survives its tail: the parent remembers how deep it was, and its last use.

        A root is on the path of everybody and remembers nobody. What is demoted is still there, with its uses.
        """
        parent = node.parent
        # What is dropped from the host was demoted before. A parent on the device took its history over then.
        has_taken_over = not parent.evicted if node.evicted else EvictLayer.DEVICE not in target
        is_demoted = node.backuped and EvictLayer.HOST not in target
        if not has_taken_over and parent.parent is not None:
            parent.tel_history = max(history_of(parent), history_of(node))
            if is_later(conversation_of(node), conversation_of(parent)):
                parent.tel_conversation = conversation_of(node)
            parent.tel_access = max(access_of(parent), access_of(node))
        if not is_demoted and (node.evicted or not has_taken_over) and parent.parent is not None:
            self.leave_uses(node.id, parent.id)
        freed: tuple[int, int] = super().evict_component(node, *args, target=target, **kwargs)
        return freed

    def leaf(self, node: UnifiedTreeNode) -> Leaf:
        """The node as the order sees it; depths in tokens from the root."""
        end = end_of(node)
        access = getattr(node, "tel_access", self.clock)  # an insert writes the use of a new leaf at its end
        usable_without = getattr(node, "tel_usable_without", None)
        return Leaf(end - len(node.key), end, history_of(node), access, conversation_of(node), usable_without)

    def prepare(self, node: UnifiedTreeNode) -> None:
        """Before a leaf is added to an order: write what the order sees until the leaf is added again."""
        if self._whole is None:
            return
        node.tel_usable_without = 0  # whatever it is, the leaf goes whole, and lru asks for no more
        if not self.breaker.has_tripped:
            try:
                node.tel_usable_without = self._whole.usable_without(node)
            except Exception as error:
                self.breaker.trip("to see what is usable without a leaf", error)

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf that can be evicted."""
        return map(self.leaf, self._core.evictable_device_leaves)

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
        cache_actions: list[Any] | None = None,
    ) -> int | None:
        """The next leaf to evict, cut to the tail that has to go; None when enough was freed or nothing is left.

        SGLang passes no ``cache_actions`` before 0.5.23, where a split asks for one in hierarchical caches alone.
        """
        self._set_victim_aside()
        missing = self.missing(self._requested - tracker[FULL])
        if missing > 0 and self._whole is not None:
            try:
                self._whole.correct_next(missing)
            except Exception as error:
                self.breaker.trip("to choose what goes", error)
        victim = self.next_victim(missing) if missing > 0 else None
        if victim is None:
            return None
        self.cut(victim, cache_actions)
        self._named = victim.leaf_id
        return victim.leaf_id

    def _set_victim_aside(self) -> None:
        """Set the last victim aside if it is still there: it found no room on the host, and a lock keeps it here.

        It must not be named again in this walk, or the walk would never end.
        """
        node = self._core._node_arena.get(self._named)
        self._named = None
        if node is not None and node in self._core.evictable_device_leaves:
            self._core.evictable_device_leaves.discard(node)
            self._set_aside.append(node)

    def cut(self, victim: Victim, cache_actions: list[Any] | None) -> None:
        """Split off the tail that a victim names. The tail keeps the id of the leaf, so that nobody else need know."""
        if victim.keep == victim.leaf.start:
            return
        node = self._core.node_by_id(victim.leaf_id)
        _, action = self._split(node.key, node, victim.keep - victim.leaf.start)
        if action is not None:
            assert cache_actions is not None, f"nobody to carry out {action}"
            cache_actions.append(action)

    def _evict_device_end(self) -> None:
        self._named = None  # it is gone, or tried again in the next walk
        self._requested = 0
        set_aside, self._set_aside = self._set_aside, []
        for node in set_aside:
            if node.id in self._core._node_arena:
                self._core._update_evictable_leaf_sets(node)

    # ---- the host tier ----

    def drive_host_eviction(self, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """SGLang wants ``num_tokens`` tokens of host memory back."""
        self.host.evict(num_tokens, *args, **kwargs)


class _Stock(NamedTuple):
    """The methods of the tree core that this component replaces."""

    reset: Callable[[], None]
    split: Callable[..., tuple[UnifiedTreeNode, Any]]
    match_prefix: Callable[[MatchPrefixParams], MatchResult]
    begin_insert: Callable[[InsertParams], InsertStepResult]
    resume_insert: Callable[[], InsertStepResult]
    insert_host: Callable[..., InsertResult]
