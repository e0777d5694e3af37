"""Real SGLang caches on a CPU, and the little of a scheduler that is needed to drive one request through them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from radix_tlru import Config
from radix_tlru.sglang import build_cache


def cache_params(capacity: int, page_size: int = 1) -> CacheInitParams:
    """What SGLang's scheduler hands to a cache: a KV pool of ``capacity`` tokens and its allocator."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", page_size=page_size))
    pool = MHATokenToKVPool(
        size=capacity,
        page_size=page_size,
        dtype=torch.float32,
        head_num=1,
        head_dim=2,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    arguments = {"dtype": torch.float32, "device": "cpu", "kvcache": pool, "need_sort": False}
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(size=capacity, **arguments)
    else:
        allocator = PagedTokenToKVPoolAllocator(size=capacity, page_size=page_size, **arguments)
    return CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(size=8, max_context_len=64, device="cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator,
        page_size=page_size,
    )


def stock_cache(
    capacity: int, page_size: int = 1, policy: str = "lru", core: str = "python", **policy_config: int
) -> UnifiedRadixCache:
    """The unmodified cache of SGLang, for comparison."""
    params = cache_params(capacity, page_size)
    params.tree_components = (ComponentType.FULL,)
    params.eviction_policy, params.eviction_policy_config = policy, policy_config or None
    with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(core):
        return UnifiedRadixCache(params)


def our_cache(capacity: int, page_size: int = 1, **config: object) -> UnifiedRadixCache:
    return build_cache(cache_params(capacity, page_size), Config(**config))


@dataclass
class Driver:
    """Serves requests one at a time through a real cache, as the scheduler does: match, lock, evict, insert, unlock."""

    cache: UnifiedRadixCache
    histories: dict[str, list[int]] = field(default_factory=dict)
    _token: int = 0

    @property
    def allocator(self) -> TokenToKVPoolAllocator:
        return self.cache.token_to_kv_pool_allocator

    def fresh(self, count: int) -> list[int]:
        """Tokens never seen before."""
        self._token += count
        return list(range(self._token - count, self._token))

    def turn(self, conversation: str, tokens: int) -> int:
        """The conversation's next turn adds ``tokens`` (prompt and answer); returns how many tokens were cached."""
        history = self.histories.setdefault(conversation, [])
        history += self.fresh(tokens)
        return self.request(history)

    def request(self, tokens: Sequence[int]) -> int:
        """Serve one request whose whole context ends up cached; returns the tokens it found cached."""
        size = len(tokens) // self.cache.page_size * self.cache.page_size
        key = RadixKey(array("q", tokens[:size]))
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        cached = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        values = torch.cat([self.cache.path_device_indices(match.last_device_node), self.allocate(size - cached)])
        self.cache.insert(InsertParams(key=key, value=values, prev_prefix_len=cached))
        self.cache.unlock(lock)
        return int(cached)

    def allocate(self, tokens: int) -> torch.Tensor:
        """Slots for ``tokens``, evicting what is missing, as ``evict_from_tree_cache`` does."""
        missing = tokens - self.allocator.available_size()
        if missing > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=missing))
        slots = self.allocator.alloc(tokens)
        assert slots is not None, f"{tokens} tokens do not fit"
        return slots

    def match_tokens(self, tokens: Sequence[int]) -> MatchResult:
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def match(self, conversation: str) -> MatchResult:
        return self.match_tokens(self.histories[conversation])

    def cached(self, conversation: str) -> int:
        """Tokens of a conversation that are resident, without using it."""
        return self.resident(self.histories[conversation])

    def resident(self, tokens: Sequence[int]) -> int:
        matched, _, _ = self.cache.tree_core.match_full_device_prefix(RadixKey(array("q", tokens)))
        return int(matched)
