"""Every shape of cache that needs no server: page sizes, pairs of tokens as keys, namespaces.

The shapes that are refused are in `test_flags.py` and `test_models.py`.
"""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.soak.audit import AuditedCache
from eval.soak.shape import Shape
from eval.soak.steps import steps_of
from radix_tlru import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params
from radix_tlru.sglang.releases import rust_core_refusal
from tests.helpers.examples import examples

CORES = ("python",) if rust_core_refusal() else ("rust", "python")


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("is_eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("core", CORES)
def test_a_thousand_steps_lose_nothing(core: Core, is_eagle: bool, page_size: int) -> None:
    """Requests of four namespaces; after each step every page, lock, leaf and event is accounted for."""
    audited, steps = AuditedCache(Shape(core, page_size, is_eagle)), examples(1_000)
    for step in steps_of(audited, seed=page_size, count=steps):
        step()
    assert sum(audited.steps.values()) > steps / 2  # the others were a request too many, or one that there was not
    assert min(audited.cache.tail.counts[count] for count in ("tel_safe", "lru", "splits")) > 10


def serving(core: Core, page_size: int, pages: int, threshold: int, next_prompt: int) -> OfflineCache:
    """A cache of so many pages."""
    params = cache_params(pages * page_size, page_size, core)
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
