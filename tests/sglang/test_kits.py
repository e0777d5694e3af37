"""SGLang's own cache fixtures with our component in them: its lock fuzzer, and its event stream read by a router."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

pytest.importorskip("sglang.test.kits.unified_radix_cache", reason="this release ships no such kits")
from sglang.test.kits.unified_radix_cache import fixtures, insert_walk
from sglang.test.kits.unified_radix_cache.config import CONFIGS, CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix, node_children, node_token_ids

from radix_tlru import Config
from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.cache.learning_component import component_for
from radix_tlru.sglang.cache.python_core import PythonTailComponent

FULL, SWA = ComponentType.FULL, ComponentType.SWA

FULL_CONFIGS = [config for config in CONFIGS if config.components == (FULL,)]
# Pairs of tokens as keys, which speculative decoding with EAGLE wants of a cache.
BIGRAM_CONFIGS = [replace(config, is_eagle=True) for config in FULL_CONFIGS]
# The fuzzer ends windows anywhere, which only pages of one token allow, and gives no request back.
HYBRID_CONFIGS = [
    replace(config, max_num_reqs=120, mamba_cache_size=120)
    for config in CONFIGS
    if len(config.components) > 1 and config.page_size == 1
]
SEEDS = range(8)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")


def build_ours(config: CacheConfig, **arguments: bool) -> tuple[UnifiedRadixCache, TokenToKVPoolAllocator]:
    """The fixture's cache with our component; a path of more than 6 pages has something that is not TEL-safe."""
    config_of_ours = Config(threshold=8 * config.page_size, next_prompt_estimate=2 * config.page_size)
    ours = component_for(config_of_ours, PythonTailComponent)
    cache, allocator, _ = build_fixture(config, component_registry_override={FULL: ours}, **arguments)
    assert isinstance(cache.components[FULL], TailComponent)
    return cache, allocator


class Fuzzer(insert_walk.SegmentLockFuzzFixtures):
    """120 random inserts, matches, locks, unlocks and evictions, with a `sanity_check()` after each of them."""

    def __init__(self, config: CacheConfig) -> None:
        self.cfg = config

    def run(self, seed: int) -> None:
        self._run_seed(seed)


def without_sliding_window(cache: UnifiedRadixCache, allocator: TokenToKVPoolAllocator) -> None:
    """The fuzzer was written for models with a sliding window; here it has none to free and none to release early."""
    allocator.free_swa = lambda values: None
    lock = cache.inc_lock_ref

    def lock_without_window(*args: object, **kwargs: object) -> object:
        receipt = lock(*args, **kwargs)
        receipt.component_lock_uuids.setdefault(SWA, None)
        return receipt

    cache.inc_lock_ref = lock_without_window


@pytest.mark.parametrize("config", FULL_CONFIGS + BIGRAM_CONFIGS, ids=lambda config: config.label)
def test_sglangs_lock_fuzzer_finds_nothing(config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[UnifiedRadixCache, TokenToKVPoolAllocator]] = []

    def build(config: CacheConfig) -> tuple[UnifiedRadixCache, TokenToKVPoolAllocator, None]:
        built.append(build_ours(config))
        without_sliding_window(*built[-1])
        return *built[-1], None

    monkeypatch.setattr(insert_walk, "build_fixture", build)
    for seed in SEEDS:
        Fuzzer(config).run(seed)

    assert len(built) == len(SEEDS)
    evicted: Counter[str] = Counter()
    for cache, allocator in built:
        tail: TailComponent = cache.components[FULL]
        evicted += tail.counts
        assert len(tail.order) == len(cache.tree_core.evictable_device_leaves)
        assert cache.full_protected_size() == 0  # the fuzzer gave back every lock
        if config.page_size == 1 and not config.is_eagle:  # it never frees what an insert leaves over of a page or pair
            assert allocator.available_size() + cache.full_evictable_size() == config.kv_size
        cache.evict(EvictParams(num_tokens=config.kv_size))
        assert len(tail.order) == cache.full_evictable_size() == 0
    # Nothing was found, and not because nothing was done.
    assert min(evicted["splits"], evicted["tel_safe"], evicted["lru"]) > len(SEEDS)


