"""What a request costs the real cache as a server uses it: all of its tokens, and learning from its turn.

``--only simulator`` times the tree and the order alone: a page is one token, and no cache is told of turns. Here every
token is looked up and cached, and trims are those of a server. radix-tlru is told of each turn, as a scheduler does. It
recognises contexts, serves the turn in its shadow caches, and learns rates and lengths.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from eval.caches.pages import token_ids
from eval.caches.real import CHUNK_TOKENS
from eval.cost.simulator import TURN, Setting, change, excess
from eval.terminal import show, table, track
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.config import DEFAULT_NEXT_PROMPT

if TYPE_CHECKING:
    from radix_tlru.sglang.offline import OfflineCache

STOCK, AGAIN = "stock lru", "stock lru, again"
CANDIDATES = {
    "tlru, ξ and Q̂ pinned": Config("tlru", next_prompt_estimate=DEFAULT_NEXT_PROMPT),
    "tlru": Config("tlru"),
    "etlru": Config("etlru"),
    "etlru, explained": Config("etlru", explain=True),
    "etlru, dry run": Config("etlru", dry_run=True),
}
"""Configurations of radix-tlru by the name of a row; each with the ξ of the setting."""


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    show(served(args.trace, Setting.of(args)))


def served(source: str, setting: Setting) -> Table:
    """CPU time of a request on one trace; the caches take turns."""
    trace = open_trace(source)
    caches = caches_compared(setting)
    spent = dict.fromkeys(caches, 0.0)
    cached: dict[str, list[int]] = {name: [] for name in caches}
    units: dict[int, int] = {}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay"):
        requests = trace.requests[start : start + TURN]
        contexts = [context_of(request, setting, units) for request in requests]
        for name, cache in caches.items():
            seconds, found = played(cache, requests, contexts, setting, told=name in CANDIDATES)
            spent[name] += seconds
            cached[name] += found
    tel = {name: excess(trace.requests, found, setting.threshold) for name, found in cached.items()}
    title = f"{trace.name}, {len(trace.requests):,} requests; {setting}; learning included"
    result = table(title, ("cache", "µs / request", f"× {STOCK}", f"TEL of {STOCK}"))
    for name, seconds in spent.items():
        micro = 1e6 * seconds / len(trace.requests)
        result.add_row(name, f"{micro:.0f}", f"{seconds / spent[STOCK]:.2f}", change(tel, name, STOCK))
    return result


def caches_compared(setting: Setting) -> dict[str, OfflineCache]:
    """Empty real caches on SGLang's Rust core, all of the same size."""
    with warnings.catch_warnings():  # SGLang's imports warn of every kernel that is not there
        warnings.simplefilter("ignore")
        from radix_tlru.sglang import build_cache
        from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    page, size = setting.page_size, setting.capacity // setting.page_size * setting.page_size
    caches = {STOCK: stock_cache(size, page, core="rust")}
    for name, config in CANDIDATES.items():
        caches[name] = build_cache(cache_params(size, page, "rust"), replace(config, threshold=setting.threshold))
    caches[AGAIN] = stock_cache(size, page, core="rust")
    return {name: OfflineCache(cache, CHUNK_TOKENS) for name, cache in caches.items()}


def context_of(request: Request, setting: Setting, units: dict[int, int]) -> array[int]:
    """The tokens of a context that fit into a cache; ``units``: as of :func:`~eval.caches.pages.page_ids`."""
    page = setting.page_size
    return token_ids(request.context, page, units)[: setting.capacity // page * page]


def played(
    cache: OfflineCache, requests: Sequence[Request], contexts: Sequence[array[int]], setting: Setting, told: bool
) -> tuple[float, list[int]]:
    """CPU seconds, and the tokens of each prompt that were cached.

    Args:
        told: the cache is told when each turn came, so that it can learn.
    """
    found: list[int] = []
    gc.freeze()  # a full collection looks at all caches, but one of them would be charged for it
    before = time.process_time()
    for request, tokens in zip(requests, contexts, strict=True):
        stamp = request.arrival_s if told else None
        found.append(cache.request(tokens, request.prompt_tokens, stamp, request.output_tokens))
    seconds = time.process_time() - before
    whole = (request.prompt_tokens // setting.page_size * setting.page_size for request in requests)
    return seconds, [min(tokens, most) for tokens, most in zip(found, whole, strict=True)]
