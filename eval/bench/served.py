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
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.bench.simulator import CAPACITY, NEXT_PROMPT, PAGE, THRESHOLD, TURN, change, excess
from eval.real import CHUNK_TOKENS, tokens_of
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.config import AUTO

if TYPE_CHECKING:
    from radix_tlru.sglang.offline import OfflineCache

STOCK, AGAIN = "stock lru", "stock lru, again"
OURS = {
    "tlru, ξ and Q̂ pinned": Config("tlru", THRESHOLD, NEXT_PROMPT),
    "tlru": Config("tlru", THRESHOLD),
    "tlru auto": Config("tlru", THRESHOLD, median_weight=AUTO),
    "etlru": Config("etlru", THRESHOLD),
    "etlru auto": Config("etlru", THRESHOLD, median_weight=AUTO),
}
"""By the name of a row."""


def run(source: str, console: Console) -> None:
    """Print the table."""
    console.print(served(source))


def served(source: str) -> Table:
    """CPU time of a request on one trace; the caches take turns."""
    trace = open_trace(source)
    caches = caches_compared()
    spent = dict.fromkeys(caches, 0.0)
    cached: dict[str, list[int]] = {name: [] for name in caches}
    units: dict[int, int] = {}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay", console=Console(stderr=True), transient=True):
        requests = trace.requests[start : start + TURN]
        contexts = [context_of(request, units) for request in requests]
        for name, cache in caches.items():
            seconds, found = played(cache, requests, contexts, told=name in OURS)
            spent[name] += seconds
            cached[name] += found
    tel = {name: excess(trace.requests, found) for name, found in cached.items()}
    title = f"{trace.name}, {len(trace.requests):,} requests; {CAPACITY:,} tokens, page {PAGE}; learning included"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("cache", "µs / request", f"× {STOCK}", f"TEL of {STOCK}"):
        table.add_column(column, justify="left" if column == "cache" else "right")
    for name, seconds in spent.items():
        micro = 1e6 * seconds / len(trace.requests)
        table.add_row(name, f"{micro:.0f}", f"{seconds / spent[STOCK]:.2f}", change(tel, name, STOCK))
    return table


def caches_compared() -> dict[str, OfflineCache]:
    """Real caches on SGLang's Rust core, with room for as much each."""
    with warnings.catch_warnings():  # SGLang's imports tell of every kernel that is not there
        warnings.simplefilter("ignore")
        from radix_tlru.sglang import build_cache
        from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    size = CAPACITY // PAGE * PAGE
    caches = {STOCK: stock_cache(size, PAGE, core="rust")}
    caches |= {name: build_cache(cache_params(size, PAGE, "rust"), config) for name, config in OURS.items()}
    caches[AGAIN] = stock_cache(size, PAGE, core="rust")
    return {name: OfflineCache(cache, CHUNK_TOKENS) for name, cache in caches.items()}


def context_of(request: Request, units: dict[int, int]) -> array[int]:
    """What a cache can keep of a context; ``units``: as of :func:`~eval.real.page_ids`."""
    return tokens_of(request.context, PAGE, units)[: CAPACITY // PAGE * PAGE]


def played(
    cache: OfflineCache, requests: Sequence[Request], contexts: Sequence[array[int]], told: bool
) -> tuple[float, list[int]]:
    """CPU seconds, and the tokens of each prompt that were found cached."""
    found: list[int] = []
    gc.freeze()  # a full collection looks at all caches, and would be charged to the one it comes upon
    before = time.process_time()
    for request, tokens in zip(requests, contexts, strict=True):
        stamp = request.arrival_s if told else None
        found.append(cache.request(tokens, request.prompt_tokens, stamp, request.output_tokens))
    seconds = time.process_time() - before
    whole = (request.prompt_tokens // PAGE * PAGE for request in requests)
    return seconds, [min(tokens, most) for tokens, most in zip(found, whole, strict=True)]