@pytest.mark.parametrize("config", HYBRID_CONFIGS, ids=lambda config: config.label)
def test_sglangs_lock_fuzzer_finds_nothing_in_a_hybrid(config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted: Counter[str] = Counter()

    def build(config: CacheConfig) -> tuple[UnifiedRadixCache, TokenToKVPoolAllocator, ReqToTokenPool]:
        ours = component_for(Config(threshold=8, next_prompt_estimate=2), PythonTailComponent)
        fixture = build_fixture(config, component_registry_override={FULL: ours})
        if not config.has_swa:
            without_sliding_window(*fixture[:2])
        built.append(fixture[0])
        return fixture

    monkeypatch.setattr(insert_walk, "build_fixture", build)
    for seed in SEEDS:
        built: list[UnifiedRadixCache] = []
        Fuzzer(config).run(seed)
        [cache] = built
        tail: TailComponent = cache.components[FULL]
        evicted += tail.counts
        assert len(tail.order) == len(cache.tree_core.evictable_device_leaves)
        assert {cache.tree_core.component_protected_size(each) for each in config.components} == {0}
        cache.evict(EvictParams(num_tokens=config.kv_size))
        assert {cache.tree_core.component_evictable_size(each) for each in config.components} == {0}
    assert evicted["splits"] == 0
    assert min(evicted["tel_safe"], evicted["lru"]) > len(SEEDS)


class Router:
    """What a KV-aware router knows of a cache: the blocks that its events named, each behind the one before it."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}  # hash → (hash before it, tokens)

    def read(self, events: list[KVCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        del self.blocks[block]
                case AllBlocksCleared():
                    self.blocks.clear()

    def prefixes(self) -> set[tuple[int, ...]]:
        """The tokens from the root to the end of each block."""
        return {self._prefix(block) for block in self.blocks}

    def _store(self, event: BlockStored) -> None:
        before, size = event.parent_block_hash, event.block_size
        for number, block in enumerate(event.block_hashes):
            assert block not in self.blocks, "stored twice"
            self.blocks[block] = (before, tuple(event.token_ids[number * size : (number + 1) * size]))
            before = block

    def _prefix(self, block: int | None) -> tuple[int, ...]:
        if block is None:
            return ()
        before, tokens = self.blocks[block]
        return self._prefix(before) + tokens


def resident_prefixes(cache: UnifiedRadixCache) -> Iterator[tuple[int, ...]]:
    """The tokens from the root to the end of each page, by walking the tree."""
    unvisited = [(cache.root_node_handle(), ())]
    while unvisited:
        node, path = unvisited.pop()
        for child in node_children(cache, node):
            tokens = path + tuple(node_token_ids(cache, child))
            yield from (tokens[:end] for end in range(len(path) + cache.page_size, len(tokens) + 1, cache.page_size))
            unvisited.append((child, tokens))


@pytest.mark.parametrize("config", FULL_CONFIGS, ids=lambda config: config.label)
def test_a_router_that_reads_the_events_knows_exactly_the_resident_blocks(config: CacheConfig) -> None:
    page = config.page_size
    config = replace(config, kv_size=64 * page)
    cache, allocator = build_ours(config, enable_kv_cache_events=True)
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
        cache.evict(EvictParams(num_tokens=rng.randrange(3) * page))
        router.read(cache.take_events())
        assert router.prefixes() == set(resident_prefixes(cache))
    assert {"splits", "tel_safe", "lru"} == cache.components[FULL].counts.keys()
    cache.evict(EvictParams(num_tokens=config.kv_size))
    router.read(cache.take_events())
    assert router.blocks == {}
