"""What a request costs the real cache as a server uses it: all of its tokens, and what is learned of its turn.

The cache of ``--only simulator`` knows a page as one token, and is told of no turn: its rows are of the tree and the
order alone. Here every token is looked up and cached, trims are a server's, and ours is told of each turn as a
scheduler tells it: contexts are recognised, shadow caches serve the turn, rates and lengths are learned.
"""

from __future__ import annotations

import gc
import time
import warnings
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.caches.real import CHUNK_TOKENS, tokens_of
from eval.cost.simulator import NEXT_PROMPT, TURN, Setting, change, excess
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config

if TYPE_CHECKING:
    from radix_tlru.sglang.offline.caches import OfflineCache

STOCK, AGAIN = "stock lru", "stock lru, again"
OURS = {
    "tlru, ξ and Q̂ pinned": Config("tlru", next_prompt_estimate=NEXT_PROMPT),
    "tlru": Config("tlru"),
    "etlru": Config("etlru"),
}
"""By the name of a row; each with the ξ of the setting."""


def run(source: str, setting: Setting, console: Console) -> None:
    """Print the table."""
    console.print(served(source, setting))


def served(source: str, setting: Setting) -> Table:
    """CPU time of a request on one trace; the caches take turns."""
    trace = open_trace(source)
    caches = caches_compared(setting)
    spent = dict.fromkeys(caches, 0.0)
    cached: dict[str, list[int]] = {name: [] for name in caches}
    units: dict[int, int] = {}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay", console=Console(stderr=True), transient=True):
        requests = trace.requests[start : start + TURN]
        contexts = [context_of(request, setting, units) for request in requests]
        for name, cache in caches.items():
            seconds, found = played(cache, requests, contexts, setting, told=name in OURS)
            spent[name] += seconds
            cached[name] += found
    tel = {name: excess(trace.requests, found, setting.threshold) for name, found in cached.items()}
    title = f"{trace.name}, {len(trace.requests):,} requests; {setting}; learning included"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("cache", "µs / request", f"× {STOCK}", f"TEL of {STOCK}"):
        table.add_column(column, justify="left" if column == "cache" else "right")
    for name, seconds in spent.items():
        micro = 1e6 * seconds / len(trace.requests)
        table.add_row(name, f"{micro:.0f}", f"{seconds / spent[STOCK]:.2f}", change(tel, name, STOCK))
    return table


def caches_compared(setting: Setting) -> dict[str, OfflineCache]:
    """Real caches on SGLang's Rust core, with room for as much each."""
    with warnings.catch_warnings():  # SGLang's imports tell of every kernel that is not there
        warnings.simplefilter("ignore")
        from radix_tlru.sglang import build_cache
        from radix_tlru.sglang.offline.caches import OfflineCache, cache_params, stock_cache

    page, size = setting.page_size, setting.capacity // setting.page_size * setting.page_size
    caches = {STOCK: stock_cache(size, page, core="rust")}
    for name, config in OURS.items():
        caches[name] = build_cache(cache_params(size, page, "rust"), replace(config, threshold=setting.threshold))
    caches[AGAIN] = stock_cache(size, page, core="rust")
    return {name: OfflineCache(cache, CHUNK_TOKENS) for name, cache in caches.items()}


def context_of(request: Request, setting: Setting, units: dict[int, int]) -> array[int]:
    """What a cache can keep of a context; ``units``: as of :func:`~eval.caches.real.page_ids`."""
    page = setting.page_size
    return tokens_of(request.context, page, units)[: setting.capacity // page * page]


def played(
    cache: OfflineCache, requests: Sequence[Request], contexts: Sequence[array[int]], setting: Setting, told: bool
) -> tuple[float, list[int]]:
    """CPU seconds, and the tokens of each prompt that were found cached."""
    found: list[int] = []
    gc.freeze()  # a full collection looks at all caches, and would be charged to the one it comes upon
    before = time.process_time()
    for request, tokens in zip(requests, contexts, strict=True):
        stamp = request.arrival_s if told else None
        found.append(cache.request(tokens, request.prompt_tokens, stamp, request.output_tokens))
    seconds = time.process_time() - before
    whole = (request.prompt_tokens // setting.page_size * setting.page_size for request in requests)
    return seconds, [min(tokens, most) for tokens, most in zip(found, whole, strict=True)]
