"""`python -m eval later`: policies on the later part of a trace, after they have learned on the earlier part.

Every policy serves the whole trace. The figures are of the requests from ``--from`` on.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence

from rich.table import Table

from eval.arguments import (
    NEXT_PROMPT_HELP,
    THRESHOLD_HELP,
    Several,
    add_first_measured,
    add_median_weights,
    add_page_size,
    add_policies,
    check_page_sizes,
    one_of,
    tokens,
    weight_text,
)
from eval.caches.knowledge import TraceKnowledge
from eval.caches.policies import POLICIES
from eval.caches.simulator import simulate
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for
from eval.simulate.grid import WEIGHTED, check_weights
from eval.studies.figures import Figures, figures, mean, shown
from eval.terminal import show, table, track
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.request import Request

OPTIMA = ("tail-belady", "tail-belady-ends")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; those that take several values span a grid."""
    add_trace_arguments(parser)
    add_policies(parser, POLICIES, ("tlru", "etlru"))
    add = parser.add_argument
    add("--capacity", action=Several, type=tokens, required=True, metavar="TOKENS", help="e.g. 500k 2M")
    add("--threshold", action=Several, type=tokens, required=True, metavar="TOKENS", help=THRESHOLD_HELP)
    add("--next-prompt-estimate", type=tokens, metavar="TOKENS", help=f"{NEXT_PROMPT_HELP} (default: learned)")
    add_median_weights(parser, "w (default: own)")
    add_page_size(parser)
    add("--optimum", default=OPTIMA[0], type=one_of(OPTIMA), metavar="P", help="closes all of the gap (%(default)s)")
    add_first_measured(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], args.capacity)
    check_weights(args.policy, args.median_weight)
    show(compare(trace_source(args).open().requests, args))
    return 0


def compare(requests: Sequence[Request], args: argparse.Namespace) -> Table:
    """A row for each policy and weight: changes against LRU and the gap closed, as means over capacities and ξ.

    A cell in which the optimum has no less TEL than LRU has no gap, and does not count in its mean.
    """
    first = int(len(requests) * args.share)
    knowledge = TraceKnowledge(requests)
    cells = list(dict.fromkeys(itertools.product(args.capacity, args.threshold)))
    asked = itertools.product(args.policy, args.median_weight)
    arms = dict.fromkeys((policy, w if policy in WEIGHTED else None) for policy, w in asked)

    def serve(policy: str, capacity: int, threshold: int, weight: float | None) -> Figures:
        cell = Cell("", policy, capacity, threshold, args.next_prompt_estimate, weight, args.page_size)
        return figures(requests, simulate(cache_for(cell, knowledge), requests), threshold, first)

    runs = list(itertools.product((("lru", 0.0), (args.optimum, 0.0), *arms), cells))
    served = {
        ((policy, weight), (capacity, threshold)): serve(policy, capacity, threshold, weight)
        for (policy, weight), (capacity, threshold) in track(runs, "cells")
    }
    lru = {cell: served[("lru", 0.0), cell] for cell in cells}
    optimum = {cell: served[(args.optimum, 0.0), cell] for cell in cells}
    result = table(
        f"{len(requests) - first:,} of {len(requests):,} requests; means over {len(cells)} cells, against lru",
        ("policy", "w", "gap closed", "TEL", "p50", "p95", "worst p95", "mean", "gap closed, cell by cell"),
    )
    for policy, weight in arms:
        done = {cell: served[(policy, weight), cell] for cell in cells}
        closed = [done[cell].gap_closed(lru[cell], optimum[cell]) for cell in cells]
        changes = [done[cell].against(lru[cell]) for cell in cells]
        means = Figures(*map(mean, zip(*changes, strict=True)))
        result.add_row(
            policy,
            weight_text(weight) if policy in WEIGHTED else "–",
            shown(mean(closed), "{:.1%}"),
            *map(shown, (means.tel, means.p50, means.p95)),
            shown(max((change.p95 for change in changes if not math.isnan(change.p95)), default=math.nan)),
            shown(means.mean),
            " ".join(shown(100 * share, "{:.0f}") for share in closed),
        )
    return result
