"""How a leaf is cut in SGLang's Rust tree core, which has no call for it.

``insert_host()`` splits a node when it finds a part of its tokens there, so it is given those that stay. Which tokens a
node has, ``build_storage_backup_spec()`` tells, but only of one with a host value. ``commit_backup()`` sets one, for
which the slots of the device serve. Under write-back ``finish_load_back()`` and ``drive_host_eviction()`` remove it
again. No KV moves, and subscribers to the cache's events hear nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.disaggregation.kv_events import BlockRemoved, StorageMedium
from sglang.srt.mem_cache.unified_cache.components import ComponentType

if TYPE_CHECKING:
    from sglang.srt.disaggregation.kv_events import KVCacheEvent
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

__all__ = ["cut_leaf", "device_events", "find_parent", "parent_of"]

FULL = ComponentType.FULL

_NOTHING = torch.empty(0, dtype=torch.int64)


def find_parent(binding: Any, node_id: NodeId, length: int) -> NodeId | None:
    """The node above one, if that has ``length`` tokens. No other call of the core names a parent."""
    found = binding.validate_buffer_backup(node_id, length)
    return None if found is None else found.parent_node_id


def parent_of(binding: Any, node_id: NodeId, length: int) -> NodeId:
    """The node above one of ``length`` tokens."""
    parent_id = find_parent(binding, node_id, length)
    assert parent_id is not None, f"node {node_id} is not one of {length} tokens"
    return parent_id


def cut_leaf(binding: Any, leaf_id: NodeId, parent_id: NodeId, length: int, kept: int, is_eagle: bool) -> Any:
    """Split a leaf of ``length`` tokens after the first ``kept``. The front is a new node, the tail keeps the id.

    Args:
        binding: of the Rust core.
        parent_id: of the node above the leaf.
        is_eagle: whether keys are pairs of tokens.

    Returns:
        What the cache has to do about it, as the binding tags it.
    """
    extra_key, cache_salt = binding.prefetch_anchor_info(leaf_id)
    front = _tokens_of(binding, leaf_id, length)[: kept + is_eagle]  # k pairs are k + 1 tokens
    # Under write-back an insert that is found on the device ends in a split, and sets no host value.
    with _written_back(binding):
        found = binding.insert_host(parent_id, extra_key, front, _NOTHING, [], cache_salt)
    assert found.prefix_len == kept, f"a cut after {kept} tokens came out at {found.prefix_len}"
    return found.cache_actions


def _tokens_of(binding: Any, node_id: NodeId, length: int) -> memoryview:
    """The tokens of a node, which has a host value for as long as that takes."""
    binding.commit_backup(node_id, binding.get_component_device_value(node_id, int(FULL)), {})
    try:
        tokens = binding.build_storage_backup_spec(node_id, False).token_ids
    finally:
        binding.finish_load_back(node_id)
        with _written_back(binding):  # else it stays as the backup of what the device has
            binding.drive_host_eviction(int(FULL), length, False)
    return memoryview(tokens).cast("q")


@contextmanager
def _written_back(binding: Any) -> Iterator[None]:
    binding.set_is_write_back(True)
    try:
        yield
    finally:
        binding.set_is_write_back(False)


def device_events(take: Callable[[], list[KVCacheEvent]]) -> list[KVCacheEvent]:
    """What a subscriber is told: no copy on the host was more than a way to ask for tokens.

    What was removed in a row is one event, as on the Python core, and not one for each cut.
    """
    events: list[KVCacheEvent] = []
    for event in take():
        if not isinstance(event, BlockRemoved):
            events.append(event)
        elif event.medium is not StorageMedium.CPU:
            if events and isinstance(last := events[-1], BlockRemoved) and last.medium == event.medium:
                last.block_hashes.extend(event.block_hashes)
            else:
                events.append(event)
    return events
