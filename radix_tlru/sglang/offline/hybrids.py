"""Caches of hybrid models without a server: their pools, and what a request keeps in them at the ends of its inserts.

The counterpart of :mod:`~radix_tlru.sglang.offline.caches`, whose pools are of full attention alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertResult
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from radix_tlru.sglang.offline.caches import Core, allocator_of
from radix_tlru.sglang.offline.offline_cache import OfflineCache

__all__ = ["Hybrid", "HybridCache", "hybrid_params"]

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA

_LAYER: dict[str, Any] = {"dtype": torch.float32, "head_num": 1, "head_dim": 1, "device": "cpu"}
_FULL_LAYERS, _OTHER_LAYERS = [0], [1]


@dataclass(frozen=True)
class Hybrid:
    """What a model caches beside the KV of full attention, and how much of it fits in: a window, states, or both."""

    window: int = 0
    """Tokens of the sliding window; 0: there is none."""

    window_pool: int = 0
    """Tokens whose KV of the windowed layers fits in."""

    states: int = 0
    """Mamba states that fit in; 0: there are none."""

    @property
    def components(self) -> tuple[ComponentType, ...]:
        """What is cached of a token."""
        return (FULL, *([SWA] if self.window else []), *([MAMBA] if self.states else []))


def hybrid_params(capacity: int, hybrid: Hybrid, page_size: int = 1, core: Core | None = None) -> CacheInitParams:
    """What a scheduler hands to the cache of a hybrid: CPU pools of a few bytes a token, and their allocators.

    ``capacity``: tokens of full attention. ``core``: the tree core; None leaves the choice to SGLang.
    """
    arguments = ServerArgs(model_path="dummy", page_size=page_size)
    arguments._mamba_cache_chunk_size = page_size  # which is worked out from the model, and here there is none
    set_global_server_args_for_scheduler(arguments)
    requests = _request_pool(hybrid)
    return CacheInitParams(
        disable=False,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=_allocator(capacity, page_size, hybrid, requests),
        page_size=page_size,
        tree_core_backend=core,
        tree_components=hybrid.components,
        sliding_window_size=hybrid.window or None,
        enable_mamba_extra_buffer=bool(hybrid.states) and page_size > 1,  # as states at pages want it
    )


def _request_pool(hybrid: Hybrid) -> ReqToTokenPool:
    common: dict[str, Any] = {"size": 1, "max_context_len": 1, "device": "cpu", "enable_memory_saver": False}
    if not hybrid.states:
        return ReqToTokenPool(**common)
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=1, n_groups=1, num_heads=1, head_dim=1, state_size=1, conv_kernel=2
    )
    return HybridReqToTokenPool(
        **common,
        mamba_size=hybrid.states,
        mamba_spec_state_size=1,
        cache_params=Mamba2CacheParams(shape=shape, layers=_OTHER_LAYERS),
        mamba_layer_ids=_OTHER_LAYERS,
        enable_mamba_extra_buffer=False,  # its slots are of requests that run, and here none does
    )


def _allocator(capacity: int, page_size: int, hybrid: Hybrid, requests: ReqToTokenPool) -> Any:
    sizes: dict[str, Any] = {"size": capacity, "page_size": page_size}
    if hybrid.window:
        sizes["size_swa"] = hybrid.window_pool
        layers = {"full_attention_layer_ids": _FULL_LAYERS, "swa_attention_layer_ids": _OTHER_LAYERS}
        pool: Any = SWAKVPool(**sizes, **_LAYER, **layers)
        return SWATokenToKVPoolAllocator(**sizes, dtype=torch.float32, device="cpu", kvcache=pool, need_sort=False)
    pool = HybridLinearKVPool(**sizes, **_LAYER, full_attention_layer_ids=_FULL_LAYERS, mamba_pool=requests.mamba_pool)
    return allocator_of(pool, capacity, page_size)


class HybridCache(OfflineCache):
    """Serves requests one at a time through the cache of a hybrid; each insert leaves a window and a state."""

    def insert(self, params: Any) -> InsertResult:
        """Cache a context down to its end, with the window and the state that a next turn goes on from."""
        if self.cache.supports_swa():
            end, done = len(params.key), params.prev_prefix_len
            floor = max((end - self.cache.sliding_window_size) // self.page_size * self.page_size, 0)
            if floor > done:
                self.allocator.free_swa_segment(params.value[done:floor], start_pos=done)
            params.component_evicted_seqlens = {SWA: floor}
        if self.cache.supports_mamba():
            params.mamba_value = self.allocate_state()
        result: InsertResult = self.cache.insert(params)
        if result.mamba_exist:
            self.states.free(params.mamba_value)
        return result

    @property
    def states(self) -> Any:
        """The allocator of Mamba states."""
        return self.cache.req_to_token_pool.mamba_allocator

    def allocate_state(self) -> torch.Tensor:
        """A slot for a state; the least recent goes if there is none."""
        slot = self.states.alloc(1)
        if slot is None:
            self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slot = self.states.alloc(1)
        if slot is None:
            raise MemoryError("a state does not fit: all of them are locked")
        return slot

    def allocate(self, tokens: int) -> torch.Tensor:
        """Slots for ``tokens``, with one for the windowed layers each if there are any; evicts what is missing."""
        if not self.cache.supports_swa() or not tokens:
            return super().allocate(tokens)
        pools = self.allocator.full_attn_allocator, self.allocator.swa_attn_allocator
        full, windowed = (max(tokens - pool.available_size(), 0) for pool in pools)
        if full or windowed:
            self.cache.evict_for_alloc(EvictParams(num_tokens=full, swa_num_tokens=windowed))
        if min(pool.available_size() for pool in pools) < tokens:
            raise MemoryError(f"{tokens} tokens do not fit: {self.allocator.available_size()} are free")
        slots, windowed_slots = (pool.alloc(tokens) for pool in pools)
        self.allocator.set_full_to_swa_mapping(slots, windowed_slots)
        return slots
