"""What a trim chunk costs the tail: one trace through simulated caches that evict more than is missing.

Tokens that are evicted early lie idle until the next allocation, which then needs to evict less. ``--only decode``
measures what a chunk saves.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import outcome
from eval.studies.figures import change, mean, shown
from eval.terminal import show, table, track
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru.config import CHUNKS_IN_POOL, DEFAULT_NEXT_PROMPT

# Page size, capacities and ξ in tokens: for block traces, and for traces in single tokens.
BLOCKS = (512, (1_000_000, 2_000_000, 4_000_000), (4096, 8192, 16384))
TOKENS = (16, (8_192, 16_384, 33_000, 66_000, 100_000, 200_000, 400_000), (512, 1024, 2048))

SHARES = (1024, 512, 256, CHUNKS_IN_POOL, 64, 32)


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    trace = open_trace(args.trace)
    page, capacities, thresholds = BLOCKS if trace.format == "mooncake" else TOKENS
    cells = [(capacity, threshold) for capacity in capacities for threshold in thresholds]
    rows: dict[int, list[list[float]]] = {share: [] for share in SHARES}
    for capacity, threshold in track(cells, "trim"):
        exact = figures(trimming(capacity, threshold, page, 1), trace.requests, threshold)
        for share in SHARES:
            trimmed = figures(trimming(capacity, threshold, page, capacity // share), trace.requests, threshold)
            rows[share].append(list(map(change, trimmed, exact)))
    title = f"{trace.name}, tlru, page {page}: {len(cells)} cells, against trims to the page"
    columns = ("trim chunk", "TEL", "worst TEL", "p50", "p95", "p99", "worst p99")
    result = table(title, columns)
    for share, found in rows.items():
        (tel, worst_tel), *others, (p99, worst_p99) = map(mean_and_worst, zip(*found, strict=True))
        values = (tel, worst_tel, *(each for each, _ in others), p99, worst_p99)
        name = f"1/{share} of the pool" + (", the default" if share == CHUNKS_IN_POOL else "")
        result.add_row(name, *(shown(value, "{:+.2%}") for value in values))
    show(result)


def mean_and_worst(changes: Iterable[float]) -> tuple[float, float]:
    """Of the changes that are known; nan: from 0 to more, of which there is no ratio."""
    known = [each for each in changes if not math.isnan(each)]
    return mean(known), max(known, default=math.nan)


def trimming(capacity: int, threshold: int, page: int, chunk: int) -> SimulatedCache:
    """An empty cache under tlru; lengths in tokens."""
    cache = simulated_cache(
        "tlru", capacity, threshold=threshold, next_prompt_estimate=DEFAULT_NEXT_PROMPT, page_size=page
    )
    cache.order.switch_policy(replace(cache.order.policy, trim_chunk=chunk))
    return cache


def figures(cache: SimulatedCache, requests: Sequence[Request], threshold: int) -> list[float]:
    """TEL and percentiles of uncached tokens."""
    found = outcome(requests, simulate(cache, requests), threshold)
    return [found.tel, found.p50, found.p95, found.p99]
