"""Our order on SGLang's Rust tree core does what it does on the Python core, where it sits inside the tree.

Two caches on the two cores are led through the same steps. After each of them they must have said the same, hold the
same leaves with the same history and recency, have the same slots free, and have told a router the same.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence

import pytest
import torch
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from sglang.srt.environ import envs
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

from eval.caches.real import RealCache
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config, ConfigError
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params
from radix_tlru.sglang.releases import rust_core_refusal
from tests.helpers.caches import our_cache
from tests.helpers.examples import examples
from tests.helpers.paths import MOONCAKE

if refusal := rust_core_refusal():
    pytest.skip(refusal, allow_module_level=True)

from radix_tlru.sglang.cache.rust_core import RustTailCore

CAPACITY_PAGES = 64

NAMESPACES: list[tuple[str | None, str | None]] = [(None, None), (None, None), ("lora", None), (None, "tenant")]


class Walker(OfflineCache):
    """A cache on one of the cores, with the locks that are held on it."""

    def __init__(self, core: Core, page_size: int, is_eagle: bool, median_weight: float) -> None:
        params = cache_params(CAPACITY_PAGES * page_size, page_size, core)
        params.is_eagle, params.enable_kv_cache_events = is_eagle, True
        config = Config(
            threshold=6 * page_size, next_prompt_estimate=page_size + page_size // 2, median_weight=median_weight
        )
        super().__init__(build_cache(params, config))
        self.locks: list[object] = []

    def step(self, action: str, key: RadixKey, number: int) -> object:
        """Do one thing; returns what the cache said. Which slots are used again first is the allocator's business."""
        match action:
            case "serve":
                return self.serve(key)
            case "insert":  # without a lock, and without having looked
                return self.cache.insert(InsertParams(key=key, value=self.allocate(len(key)))).prefix_len
            case "match":
                return self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
            case "lock":
                match = self.cache.match_prefix(MatchPrefixParams(key=key))
                self.locks.append(self.cache.lock(match.last_device_node))
                return match.device_prefix_len
            case "unlock":
                return self.cache.unlock(self.locks.pop(number % len(self.locks))) if self.locks else None
            case "evict":
                return self.cache.evict(EvictParams(num_tokens=number % (9 * self.page_size)))
            case "alloc":
                slots = self.allocate((1 + number % 8) * self.page_size)
                self.allocator.free(slots)
                return len(slots)
            case "flush":
                if not self.locks:
                    self.cache.reset()
                    self.allocator.clear()
        return None

    def serve(self, key: RadixKey) -> tuple[int, int]:
        """One request, cached in two chunks under a lock; returns the tokens that it found, and how many it left."""
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        done, node = match.device_prefix_len, match.last_device_node
        lock = self.cache.lock(node)
        try:
            for end in (done + (len(key) - done) // 2 // self.page_size * self.page_size, len(key)):
                if done < end:
                    values = torch.cat([self.cache.path_device_indices(node), self.allocate(end - done)])
                    params = InsertParams(key=key[:end], value=values, prev_prefix_len=done)
                    node = self.cache.insert(params).last_device_node
                    self.cache.unlock(lock)
                    lock, done = self.cache.lock(node), end
            return match.device_prefix_len, len(set(self.cache.path_device_indices(node).tolist()))
        finally:
            self.cache.unlock(lock)

    def state(self) -> object:
        """What must be alike, whatever the ids of the nodes."""
        tail = self.cache.tail
        return (
            sorted(tail.leaves()),
            len(tail.order),
            tail.order.over_budget,
            dict(tail.counts),
            self.allocator.available_size(),
            self.cache.full_evictable_size(),
            self.cache.full_protected_size(),
            list(told(self.cache.take_events())),
        )


def told(events: Iterable[KVCacheEvent]) -> Iterator[tuple[object, ...]]:
    """What became of the blocks, event by event: removals in a row are one."""
    for event in events:
        match event:
            case BlockStored():
                yield "stored", event.parent_block_hash, event.token_ids, event.cache_salt, event.block_hashes
            case BlockRemoved():
                yield "removed", *event.block_hashes
            case AllBlocksCleared():
                yield ("cleared",)


def keys(rng: random.Random, page_size: int, is_eagle: bool) -> Iterator[RadixKey]:
    """PrefixIndex that go on from some prefix of another, in few letters and two namespaces beside the plain one."""
    said: list[list[int]] = [[]]
    while True:
        before = rng.choice(said[-12:])
        before = before[: rng.choice([len(before), rng.randrange(len(before) + 1)])]
        said.append((before + rng.choices(range(3), k=rng.randrange(1, 8 * page_size)))[: 30 * page_size])
        extra_key, cache_salt = rng.choice(NAMESPACES)
        key = RadixKey(array("q", said[-1]), extra_key, is_bigram=is_eagle, cache_salt=cache_salt)
        yield key.page_aligned(page_size)


def tried(walker: Walker, action: str, key: RadixKey, number: int) -> object:
    try:
        return walker.step(action, key, number)
    except MemoryError as error:
        return str(error)


@pytest.mark.parametrize("median_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_random_steps_are_the_same_on_both_cores(page_size: int, is_eagle: bool, median_weight: float) -> None:
    rng = random.Random(page_size)
    rust, python = (Walker(core, page_size, is_eagle, median_weight) for core in ("rust", "python"))
    assert isinstance(rust.cache.tree_core, RustTailCore)
    assert isinstance(python.cache.tree_core, UnifiedTreeCore)
    weights = {"serve": 30, "insert": 10, "match": 15, "lock": 8, "unlock": 12, "evict": 15, "alloc": 9, "flush": 0.3}
    actions = rng.choices(list(weights), list(weights.values()), k=examples(800))
    for number, (action, key) in enumerate(zip(actions, keys(rng, page_size, is_eagle), strict=False)):
        if action == "lock" and len(rust.locks) >= 3:
            action = "unlock"
        dice = rng.randrange(10**6)
        assert tried(rust, action, key, dice) == tried(python, action, key, dice), (number, action)
        assert rust.state() == python.state(), (number, action)
        rust.cache.sanity_check()
    assert min(rust.cache.tail.counts[count] for count in ("tel_safe", "lru", "splits")) > examples(30)


def test_a_trace_finds_the_same_tokens_in_both() -> None:
    replay(open_trace("synthetic:conversations=400").requests, capacity=40_000, threshold=1_024, page_size=16)


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the Mooncake trace is not here")
@pytest.mark.parametrize("count", [1_000, pytest.param(3_000, marks=pytest.mark.long)])
def test_the_mooncake_trace_finds_the_same_tokens_in_both(count: int) -> None:
    replay(open_trace(str(MOONCAKE)).requests[:count], capacity=1_000_000, threshold=8_192, page_size=512)


def replay(requests: Sequence[Request], capacity: int, threshold: int, page_size: int) -> None:
    rust, python = (
        RealCache("tlru", capacity, threshold=threshold, next_prompt_estimate=200, page_size=page_size, core=core)
        for core in ("rust", "python")
    )
    for number, request in enumerate(requests):
        assert rust.request(request) == python.request(request), number
        assert rust.cache.tail.counts == python.cache.tail.counts, number
    assert sorted(rust.cache.tail.leaves()) == sorted(python.cache.tail.leaves())
    assert min(rust.cache.tail.counts.values()) > 100


def test_ours_runs_on_the_core_that_sglang_would_run_on() -> None:
    assert isinstance(our_cache(100).tree_core, RustTailCore)
    with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override("python"):
        assert isinstance(our_cache(100).tree_core, UnifiedTreeCore)
        assert isinstance(our_cache(100, core="rust").tree_core, RustTailCore)
    # Which leaf stock refreshes when it splits one, the Rust core does not tell: a comparison with it needs Python.
    assert isinstance(our_cache(100, policy="lru").tree_core, UnifiedTreeCore)


def test_another_tree_core_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^--radix-eviction: .*tree core mine; .*rust and python"):
        our_cache(100, core="mine")  # type: ignore[arg-type]


def test_a_leaf_that_was_cut_has_no_copy_on_the_host() -> None:
    """It had one while it was asked for its tokens: then it could be taken for one that need not be evicted."""
    walker = Walker("rust", 1, False, 0.0)
    walker.request(range(60))
    assert [walker.evict(5), walker.evict(1)] == [5, 1]
    core = walker.cache.tree_core
    assert walker.cache.tail.counts["splits"] == 2
    node = walker.match(range(54)).last_device_node
    assert not core.is_backuped(node)
    assert not core.is_write_back
    assert core.drive_host_eviction(ComponentType.FULL, 60).tracker[ComponentType.FULL] == 0


def test_a_leaf_costs_the_same_heap_entries_whatever_happened_to_it() -> None:
    """20,000 uses of few leaves leave stale entries behind, which are swept out."""
    walker = Walker("rust", 1, False, 0.0)
    for number in range(20_000):
        walker.request([number % 3, *range(10, 30)])
    order = walker.cache.tail.order
    assert len(order) == 3
    assert order.entries <= 2 * 3 + 1024
