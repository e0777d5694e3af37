"""`python -m eval target`: a threshold that follows a percentile (`--tlru-target`), beside pinned ones.

The threshold moves as in the server: by the same quantile, at every 32nd event, with the same bounds. The server
counts prefill batches; here each request is one. A policy that learns its ξ has none of its own to be judged by, so
excess (TEL) is counted over one line for all of a block: the p95 that LRU has there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from eval.caches.simulator import SimulatedCache
from eval.command import add_trace_arguments, tokens, trace_options
from eval.render.table import console
from eval.simulate.cells import uncached_tokens
from eval.traces import open_trace
from eval.traces.request import Request, TraceError
from radix_tlru import Config, ConfigError, policy_for
from radix_tlru.config import percentile
from radix_tlru.objective.threshold import EVERY, Threshold, UncachedQuantile

__all__ = ["Served", "serve"]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)

JUDGED_BY = 95.0
"""Excess is counted over this percentile of LRU."""


@dataclass(frozen=True)
class Served:
    """A trace, served under one Config."""

    config: Config
    uncached: NDArray[np.int64]  # tokens, of each request
    thresholds: list[int]  # ξ in force at the start and after each look


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_trace_arguments(parser)
    parser.add_argument("--capacity", nargs="+", type=tokens, required=True, metavar="TOKENS", help="e.g. 500k 2M")
    parser.add_argument("--target", nargs="+", default=["p90", "p95", "p99"], metavar="PERCENTILE")
    parser.add_argument("--threshold", nargs="+", type=tokens, default=[4096, 8192, 16384], metavar="TOKENS", help="ξ")
    parser.add_argument("--page-size", type=tokens, default=1, metavar="N", help="tokens (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Print a table for each capacity; 2 if something asked for cannot be done."""
    try:
        configs = [
            Config(policy="lru"),
            *(Config(threshold=threshold) for threshold in args.threshold),
            *(Config(target=target) for target in args.target),
        ]
        requests = open_trace(**dict(trace_options(args))).requests
        for capacity in args.capacity:
            if not 1 <= args.page_size <= capacity:
                raise ValueError(f"--page-size {args.page_size}: must be 1 to the {capacity} tokens of the cache")
            served = [serve(requests, config, capacity, args.page_size) for config in configs]
            console().print(_table(f"{capacity:,} tokens of cache, page {args.page_size}", served))
    except (TraceError, ConfigError, ValueError, OSError) as error:
        print(f"eval target: {error}", file=sys.stderr)
        return 2
    return 0


def serve(requests: Sequence[Request], config: Config, capacity: int, page_size: int) -> Served:
    """Simulate; ``capacity`` and ``page_size`` in tokens."""
    cache = SimulatedCache(policy_for(config), capacity, page_size)
    followed = percentile(config.target)
    quantile = None if followed is None else UncachedQuantile(followed)
    threshold = Threshold(config.start_threshold, config.next_prompt, page_size)
    cached, thresholds = [], [threshold.tokens]
    for number, request in enumerate(requests, start=1):
        cached.append(cache.request(request))
        if quantile is not None:
            quantile.add(request.prompt_tokens - cached[-1])
        if number % EVERY == 0:
            wanted = quantile.threshold() if quantile is not None else None
            if wanted is not None and threshold.follow(wanted):
                pinned = Config(threshold=threshold.tokens, next_prompt_estimate=config.next_prompt_estimate)
                cache.order.use(policy_for(pinned))
            thresholds.append(threshold.tokens)
    return Served(config, uncached_tokens(requests, cached), thresholds)


def _table(title: str, served: Sequence[Served]) -> Table:
    lru = served[0].uncached
    line = float(np.percentile(lru, JUDGED_BY))
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{title}; uncached tokens of a request", title_justify="left", pad_edge=False
    )
    table.add_column("ξ", no_wrap=True)
    for column in ("in force", "moves", *(f"p{percent:g}" for percent in PERCENTILES), f"TEL over {line:,.0f}"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in served:
        moves = sum(a != b for a, b in zip(one.thresholds, one.thresholds[1:], strict=False))
        in_force = "–" if one.config.policy == "lru" else f"{statistics.median(one.thresholds):,.0f}"
        before, after = _figures(lru, line), _figures(one.uncached, line)
        table.add_row(
            _name(one.config),
            in_force,
            f"{moves}" if one.config.target else "–",
            *(f"{b:,.0f}" if one is served[0] else _change(b, a) for b, a in zip(before, after, strict=True)),
        )
    return table


def _figures(uncached: NDArray[np.int64], line: float) -> list[float]:
    percentiles = [float(value) for value in np.percentile(uncached, PERCENTILES)]
    return [*percentiles, float(np.maximum(uncached - line, 0).sum())]


def _name(config: Config) -> str:
    if config.policy == "lru":
        return "lru"
    return f"follows {config.target}" if config.target else "pinned"


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "–"
