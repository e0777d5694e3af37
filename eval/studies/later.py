"""`python -m eval later`: how policies do on the later part of a trace, when what can be learned was learned before.

Every policy serves the whole trace; the figures are of the requests from ``--from`` on.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from eval.caches.policies import POLICIES, TraceKnowledge, simulated_cache
from eval.caches.simulator import simulate
from eval.command import add_trace_arguments, median_weight, tokens, trace_options, weight_text
from eval.render.table import console
from eval.simulate.cells import uncached_tokens
from eval.simulate.grid import WEIGHTED
from eval.traces import open_trace
from eval.traces.request import Request, TraceError
from radix_tlru import Config, ConfigError
from radix_tlru.config import MedianWeight

__all__ = ["Figures", "figures"]

OPTIMA = ("tail-belady", "tail-belady-ends")


class Figures(NamedTuple):
    """Of the later part. Tokens, uncached and per request but for the TEL."""

    tel: float
    p50: float
    p95: float
    mean: float

    def against(self, other: Figures) -> Figures:
        """Relative changes against another."""
        return Figures(*(ours / theirs - 1 if theirs else 0.0 for ours, theirs in zip(self, other, strict=True)))


def figures(requests: Sequence[Request], cached: Sequence[int], threshold: int, first: int) -> Figures:
    """The figures of the requests from number ``first`` on."""
    uncached = uncached_tokens(requests, cached)[first:]
    p50, p95 = np.percentile(uncached, [50, 95]).tolist()
    return Figures(float(np.maximum(uncached - threshold, 0).sum()), p50, p95, float(uncached.mean()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; those that name several values span a grid."""
    add_trace_arguments(parser)
    parser.add_argument("--policy", nargs="+", default=("tlru", "etlru"), choices=POLICIES, metavar="P")
    parser.add_argument("--capacity", nargs="+", type=tokens, required=True, metavar="TOKENS", help="e.g. 500k 2M")
    parser.add_argument("--threshold", nargs="+", type=tokens, required=True, metavar="TOKENS", help="ξ")
    parser.add_argument("--next-prompt-estimate", type=tokens, metavar="TOKENS", help="Q̂ (learned)")
    parser.add_argument(
        "--median-weight", nargs="+", type=median_weight, default=[0.0], metavar="W", help="w (default: 0)"
    )
    parser.add_argument("--page-size", type=tokens, default=1, metavar="N", help="tokens (%(default)s)")
    parser.add_argument("--optimum", default="tail-belady", choices=OPTIMA, help="closes all of the gap (%(default)s)")
    parser.add_argument("--from", type=float, default=0.5, dest="share", metavar="SHARE", help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table; 2 if something asked for cannot be done."""
    try:
        if not 0 <= args.share < 1:
            raise ValueError(f"--from {args.share:g}: must be a share from 0 to less than 1")
        if not 1 <= args.page_size <= min(args.capacity):
            raise ValueError(f"--page-size {args.page_size}: must be 1 to the {min(args.capacity)} tokens of the cache")
        for weight in args.median_weight:
            Config(median_weight=weight)  # raises ConfigError for what no policy takes
        trace = open_trace(**dict(trace_options(args)))
        table = compare(trace.requests, args)
    except (TraceError, ConfigError, ValueError, OSError) as error:
        print(f"eval later: {error}", file=sys.stderr)
        return 2
    console().print(table)
    return 0


def compare(requests: Sequence[Request], args: argparse.Namespace) -> Table:
    """Each policy against LRU, and how much of the gap to the optimum it closes; means over the cells."""
    first = int(len(requests) * args.share)
    knowledge = TraceKnowledge(requests)
    cells = list(itertools.product(args.capacity, args.threshold))

    def serve(policy: str, capacity: int, threshold: int, weight: MedianWeight) -> Figures:
        cache = simulated_cache(
            policy,
            capacity,
            threshold=threshold,
            next_prompt_estimate=args.next_prompt_estimate,
            median_weight=weight,
            page_size=args.page_size,
            knowledge=knowledge,
            prompts=knowledge.next_prompts if policy == "etlru-given" else None,
            death_rate=knowledge.death_rate if policy == "etlru-given" else 0.0,
        )
        return figures(requests, simulate(cache, requests), threshold, first)

    lru = {cell: serve("lru", *cell, 0.0) for cell in cells}
    optimum = {cell: serve(args.optimum, *cell, 0.0) for cell in cells}
    title = f"{len(requests) - first:,} of {len(requests):,} requests; means over {len(cells)} cells, against lru"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("policy", "w", "gap closed", "TEL", "p50", "p95", "worst p95", "mean", "gap closed, cell by cell"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    asked = itertools.product(args.policy, args.median_weight)
    for policy, weight in dict.fromkeys((policy, w if policy in WEIGHTED else None) for policy, w in asked):
        done = {cell: serve(policy, *cell, weight or 0.0) for cell in cells}
        closed = [
            (lru[cell].tel - done[cell].tel) / gap if (gap := lru[cell].tel - optimum[cell].tel) > 0 else 0.0
            for cell in cells
        ]
        changes = [done[cell].against(lru[cell]) for cell in cells]
        mean = [float(np.mean(column)) for column in zip(*changes, strict=True)]
        table.add_row(
            policy,
            "–" if weight is None else weight_text(weight),
            f"{np.mean(closed):.1%}",
            *(f"{change:+.1%}" for change in mean[:3]),
            f"{max(change.p95 for change in changes):+.1%}",
            f"{mean[3]:+.1%}",
            " ".join(f"{100 * share:.0f}" for share in closed),
        )
    return table
