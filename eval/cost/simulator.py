"""What a simulated request costs, beside the same request through the real caches, and whether the cost stays flat."""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import islice

from rich.table import Table

from eval.caches.policies import simulated_cache
from eval.caches.real import REAL_CACHES, RealCache
from eval.caches.simulator import Cache, SimulatedCache, simulate
from eval.simulate.cells import tail_excess_latency, uncached_tokens
from eval.terminal import show, table, track
from eval.traces import GENERATORS, open_trace
from eval.traces.request import Request
from radix_tlru.config import DEFAULT_NEXT_PROMPT

LONG_PAGE, LONG_CAPACITY, LONG_THRESHOLD = 16, 1_000_000, 1024

POLICIES: dict[str, tuple[str, int | None, float | None]] = {
    "tlru": ("tlru", DEFAULT_NEXT_PROMPT, 0.0),
    "tlru, learned": ("tlru", None, None),
    "etlru": ("etlru", None, None),
}
"""By the name of a row: policy, Q̂ (None: learned) and w of a server without further flags."""
STOCK = "sglang-lru"
REAL = (STOCK, "sglang-tlru", "sglang-lru-python", "real-tlru", "real-tlru-python")
SERVED = "real-tlru, trimmed as served"


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of the caches that serve a trace, in tokens. The defaults are for the Mooncake trace."""

    capacity: int = 2_000_000
    page_size: int = 512
    threshold: int = 8192

    @classmethod
    def of(cls, args: argparse.Namespace) -> Setting:
        """As the flags say."""
        return cls(args.capacity, args.page_size, args.threshold)

    def __str__(self) -> str:
        return f"{self.capacity:,} tokens, page {self.page_size}"


TURN = 250
"""Requests that a cache serves before the next one has its turn, so that what disturbs the machine disturbs all."""


def run(args: argparse.Namespace) -> None:
    """Print both tables."""
    show(throughput(args.trace, Setting.of(args)))
    show(flatness(args.turns))


def throughput(source: str, setting: Setting) -> Table:
    """CPU time of a request, policy by policy, on one trace; for the real caches only the cache's part of a request."""
    trace = open_trace(source)
    capacity, page, threshold = astuple(setting)
    caches: dict[str, Cache] = {f"simulated {row}": simulated(row, setting) for row in ("lru", *POLICIES)}
    caches |= {name: REAL_CACHES[name](capacity, threshold, DEFAULT_NEXT_PROMPT, page) for name in REAL}
    caches[SERVED] = RealCache(
        "tlru", capacity, threshold=threshold, next_prompt_estimate=DEFAULT_NEXT_PROMPT, page_size=page, trim_chunk=None
    )
    spent = dict.fromkeys(caches, 0.0)
    cached: dict[str, list[int]] = {name: [] for name in caches}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay"):
        for name, cache in caches.items():
            gc.freeze()  # a full collection looks at all caches, but one of them would be charged for it
            before = time.process_time()
            found = simulate(cache, trace.requests[start : start + TURN])
            spent[name] += time.process_time() - before
            cached[name] += found
    tel = {name: excess(trace.requests, found, threshold) for name, found in cached.items()}
    title = f"{trace.name}, {len(trace.requests):,} requests; {setting}"
    result = table(title, ("cache", "requests / s of CPU", "µs / request", f"× {STOCK}", f"TEL of {STOCK}"))
    for name, seconds in spent.items():
        micro = 1e6 * seconds / len(trace.requests)
        times = f"{seconds / spent[STOCK]:.2f}"
        result.add_row(name, f"{1e6 / micro:,.0f}", f"{micro:.0f}", times, change(tel, name, STOCK))
    return result


def simulated(row: str, setting: Setting) -> SimulatedCache:
    """The cache of a row: lru, or one of ``POLICIES``."""
    name, estimate, weight = POLICIES.get(row, (row, None, 0.0))
    return simulated_cache(
        name,
        setting.capacity,
        threshold=setting.threshold,
        page_size=setting.page_size,
        next_prompt_estimate=estimate,
        median_weight=weight,
    )


def excess(requests: Sequence[Request], cached: Sequence[int], threshold: int) -> int:
    """Tail excess latency of requests that found so many tokens, in tokens."""
    return tail_excess_latency(uncached_tokens(requests, cached), threshold)


def change(tel: dict[str, int], name: str, stock: str) -> str:
    """TEL of a cache relative to stock's, as text."""
    return f"{tel[name] / tel[stock] - 1:+.2%}" if tel[stock] else "–"


def flatness(turns: int) -> Table:
    """CPU time of a request in each tenth of a long synthetic trace under tlru. The trace is never held in memory."""
    cache = simulated_cache(
        "tlru", LONG_CAPACITY, threshold=LONG_THRESHOLD, next_prompt_estimate=DEFAULT_NEXT_PROMPT, page_size=LONG_PAGE
    )
    stream = islice(GENERATORS["synthetic"](f"conversations={turns}"), turns)
    columns = ("turns", "µs of CPU / request", "× the first", "entries / leaf", "peak memory")
    result = table(f"{turns:,} synthetic turns under tlru, tenth by tenth", columns, texts=0)
    first = 0.0
    for tenth in track(range(10), "long trace"):
        before, done = tenth * turns // 10, (tenth + 1) * turns // 10
        requests = list(islice(stream, done - before))
        spent = _spent(cache, requests)
        first = first or spent
        entries = cache.order.entries / max(len(cache.order), 1)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result.add_row(
            f"{done:,}", f"{spent * 1e6:.1f}", f"{spent / first:.2f}", f"{entries:.2f}", f"{memory:,.0f} MiB"
        )
    return result


def _spent(cache: Cache, requests: Sequence[Request]) -> float:
    """CPU seconds of a request."""
    start = time.process_time()
    simulate(cache, requests)
    return (time.process_time() - start) / max(len(requests), 1)
