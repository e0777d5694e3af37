"""SGLang's own fixtures on the patched tree: its lock fuzzer, and its event stream read by a router.

Every shape of cache that the fuzzer can drive, under ``lru`` on the persistent order and under page-granular ``tlru``.
"""

from __future__ import annotations

import functools
import random
from array import array
from dataclasses import replace

import pytest
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.test.kits.unified_radix_cache import fixtures, insert_walk
from sglang.test.kits.unified_radix_cache.config import CONFIGS, CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix

from tests.sglang.test_kits import Fuzzer, Router, resident_prefixes, without_sliding_window

FULL = ComponentType.FULL
FULL_CONFIGS = [config for config in CONFIGS if config.components == (FULL,)]
BIGRAM_CONFIGS = [replace(config, is_eagle=True) for config in FULL_CONFIGS]
# The fuzzer gives no Mamba state back, so that it would run out of it, and cuts windows (SWA) anywhere in a page.
SWA_CONFIGS = [config for config in CONFIGS if config.components == (FULL, ComponentType.SWA) and config.page_size == 1]
FUZZED = FULL_CONFIGS + BIGRAM_CONFIGS + SWA_CONFIGS
ALL_CONFIGS = [replace(config, eviction_policy=policy) for policy in ("lru", "tlru") for config in FUZZED]
SEEDS = range(4)


def build(config: CacheConfig, **arguments: bool) -> tuple[UnifiedRadixCache, TokenToKVPoolAllocator, object]:
    """The fixture's cache on a CPU, evicted to the page; a path of more than 6 pages has something not TEL-safe."""
    lengths = {"threshold": 8 * config.page_size, "next_prompt_estimate": 2 * config.page_size}
    tlru = {**lengths, "granularity": "page", "trim_chunk": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixtures, "get_device", lambda: "cpu")
        if config.eviction_policy == "tlru":
            patch.setattr(fixtures, "CacheInitParams", functools.partial(CacheInitParams, eviction_policy_config=tlru))
        built: tuple[UnifiedRadixCache, TokenToKVPoolAllocator, object] = build_fixture(config, **arguments)
    return built


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=lambda config: f"{config.eviction_policy}-{config.label}")
def test_sglangs_lock_fuzzer_finds_nothing(config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[UnifiedRadixCache] = []

    def build_recorded(config: CacheConfig) -> tuple[UnifiedRadixCache, TokenToKVPoolAllocator, object]:
        cache, allocator, requests = build(config)
        if ComponentType.SWA not in config.components:
            without_sliding_window(cache, allocator)
        caches.append(cache)
        return cache, allocator, requests

    monkeypatch.setattr(insert_walk, "build_fixture", build_recorded)
    for seed in SEEDS:
        Fuzzer(config).run(seed)
    for cache in caches:
        assert cache.tree_core.evictable_device_order is not None
        in_pages = config.eviction_policy == "tlru" and config.components == (FULL,)
        assert cache.tree_core.evicts_partial_leaves == in_pages
        assert cache.full_protected_size() == 0  # the fuzzer gave back every lock
        cache.evict(EvictParams(num_tokens=config.kv_size))
        assert cache.full_evictable_size() == 0


@pytest.mark.parametrize("config", FULL_CONFIGS, ids=lambda config: config.label)
def test_a_router_that_reads_the_events_knows_exactly_the_resident_blocks(config: CacheConfig) -> None:
    page = config.page_size
    config = replace(config, kv_size=64 * page, eviction_policy="tlru")
    cache, allocator, _ = build(config, enable_kv_cache_events=True)
    rng, router = random.Random(page), Router()
    conversations: list[list[int]] = [[]]
    for _ in range(200):
        earlier = rng.choice(conversations)
        kept = rng.choice([len(earlier), rng.randrange(len(earlier) + page) // page * page])  # a next turn or a branch
        tokens = [*earlier[:kept], *(rng.randrange(10**6) for _ in range(rng.randrange(1, 6) * page))]
        conversations.append(tokens[: 24 * page])
        if allocator.available_size() < len(conversations[-1]):
            cache.evict(EvictParams(num_tokens=len(conversations[-1]) - allocator.available_size()))
        values = allocator.alloc(len(conversations[-1]))
        cache.insert(InsertParams(key=RadixKey(array("q", conversations[-1])), value=values))
        match_prefix(cache, rng.choice(conversations)[: rng.randrange(24) * page])
        asked = min(rng.randrange(3) * page, cache.full_evictable_size())
        assert cache.evict(EvictParams(num_tokens=asked)).num_tokens_evicted == asked
        router.read(cache.take_events())
        assert router.prefixes() == set(resident_prefixes(cache))
