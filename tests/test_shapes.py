"""Every shape of cache that needs no server: page sizes, pairs of tokens as keys, namespaces, and the event stream.

The shapes that are refused are in `test_flags.py`.
"""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.audit import AuditedCache, Shape
from eval.soak import steps_of
from radix_tlru import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.compat import rust_core_refusal
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params

CORES = ("python",) if rust_core_refusal() else ("rust", "python")

STEPS = 600


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("is_eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("core", CORES)
def test_600_steps_lose_nothing(core: Core, is_eagle: bool, page_size: int) -> None:
    """Requests of four namespaces; after each step every page, lock, leaf and event is accounted for."""
    audited = AuditedCache(Shape(core, page_size, is_eagle))
    for step in steps_of(audited, seed=page_size, count=STEPS):
        step()
    assert sum(audited.steps.values()) > STEPS / 2  # the others were a request too many, or one that there was not
    assert min(audited.cache.tail.counts[count] for count in ("tel_safe", "lru", "splits")) > 10


def serving(core: Core, page_size: int, pages: int, threshold: int, next_prompt: int) -> OfflineCache:
    """A cache of so many pages that tells what is stored and removed."""
    params = cache_params(pages * page_size, page_size, core)
    params.enable_kv_cache_events = True
    return OfflineCache(build_cache(params, Config(threshold=threshold, next_prompt_estimate=next_prompt)))


def serve(offline: OfflineCache, tokens: int, extra_key: str | None = None, cache_salt: str | None = None) -> int:
    """A request for tokens 0, 1, 2, … in a namespace; returns how many it found cached."""
    key = RadixKey(array("q", range(tokens)), extra_key, cache_salt=cache_salt)
    match = offline.cache.match_prefix(MatchPrefixParams(key=key))
    lock = offline.lock(match.last_device_node)
    cached = match.device_prefix_len
    new = offline.allocate(tokens - cached)
    values = new.new_empty(tokens)
    values[cached:], values[:cached] = new, offline.slots(match.last_device_node)
    offline.cache.insert(InsertParams(key=key, value=values, prev_prefix_len=cached))
    offline.unlock(lock)
    return cached


# As SGLang has them: the id of an adapter is an `extra_key`, a tenant is a `cache_salt`.
NAMESPACES = ((None, None), ("adapter", None), (None, "tenant"), ("adapter", "tenant"))


@pytest.mark.parametrize("core", CORES)
def test_the_same_tokens_in_four_namespaces_are_four_conversations(core: Core) -> None:
    offline = serving(core, page_size=1, pages=4_000, threshold=600, next_prompt=100)
    assert [serve(offline, 1_000, *namespace) for namespace in NAMESPACES] == [0, 0, 0, 0]
    # 900 are to go. Of each 1,000 + 100 - 600 = 500 stay, so the oldest gives up 500, the second 400, the others none.
    offline.evict(900)
    assert [serve(offline, 500, *namespace) for namespace in NAMESPACES] == [500, 500, 500, 500]
    found = [offline.cache.match_prefix(MatchPrefixParams(key=key_of(1_000, *each))) for each in NAMESPACES]
    assert [match.device_prefix_len for match in found] == [500, 600, 1_000, 1_000]


def key_of(tokens: int, extra_key: str | None, cache_salt: str | None) -> RadixKey:
    return RadixKey(array("q", range(tokens)), extra_key, cache_salt=cache_salt)


def stored(events: list[KVCacheEvent]) -> list[int]:
    """Hashes of the blocks that were stored, in the order of a path, if nothing else happened."""
    assert {type(event) for event in events} <= {BlockStored}
    return [block for event in events for block in event.block_hashes]


def removed(events: list[KVCacheEvent]) -> set[int]:
    """Hashes of the blocks that were removed, if nothing else happened."""
    assert {type(event) for event in events} <= {BlockRemoved}
    return {block for event in events for block in event.block_hashes}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("core", CORES)
def test_a_subscriber_sees_the_blocks_of_a_tail_go_and_no_split(core: Core, page_size: int) -> None:
    offline = serving(core, page_size, pages=64, threshold=8 * page_size, next_prompt=page_size)
    offline.cache.take_events()  # that a new cache is empty
    serve(offline, 20 * page_size)
    blocks = stored(offline.cache.take_events())
    assert len(blocks) == len(set(blocks)) == 20

    offline.evict(3 * page_size)
    assert offline.cache.tail.counts["splits"] == 1
    assert removed(offline.cache.take_events()) == set(blocks[17:])

    # A match that ends within what is left splits it, and there is nothing to tell.
    offline.cache.match_prefix(MatchPrefixParams(key=key_of(9 * page_size, None, None)))
    assert offline.cache.take_events() == []

    # The tail comes back as the same blocks, behind the same block.
    assert serve(offline, 20 * page_size) == 17 * page_size
    events = offline.cache.take_events()
    assert stored(events) == blocks[17:]
    assert events[0].parent_block_hash == blocks[16]
