"""The real ``UnifiedRadixCache`` of SGLang behind the simulator's interface, stock or with radix-tlru.

A page of a context becomes one token of a cache with pages of one token, on a pool of as many tokens as there are
pages. Page-granular eviction is the same in both units: SGLang aligns keys to pages first, and a budget of
``⌈(L + Q̂ − ξ)⁺ / page⌉`` pages is ``(L/page − ⌊(ξ − Q̂) / page⌋)⁺`` in units of pages. So a context of 100,000 tokens
is as quick as one of 200. A cache that learns from lengths (``etlru``, and ``tlru`` whose Q̂ is not given) is
given all tokens instead.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from eval.caches.pages import page_ids, token_ids
from eval.traces.request import Path, Request
from radix_tlru import Config, policy_for
from radix_tlru.policy.tel import round_up

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radix_tlru.config import PolicyName
    from radix_tlru.sglang.offline import Core, OfflineCache


STOCK_POLICIES = ("lru", "tlru", "slru", "lfu", "priority")
"""Eviction policies that SGLang ships."""

CHUNK_TOKENS = 8192
"""``--chunked-prefill-size`` of stock caches, tokens. SGLang chooses its default by the memory of the GPU."""

Kind = Literal["swa", "mamba"]
"""What a hybrid model keeps beside the KV of full attention."""

WINDOW_TOKENS, WINDOW_SHARE = 1024, 0.8
"""A sliding window (tokens), and the share that its pool has of that of full attention: SGLang's default for
``--swa-full-tokens-ratio``."""

STATE_TOKENS = 3_400
"""Tokens of capacity for each Mamba state: as of Qwen3-Next-80B (75 MB a state, 24.6 kB a token) with SGLang's default
``--mamba-full-memory-ratio``, 0.9."""


class RealCache:
    """A real SGLang cache.

    Args:
        policy: ``tlru`` or ``etlru`` of radix-tlru; with ``stock``, one of SGLang's own.
        capacity, threshold, next_prompt_estimate, page_size: tokens. An estimate of None is learned by radix-tlru.
        stock: SGLang's own eviction.
        median_weight: w of radix-tlru; None: that of a server.
        core: which of SGLang's two tree cores.
        chunk: tokens prefilled at a time. It bounds the nodes that stock evicts whole. Without effect on radix-tlru.
        trim_chunk: tokens that radix-tlru takes from a leaf at a time; 1: exact to the page, as the simulator is. None:
            as many as a server takes that has a pool of ``capacity``.
        units: numbers of the units met so far, as of :func:`~eval.caches.pages.page_ids`; they grow with the trace.
        hybrid: the cache of a hybrid model. It can go on only from the ends of prefill chunks and of contexts.
        strip_thinking: nothing is cached of an answer that was thought over (SGLang's ``--strip-thinking-cache``).
        sessions: requests name their conversation and close it (SGLang's ``--enable-session-radix-cache``).
    """

    def __init__(
        self,
        policy: str,
        capacity: int,
        *,
        stock: bool = False,
        threshold: int = 0,
        next_prompt_estimate: int | None = 0,
        median_weight: float | None = None,
        page_size: int = 1,
        core: Core = "rust",
        chunk: int = CHUNK_TOKENS,
        trim_chunk: int | None = 1,
        units: dict[int, int] | None = None,
        hybrid: Kind | None = None,
        strip_thinking: bool = False,
        sessions: bool = False,
    ) -> None:
        with warnings.catch_warnings():  # SGLang's imports warn of every kernel that is not there
            warnings.simplefilter("ignore")
            from radix_tlru.sglang import build_cache

        self.page_size = page_size
        pages = capacity // page_size
        self._learns = not stock and (policy == "etlru" or next_prompt_estimate is None or sessions)
        self._tokens_a_page = page_size if self._learns else 1  # of the real cache
        params = _params(pages, self._tokens_a_page, page_size, core, hybrid)
        params = replace(params, enable_session_radix_cache=sessions)
        # In pages, and with the estimate taken off the threshold before it is rounded down: exactly the same budgets.
        slack = max(threshold - (next_prompt_estimate or 0), 0) // page_size
        if stock:
            cache = _stock_cache(params, policy, slack, trim_chunk, page_size)
        elif self._learns:
            name: PolicyName = "etlru" if policy == "etlru" else "tlru"
            config = Config(name, threshold, next_prompt_estimate, median_weight, trim_chunk=trim_chunk)
            cache = build_cache(params, config)
        else:
            trim = round_up(policy_for(Config(trim_chunk=trim_chunk).for_pool(capacity)).trim_chunk, page_size)
            asked = Config("lru")
            if slack:
                asked = Config(threshold=slack, next_prompt_estimate=0, median_weight=median_weight)
            cache = build_cache(params, replace(asked, trim_chunk=trim // page_size))
        self._cache = _served(cache, max(chunk // page_size, 1) * self._tokens_a_page)
        self._pages = _window_pool(pages) if hybrid == "swa" else pages
        self._units: dict[int, int] = {} if units is None else units
        self._strips_thinking, self._has_sessions = strip_thinking, sessions
        # Prompts that wait count as used where SGLang sees lru, as which it takes radix-tlru, too.
        self._refreshes = not stock or policy == "lru"

    @property
    def cache(self) -> UnifiedRadixCache:
        """The cache of SGLang. With radix-tlru it has a ``tail`` that counts what was evicted."""
        return self._cache.cache

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        context = request.prompt if self._strips_thinking and request.thought_tokens else request.context
        session = request.conversation if self._has_sessions else request.session
        tokens = self._tokens(context)
        if self._learns:
            turn = request.prompt_tokens, request.arrival_s, request.output_tokens, request.thought_tokens
            cached = self._cache.request(tokens, *turn, request.ending, session, request.stop)
        else:
            cached = self._cache.request(tokens, session=session) * self.page_size
        if session is not None and self._has_sessions and request.closes:
            self._cache.close_session(session)
        return min(cached, len(request.prompt) // self.page_size * self.page_size)

    def touch(self, request: Request) -> None:
        """Mark what is cached of a waiting request's prompt as used, if SGLang does so under this policy."""
        if self._refreshes:
            self._cache.touch(self._tokens(request.prompt))

    def _tokens(self, path: Path) -> Sequence[int]:
        """The tokens of the real cache that stand for what fits of a path: its pages, or all of its tokens."""
        numbers = token_ids if self._learns else page_ids
        return numbers(path, self.page_size, self._units)[: self._pages * self._tokens_a_page]


def _stock_cache(
    params: CacheInitParams, policy: str, slack: int, trim_chunk: int | None, page_size: int
) -> UnifiedRadixCache:
    """SGLang's own; ``slack`` is ξ − Q̂ in whole pages. Without any nothing is ever TEL-safe, and tlru is lru."""
    from sglang.srt.mem_cache.evict_policy import TLRUStrategy

    from radix_tlru.sglang.offline import stock_cache_of

    if policy != "tlru" or not slack:
        return stock_cache_of(params, "lru" if policy == "tlru" else policy)
    config: dict[str, int | str] = {"threshold": slack, "next_prompt_estimate": 0}
    if "granularity" in inspect.signature(TLRUStrategy).parameters:  # of a patched SGLang, see patches/
        config |= {"granularity": "page", "trim_chunk": round_up(trim_chunk or 1, page_size) // page_size}
    return stock_cache_of(params, "tlru", config)


def _params(pages: int, tokens_a_page: int, page_size: int, core: Core, hybrid: Kind | None) -> CacheInitParams:
    """Pools of so many pages of ``page_size`` tokens, each of which is ``tokens_a_page`` tokens of the real cache."""
    from radix_tlru.sglang.offline import cache_params

    capacity = pages * tokens_a_page
    if hybrid is None:
        return cache_params(capacity, tokens_a_page, core)
    from radix_tlru.sglang.offline.hybrids import Hybrid, hybrid_params

    if hybrid == "swa":
        window = -(-WINDOW_TOKENS // page_size) * tokens_a_page
        shape = Hybrid(window=window, window_pool=_window_pool(pages) * tokens_a_page)
    else:
        shape = Hybrid(states=max(pages * page_size // STATE_TOKENS, 2))
    return hybrid_params(capacity, shape, tokens_a_page, core)


def _window_pool(pages: int) -> int:
    """Pages for the windowed layers of a pool of ``pages``. An offline context is in both pools until it is cached."""
    return int(WINDOW_SHARE * pages)


def _served(cache: UnifiedRadixCache, chunk: int) -> OfflineCache:
    from radix_tlru.sglang.offline import OfflineCache
    from radix_tlru.sglang.offline.hybrids import HybridCache

    return (HybridCache if len(cache.tree_components) > 1 else OfflineCache)(cache, chunk)


def _factory(policy: str, core: Core, hybrid: Kind | None = None, **shape: Any) -> Callable[..., RealCache]:
    def build(
        capacity: int,
        threshold: int,
        next_prompt_estimate: int | None,
        page_size: int,
        median_weight: float | None = None,
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


def _stock(policy: str, core: Core, hybrid: Kind | None = None, **shape: Any) -> Callable[..., RealCache]:
    return _factory(policy, core, hybrid, stock=True, **shape)


_SERVED, _COMPARED = ("tlru", "etlru"), ("lru", "tlru")
"""Policies of radix-tlru, and those of stock that they are compared with."""

REAL_CACHES: dict[str, Callable[..., RealCache]] = {
    **{f"real-{policy}": _factory(policy, "rust") for policy in _SERVED},
    **{f"real-{policy}-python": _factory(policy, "python") for policy in _SERVED},
    **{f"sglang-{policy}": _stock(policy, "rust") for policy in STOCK_POLICIES},
    **{f"sglang-{policy}-python": _stock(policy, "python") for policy in _COMPARED},
    **{f"sglang-{policy}-strip-thinking": _stock(policy, "rust", strip_thinking=True) for policy in _COMPARED},
    **{f"sglang-{policy}-sessions": _stock(policy, "python", sessions=True) for policy in _COMPARED},
    **{f"real-{policy}-sessions": _factory(policy, "python", sessions=True) for policy in _SERVED},
    **{f"real-{policy}-{kind}": _factory(policy, "python", kind) for policy in _SERVED for kind in get_args(Kind)},
    **{f"sglang-{policy}-{kind}": _stock(policy, "rust", kind) for policy in _COMPARED for kind in get_args(Kind)},
}
"""Real caches by name, built from (capacity, ξ, Q̂, page size) in tokens; ``real-*`` also from w. ``real-*`` are with
radix-tlru, ``sglang-*`` are stock, on the Rust core or, with ``-python``, on the Python core."""
