"""Real SGLang caches on real pools that are tiny per token, and the arguments that a scheduler hands to them."""

from __future__ import annotations

import atexit
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel, get_server_args
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from radix_tlru.sglang.cpu import host

__all__ = [
    "Core",
    "WritePolicy",
    "add_host_tier",
    "allocator_of",
    "cache_params",
    "stock_cache",
    "stock_cache_of",
]

Core = Literal["python", "rust"]

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
"""When a hierarchical cache copies to the host: on insert, on the second use, or on eviction."""


def cache_params(capacity: int, page_size: int = 1, core: Core | None = None) -> CacheInitParams:
    """What a scheduler hands to its cache: a CPU pool of ``capacity`` tokens, 8 bytes each, and its allocator.

    ``core``: the tree core; None leaves the choice to SGLang.
    """
    _publish(page_size)
    pool = MHATokenToKVPool(
        size=capacity,
        page_size=page_size,
        dtype=torch.float32,
        head_num=1,
        head_dim=1,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    return CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(size=1, max_context_len=1, device="cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator_of(pool, capacity, page_size),
        page_size=page_size,
        tree_core_backend=core,
    )


def allocator_of(pool: KVCache, capacity: int, page_size: int) -> BaseTokenToKVPoolAllocator:
    """SGLang's allocator of a pool of ``capacity`` tokens in pages of that size."""
    arguments: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "kvcache": pool, "need_sort": False}
    if page_size == 1:
        return TokenToKVPoolAllocator(size=capacity, **arguments)
    return PagedTokenToKVPoolAllocator(size=capacity, page_size=page_size, **arguments)


def _publish(page_size: int) -> None:
    """Have SGLang's classes find the arguments of a server with such pages, unless they are there: it takes 2 ms."""
    arguments = _arguments(page_size)
    try:
        is_published = get_server_args() is arguments
    except ValueError:  # there are none yet
        is_published = False
    if not is_published:
        set_global_server_args_for_scheduler(arguments)


@functools.cache
def _arguments(page_size: int) -> ServerArgs:
    return ServerArgs(model_path="dummy", page_size=page_size)


def stock_cache(
    capacity: int,
    page_size: int = 1,
    policy: str = "lru",
    policy_config: Mapping[str, int | str] | None = None,
    core: Core = "python",
) -> UnifiedRadixCache:
    """The unmodified cache of SGLang, under one of its own policies and on one of its two tree cores."""
    return stock_cache_of(cache_params(capacity, page_size, core), policy, policy_config)


def stock_cache_of(
    params: CacheInitParams, policy: str = "lru", policy_config: Mapping[str, int | str] | None = None
) -> UnifiedRadixCache:
    """The same on pools that are there. ``params``: not changed."""
    return UnifiedRadixCache(
        replace(
            params,
            tree_components=params.tree_components or (ComponentType.FULL,),
            eviction_policy=policy,
            eviction_policy_config=dict(policy_config) if policy_config else None,
        )
    )


def add_host_tier(
    cache: UnifiedRadixCache,
    params: CacheInitParams,
    ratio: float,
    write_policy: WritePolicy = "write_through",
    storage: Path | None = None,
) -> None:
    """Give a cache on the Python core its host tier, of ``ratio`` times the pool (rounded down, and a page).

    ``storage``: the directory of SGLang's file storage behind it, which is asked for a page or more, and waited for.
    """
    host.install()
    behind = {"file_storage_path": str(storage), "prefetch_threshold": params.page_size}
    arguments = ServerArgs(
        model_path="dummy",
        page_size=params.page_size,
        hicache_ratio=ratio,
        hicache_write_policy=write_policy,
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
        hicache_storage_backend="file" if storage else None,
        hicache_storage_backend_extra_config=json.dumps(behind) if storage else None,
        hicache_storage_prefetch_policy="wait_complete",
    )
    set_global_server_args_for_scheduler(arguments)
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):  # which name the files
        cache.init_hicache(arguments, params)
    atexit.unregister(cache.shutdown)  # or no cache would be forgotten before the process ends
