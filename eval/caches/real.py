"""The real ``UnifiedRadixCache`` behind the simulator's interface: tokens in, cached tokens out.

A page of a path becomes one token of a cache with pages of one token, on a pool of as many tokens as there are pages.
Page-granular eviction is the same in both units, because every decision is taken in whole pages: SGLang aligns keys to
pages first, and a budget of ``⌈(L + Q̂ - ξ)⁺ / page⌉`` pages is ``(L/page - ⌊(ξ - Q̂) / page⌋)⁺`` in units of pages.
It makes the real cache as quick on a context of 100,000 tokens as on one of 200. Not so what learns from lengths
(``etlru``, and ``tlru`` whose Q̂ or w is not given): it is given all of the tokens.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from eval.traces.request import Path, Request

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radix_tlru.config import MedianWeight, PolicyName
    from radix_tlru.objective.load_weight import PrefillLoad
    from radix_tlru.sglang.offline.caches import Core, OfflineCache

__all__ = ["REAL_CACHES", "STOCK_POLICIES", "RealCache", "page_ids", "tokens_of"]

STOCK_POLICIES = ("lru", "tlru", "slru", "lfu", "priority")
"""Eviction policies that SGLang ships."""

CHUNK_TOKENS = 8192
"""A ``--chunked-prefill-size`` to compare stock at; SGLang chooses its default by the memory of the GPU."""

# Page identity = identity of the unit its last token lies in, and which page of the path it is.
_PAGES_PER_PATH = 1 << 24


def page_ids(path: Path, page_size: int, units: dict[int, int]) -> list[int]:
    """One number for each whole page of a path; equal where the paths up to its end are equal.

    Args:
        units: numbers of the units met so far; new ones are added. A unit may have more bits than a token id.
    """
    pages = len(path) // page_size
    ids: list[int] = []
    for unit, end in zip(path.ids, path.ends, strict=True):
        last = min(end // page_size, pages)
        first = units.setdefault(unit, len(units)) * _PAGES_PER_PATH
        ids.extend(range(first + len(ids), first + last))
    return ids


def tokens_of(path: Path, page_size: int, units: dict[int, int]) -> array[int]:
    """Token ids of the whole pages of a path, which two paths share as far as they share units."""
    return array("q", page_ids(path, 1, units)[: len(path) // page_size * page_size])


Kind = Literal["swa", "mamba"]
"""What a hybrid model keeps beside the KV of full attention."""

WINDOW_TOKENS, WINDOW_SHARE = 1024, 0.8
"""A sliding window, and SGLang's default share of its pool in that of full attention (``--swa-full-tokens-ratio``)."""

STATE_TOKENS = 3_400
"""Tokens of capacity to each Mamba state: as of Qwen3-Next-80B (75 MB a state, 24.6 kB a token) with SGLang's default
``--mamba-full-memory-ratio``, 0.9."""


