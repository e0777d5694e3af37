"""The order behind SGLang's Rust tree core, which is the one that a stock server runs on.

The Rust core takes no components of ours and tells nobody which of its nodes can be evicted. But leaves come and go in
few ways, and every one of them is a call of the interface that :class:`RustTailCore` stands behind:

====================  =============================================================================================
``begin_insert``      ends in a new leaf, or in one that is there; what it grew out of is no leaf any more
``match_prefix``      uses the node it ends at; if it ends inside a node, the front of that node is new, and no leaf
``inc_lock_ref``      takes a leaf out of the order, and ``dec_lock_ref`` gives it back; a tail keeps the id of its node
an eviction           takes a leaf, and leaves its parent behind as one if nothing else hangs there
``reset``             drops everything
====================  =============================================================================================

How a leaf is cut in this core is in :mod:`~radix_tlru.sglang.cache.rust_cut`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.base_prefix_cache import DecLockRefResult, IncLockRefResult
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, Victim
from radix_tlru.sglang.cache.component import EvictedTails, TailComponent
from radix_tlru.sglang.cache.node_table import NodeTable
from radix_tlru.sglang.cache.rust_cut import cut_leaf, device_events, find_parent, parent_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.mem_cache.base_prefix_cache import (
        DecLockRefParams,
        InsertParams,
        InsertResult,
        MatchPrefixParams,
        MatchResult,
    )
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import (
        InsertStepResult,
        NodeId,
    )

    from radix_tlru.learning.records import Conversation

__all__ = ["RustTailComponent", "RustTailCore"]

FULL = ComponentType.FULL


class RustTailComponent(TailComponent):
    """The component in the cache; what happens in the tree it hears from :class:`RustTailCore`."""

    def _listen(self, core: RustTailCore) -> None:
        pass  # the core calls

    def reset_order(self) -> None:
        self.order = EvictionOrder(self.policy, self.page_size, self._core.leaf_of)

    def restart_order(self) -> None:
        self.reset_order()
        self._core.add_all_to_order()

    def leaves(self) -> Iterator[Leaf]:
        yield from self._core.leaves()

    def has_children(self, node_id: NodeId) -> bool:
        return bool(self._core.has_children(node_id))

    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        self._core.write_use(node_id, conversation)

    def conversation_at(self, node_id: NodeId) -> Conversation | None:
        conversation: Conversation | None = self._core.conversation_at(node_id)
        return conversation


class RustTailCore(RustUnifiedTreeCore):
    """SGLang's Rust tree core, which evicts what the order of ``tail`` names."""

    def __init__(self, params: CacheInitParams, tail: RustTailComponent) -> None:
        super().__init__(replace(params, component_registry_override=None))
        self._tail = tail
        self._nodes = NodeTable()
        self.kv_events.take = partial(device_events, self.kv_events.take)

    def reset(self) -> None:
        super().reset()
        self._nodes = NodeTable()
        self._tail.reset_order()

    # ---- what the order asks ----

    def leaf_of(self, node_id: NodeId) -> Leaf | None:
        """The node as the order sees it, if it can be evicted."""
        nodes = self._nodes
        row = nodes.rows.get(node_id)
        if row is None or nodes.locks[row] or nodes.children[row]:
            return None
        (length,) = self._binding.get_node_key_lengths([node_id])
        end = nodes.end[row]
        # As Leaf(…) makes it, in half the time: it is asked for a few times for each eviction.
        fields = (end - length, end, nodes.history[row], nodes.access[row], nodes.conversations.get(row), None)
        return tuple.__new__(Leaf, fields)

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf that can be evicted."""
        return (leaf for leaf in map(self.leaf_of, self._nodes.rows) if leaf is not None)

    # ---- uses ----

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        self._tail.advance_clock()
        result = super().match_prefix(params)
        if result.device_prefix_len:
            self._note_match(result.last_device_node)
            row = self._nodes.rows[result.last_device_node]
            if not self._nodes.children[row]:
                self._tail.mark_queued(result.last_device_node, params.req)
        return result

    def begin_insert(self, params: InsertParams) -> InsertStepResult:
        self._tail.advance_clock()
        self._inserting = len(params.key)
        return self._inserted(super().begin_insert(params))

    def resume_insert(self) -> InsertStepResult:
        return self._inserted(super().resume_insert())

    def _inserted(self, step: InsertStepResult) -> InsertStepResult:
        result: InsertResult | None = step.result
        if result is not None and not result.rotation_tail_declined:
            self._note_insert(result.last_device_node, result.prefix_len, self._inserting)
        return step

    def _note_match(self, node_id: NodeId) -> None:
        """A node was looked up; it may be new, as the core splits where a prompt ends within a node."""
        row = self._nodes.rows.get(node_id)
        if row is not None:
            self._nodes.access[row] = self._tail.clock
        else:
            self._add_new_path(node_id)

    def _note_insert(self, node_id: NodeId, start: int, end: int) -> None:
        """Tokens were inserted down to a node. If that is new it is nearly always a leaf from ``start`` to ``end``."""
        if node_id in self._nodes.rows or start == end or not self._add_new_leaf(node_id, start, end):
            self._note_match(node_id)

    def _add_new_leaf(self, node_id: NodeId, start: int, end: int) -> bool:
        """Add a new node if it is a leaf of these tokens below a known node. Returns whether it is."""
        nodes, parent_id = self._nodes, find_parent(self._binding, node_id, end - start)
        parent = None if parent_id is None else nodes.rows.get(parent_id)
        if parent_id is None or parent is None:
            return False
        self._remove_from_order(parent_id, parent)
        nodes.children[parent] += 1
        row = nodes.add_node(node_id, end, children=0)
        nodes.access[row] = self._tail.clock
        self._tail.add_leaf(self._tail.order, node_id)
        return True

    def _add_new_path(self, node_id: NodeId) -> None:
        """Add the path that ends at a new node, up to the first known node.

        That one has as many children as before, as a split put the front of one in its place.
        """
        nodes, path = self._nodes, self._binding.collect_path_info([node_id])[0]
        if not path:  # a root
            return
        for new_id, _, _, end, _, below in takewhile(lambda node: node[0] not in nodes.rows, reversed(path)):
            nodes.add_node(new_id, end, below)
        row = nodes.rows[node_id]
        nodes.access[row] = self._tail.clock
        self._add_to_order(node_id, row)

    def has_children(self, node_id: NodeId) -> bool:
        """Whether anything cached continues the path that ends at the node."""
        return self._nodes.children[self._nodes.rows[node_id]] > 0

    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        """Write on a node, if it is still there, which conversation's turn used it last."""
        row = self._nodes.rows.get(node_id)
        if row is None:
            return
        self._remove_from_order(node_id, row)
        self._nodes.set_conversation(row, conversation)
        self._add_to_order(node_id, row)

    def conversation_at(self, node_id: NodeId) -> Conversation | None:
        """The conversation that is written on a node."""
        return self._nodes.conversations.get(self._nodes.rows[node_id])

    # ---- locks: of the Full component alone, whose receipts say nothing but the node ----

    def inc_lock_ref(self, node_id: NodeId, skip_lock_components: Sequence[ComponentType] = ()) -> IncLockRefResult:
        self._lock(node_id)
        result = self._binding.inc_lock_ref(node_id, [])
        return IncLockRefResult(delta=result.delta, node_id=result.node_id)

    def dec_lock_ref(self, node_id: NodeId, params: DecLockRefParams, skip_swa: bool = False) -> DecLockRefResult:
        """Give a lock back.

        Raises:
            AssertionError: it was taken on another node, or given back before.
        """
        assert params.node_id == node_id, f"lock receipt anchored on node {params.node_id} released on node {node_id}"
        self.dec_full_pin(node_id)
        return DecLockRefResult()

    def inc_full_pin(self, node_id: NodeId) -> None:
        self._lock(node_id)
        super().inc_full_pin(node_id)

    def dec_full_pin(self, node_id: NodeId) -> None:
        row = self._nodes.rows.get(node_id)
        # The tree would take it from a lock that is held on a node below.
        assert row is None or self._nodes.locks[row] > 0, f"node {node_id} is not locked"
        self._binding.dec_full_pin(node_id)
        self._unlock(node_id)

    def _lock(self, node_id: NodeId) -> None:
        nodes = self._nodes
        row = nodes.rows.get(node_id)
        if row is None:  # a root
            return
        if not nodes.locks[row]:
            self._remove_from_order(node_id, row)
        nodes.locks[row] += 1

    def _unlock(self, node_id: NodeId) -> None:
        nodes = self._nodes
        row = nodes.rows.get(node_id)
        if row is None:
            return
        nodes.locks[row] -= 1
        self._add_to_order(node_id, row)

    # ---- the order's leaves ----

    def _add_to_order(self, node_id: NodeId, row: int) -> None:
        """If it can be evicted."""
        nodes = self._nodes
        if not (nodes.locks[row] or nodes.children[row]):
            self._tail.add_leaf(self._tail.order, node_id)

    def add_all_to_order(self) -> None:
        """The order is new, and empty."""
        for node_id, row in self._nodes.rows.items():
            self._add_to_order(node_id, row)

    def _remove_from_order(self, node_id: NodeId, row: int) -> None:
        """If it is in the order."""
        nodes = self._nodes
        if not (nodes.locks[row] or nodes.children[row]):
            self._tail.remove_leaf(self._tail.order, node_id)

    # ---- eviction ----

    def evict_device_start(self, component_type: ComponentType, request_cnt: int) -> None:
        raise AssertionError("evict_tails evicts")

    def evict_tails(self, missing: int, evicted: EvictedTails) -> None:
        """Evict ``missing`` tokens if there are as many, in whole pages.

        If this raises, ``evicted`` has what went before, which is to be freed, and the other leaves are as they were.
        """
        while evicted.tokens < missing:
            victim = self._tail.next_victim(missing - evicted.tokens)
            if victim is None:
                break
            self._evict(victim, evicted)

    def _evict(self, victim: Victim, evicted: EvictedTails) -> None:
        """Evict the tail that a victim names."""
        leaf_id, leaf, keep, _ = victim
        self._tail.remove_leaf(self._tail.order, leaf_id)
        try:
            left_id = parent_of(self._binding, leaf_id, leaf.end - leaf.start)
            if keep > leaf.start:
                left_id = self._cut(left_id, victim, evicted.actions)
            taken = self._binding.evict_device_leaf(leaf_id)
        except BaseException:
            self._find_again(leaf_id)
            raise
        evicted.slots += taken.new_device_frees[FULL]
        evicted.tokens += leaf.end - keep
        if taken.cache_actions:
            evicted.actions += self._cache_actions_from_tagged(taken.cache_actions)
        nodes = self._nodes
        left = nodes.split_node(leaf_id, left_id, keep) if keep > leaf.start else nodes.evict_leaf(leaf_id, left_id)
        if left is not None:  # or it is a root
            self._tail.leave_uses(leaf_id, left_id)
            self._add_to_order(left_id, left)

    def _find_again(self, leaf_id: NodeId) -> None:
        """A leaf was to be evicted and is still there, perhaps as the tail of a node that is new."""
        path = self._binding.collect_path_info([leaf_id])[0]
        for node_id, _, _, end, _, children in path:
            if node_id not in self._nodes.rows:
                self._nodes.add_node(node_id, end, children)
        self._add_to_order(leaf_id, self._nodes.rows[leaf_id])

    def _cut(self, parent_id: NodeId, victim: Victim, actions: list[Any]) -> NodeId:
        """Split a leaf at the depth that stays. Returns the id of the front; the tail keeps the id of the leaf."""
        leaf_id, leaf, keep, _ = victim
        length, kept = leaf.end - leaf.start, keep - leaf.start
        tagged_actions = cut_leaf(self._binding, leaf_id, parent_id, length, kept, self.is_eagle)
        if tagged_actions:
            actions += self._cache_actions_from_tagged(tagged_actions)
        return parent_of(self._binding, leaf_id, length - kept)
