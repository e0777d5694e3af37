"""Conversations on real SGLang caches."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from radix_tlru import Config
from radix_tlru.learning.state_file import StateFile
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.radix_cache import TailRadixCache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params
from radix_tlru.sglang.state import StateKeeper


def our_cache(capacity: int, page_size: int = 1, core: Core | None = None, **config: Any) -> UnifiedRadixCache:
    """The real cache with our order, on a pool of ``capacity`` tokens and one of SGLang's tree cores."""
    return build_cache(cache_params(capacity, page_size, core), Config(**config))


def our_cache_with_state(
    params: CacheInitParams, file: StateFile | None, *, saves: bool, **fields: Any
) -> TailRadixCache:
    """The same under ``etlru``, beginning with what a file says, if there is one, and saving to it if asked to."""
    path = None if file is None else str(file.path)
    usual = {"policy": "etlru", "threshold": 600, "next_prompt_estimate": 20, "state": path}
    return build_cache(params, Config(**usual | fields), state=None if file is None else StateKeeper(file, saves=saves))


class Driver(OfflineCache):
    """A real cache that named conversations take turns on."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        super().__init__(cache)
        self.histories: dict[str, list[int]] = {}
        self._token = 0

    def fresh(self, count: int) -> list[int]:
        """Tokens never seen before."""
        self._token += count
        return list(range(self._token - count, self._token))

    def turn(self, conversation: str, tokens: int) -> int:
        """The conversation's next turn adds ``tokens`` (prompt and answer); returns how many tokens were cached."""
        history = self.histories.setdefault(conversation, [])
        history += self.fresh(tokens)
        return self.request(history)

    def match_conversation(self, conversation: str) -> MatchResult:
        return self.match(self.histories[conversation])

    def cached(self, conversation: str) -> int:
        """Tokens of a conversation that are resident, without using it."""
        return self.resident(self.histories[conversation])