class RealCache:
    """A real SGLang cache, ours or stock.

    Args:
        policy: ``ours`` (tlru), ``etlru``, or one of SGLang's own.
        core: which of SGLang's two tree cores.
        capacity, threshold, next_prompt_estimate, page_size: tokens. An estimate of None is learned by ours.
        median_weight: w or ``load``; of ours.
        chunk: tokens prefilled at a time, which bounds the nodes that stock evicts whole; ours does not see it.
        trim_chunk: tokens that ours takes from a leaf at a time; 1 is exact to the page, as the simulator is. None: as
            many as a server takes that has a pool of ``capacity``.
        units: names of the units met so far, as of :func:`page_ids`; they grow with the trace.
        hybrid: of a hybrid model, which finds nothing but what it keeps at the ends of prefill chunks and of contexts.
        strip_thinking: of an answer that was thought over nothing is cached (SGLang's ``--strip-thinking-cache``).
        sessions: requests name their conversation, and close it (SGLang's ``--enable-session-radix-cache``).
    """

    def __init__(
        self,
        policy: Literal["ours", "etlru"] | str,
        capacity: int,
        *,
        threshold: int = 0,
        next_prompt_estimate: int | None = 0,
        median_weight: MedianWeight = 0.0,
        page_size: int = 1,
        core: Core = "rust",
        chunk: int = CHUNK_TOKENS,
        trim_chunk: int | None = 1,
        units: dict[int, int] | None = None,
        hybrid: Kind | None = None,
        strip_thinking: bool = False,
        sessions: bool = False,
    ) -> None:
        from radix_tlru import Config, policy_for
        from radix_tlru.policy.tel import round_up

        with warnings.catch_warnings():  # SGLang's imports tell of every kernel that is not there
            warnings.simplefilter("ignore")
            from radix_tlru.sglang import build_cache
            from radix_tlru.sglang.offline.caches import stock_cache_of

        self.page_size = page_size
        pages = capacity // page_size
        told = next_prompt_estimate is None or isinstance(median_weight, str) or sessions
        self._learns = policy == "etlru" or (policy == "ours" and told)
        self._tokens_a_page = page_size if self._learns else 1  # of the real cache
        shape: dict[str, Any] = {"enable_session_radix_cache": sessions}
        # In pages, and with the estimate taken off the threshold before it is rounded down: exactly the same budgets.
        slack = max(threshold - (next_prompt_estimate or 0), 0) // page_size
        if self._learns:
            name: PolicyName = "etlru" if policy == "etlru" else "tlru"
            config = Config(name, threshold, next_prompt_estimate, median_weight, trim_chunk=trim_chunk)
            cache = build_cache(replace(_params(pages, page_size, page_size, core, hybrid), **shape), config)
        elif policy == "ours":
            trim = round_up(policy_for(Config(trim_chunk=trim_chunk).for_pool(capacity)).trim_chunk, page_size)
            tlru = Config(threshold=slack, next_prompt_estimate=0, median_weight=median_weight)
            asked = tlru if slack else Config(policy="lru")
            config = replace(asked, trim_chunk=trim // page_size)
            cache = build_cache(_params(pages, 1, page_size, core, hybrid), config)
        elif policy == "tlru" and slack:
            stock = {"threshold": slack, "next_prompt_estimate": 0}
            cache = stock_cache_of(replace(_params(pages, 1, page_size, core, hybrid), **shape), "tlru", stock)
        else:  # with less than a page of slack nothing is ever TEL-safe, and tlru is lru
            named = "lru" if policy == "tlru" else policy
            cache = stock_cache_of(replace(_params(pages, 1, page_size, core, hybrid), **shape), named)
        self._cache = _served(cache, max(chunk // page_size, 1) * self._tokens_a_page)
        self._pages = _window_pool(pages) if hybrid == "swa" else pages
        self._units: dict[int, int] = {} if units is None else units
        self._strips_thinking, self._has_sessions = strip_thinking, sessions
        self._refreshes = policy in ("lru", "ours", "etlru")  # SGLang does for its lru, and for what it takes for it

    @property
    def cache(self) -> UnifiedRadixCache:
        """The cache of SGLang; ours has a ``tail`` that knows what was evicted."""
        return self._cache.cache

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        context = request.prompt if self._strips_thinking and request.thought_tokens else request.context
        session = request.conversation if self._has_sessions else None
        if not self._learns:
            pages = page_ids(context, self.page_size, self._units)[: self._pages]
            cached = self._cache.request(pages, session=session) * self.page_size
        else:
            tokens = tokens_of(context, self.page_size, self._units)[: self._pages * self.page_size]
            said = request.prompt_tokens, request.arrival_s, request.output_tokens, request.thought_tokens
            cached = self._cache.request(tokens, *said, request.ending, session)
        if session is not None and request.closes:
            self._cache.close_session(session)
        return min(cached, len(request.prompt) // self.page_size * self.page_size)

    def touch(self, request: Request) -> None:
        """A request has come and waits: what is cached of its prompt is used, if SGLang has it so."""
        if not self._refreshes:
            return
        if not self._learns:
            self._cache.touch(page_ids(request.prompt, self.page_size, self._units)[: self._pages])
        else:
            self._cache.touch(tokens_of(request.prompt, self.page_size, self._units)[: self._pages * self.page_size])

    def count_prefill(self, load: PrefillLoad) -> None:
        """A prefill starts."""
        if self._learns:
            self._cache.count_prefill(load)


def _params(pages: int, tokens_a_page: int, page_size: int, core: Core, hybrid: Kind | None) -> CacheInitParams:
    """Pools of so many pages, of ``page_size`` tokens each, that become ``tokens_a_page`` of the real cache."""
    from radix_tlru.sglang.offline.caches import cache_params

    capacity = pages * tokens_a_page
    if hybrid is None:
        return cache_params(capacity, tokens_a_page, core)
    from radix_tlru.sglang.offline.hybrids import Hybrid, hybrid_params

    if hybrid == "swa":
        window = -(-WINDOW_TOKENS // page_size) * tokens_a_page
        kept = Hybrid(window=window, window_pool=_window_pool(pages) * tokens_a_page)
    else:
        kept = Hybrid(states=max(pages * page_size // STATE_TOKENS, 2))
    return hybrid_params(capacity, kept, tokens_a_page, core)


def _window_pool(pages: int) -> int:
    """Pages of the windowed layers, of a pool with so many; a context is here in both at once, until it is cached."""
    return int(WINDOW_SHARE * pages)


def _served(cache: UnifiedRadixCache, chunk: int) -> OfflineCache:
    from radix_tlru.sglang.offline.caches import OfflineCache
    from radix_tlru.sglang.offline.hybrids import HybridCache

    return (HybridCache if len(cache.tree_components) > 1 else OfflineCache)(cache, chunk)


def _factory(policy: str, core: Core, hybrid: Kind | None = None, **shape: Any) -> Callable[..., RealCache]:
    def build(
        capacity: int,
        threshold: int,
        next_prompt_estimate: int | None,
        page_size: int,
        median_weight: MedianWeight = 0.0,
    ) -> RealCache:
        return RealCache(
            policy,
            capacity,
            threshold=threshold,
            next_prompt_estimate=next_prompt_estimate,
            median_weight=median_weight,
            page_size=page_size,
            core=core,
            hybrid=hybrid,
            **shape,
        )

    return build


_OURS, _BESIDE = (("tlru", "ours"), ("etlru", "etlru")), ("lru", "tlru")

REAL_CACHES: dict[str, Callable[..., RealCache]] = {
    "real-tlru": _factory("ours", "rust"),
    "real-tlru-python": _factory("ours", "python"),
    "real-etlru": _factory("etlru", "rust"),
    "real-etlru-python": _factory("etlru", "python"),
    **{f"sglang-{policy}": _factory(policy, "rust") for policy in STOCK_POLICIES},
    **{f"sglang-{policy}-python": _factory(policy, "python") for policy in _BESIDE},
    **{f"sglang-{policy}-strip-thinking": _factory(policy, "rust", strip_thinking=True) for policy in _BESIDE},
    **{f"sglang-{policy}-sessions": _factory(policy, "python", sessions=True) for policy in _BESIDE},
    **{f"real-{name}-sessions": _factory(policy, "python", sessions=True) for name, policy in _OURS},
    **{f"real-{name}-{kind}": _factory(policy, "python", kind) for name, policy in _OURS for kind in get_args(Kind)},
    **{f"sglang-{policy}-{kind}": _factory(policy, "rust", kind) for policy in _BESIDE for kind in get_args(Kind)},
}
"""Real caches by name, built from capacity, ξ, Q̂ and page size, in tokens, and ours from w: ours, and stock on either
core; of models of full attention, and of hybrids; stock with ``--strip-thinking-cache``; all with sessions."""
