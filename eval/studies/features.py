"""`python -m eval features`: what each thing that is known of a turn is worth to the learned return rates.

``etlru`` at w = 1 serves each trace as it is, and once more without each feature of a turn
(``learning.turn_features``): all turns then have the same category of it. A feature is worth what the gap closed falls
by. The gap is the TEL between lru and Tail-Optimized Belady.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.table import Table

from eval.arguments import THRESHOLD_HELP, Several, add_page_size, check_page_sizes, tokens, whole
from eval.caches.simulator import simulate
from eval.parallel import in_parallel
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for, knowledge_of, trace_of
from eval.simulate.grid import REFERENCES
from eval.studies.figures import Figures, figures, mean, shown
from eval.terminal import show, table
from eval.trace_arguments import TraceSource, add_reading_arguments
from eval.traces import SOURCES
from radix_tlru.learning import conversations
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.turn_features import Feature, Features, features_of

POLICY, WEIGHT = "etlru", 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Traces and sizes; capacities span a grid."""
    add = parser.add_argument
    add("--trace", action=Several, required=True, metavar="PATH_OR_NAME", help=f"each {SOURCES}")
    add_reading_arguments(parser)
    add("--capacity", action=Several, type=tokens, required=True, metavar="TOKENS", help="e.g. 1M 2M; means are shown")
    add("--threshold", type=tokens, default=8_192, metavar="TOKENS", help=f"{THRESHOLD_HELP} (default: %(default)s)")
    add_page_size(parser, default=512)
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs side by side (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], args.capacity)
    show(worth(TraceSource.several(args.trace, args), args))
    return 0


def worth(sources: Sequence[TraceSource], args: argparse.Namespace) -> Table:
    """A row for each feature: the gap that is closed without it, and the p50, as means over the capacities."""
    without = [None, *Feature]
    capacities = [*dict.fromkeys(args.capacity)]
    arms = [*((name, None) for name in REFERENCES), *((POLICY, feature) for feature in without)]
    grid = list(itertools.product(sources, capacities, arms))
    calls = [(*each, args.threshold, args.page_size) for each in grid]
    done = dict(zip(grid, in_parallel(_serve, calls, jobs=args.jobs, title="runs"), strict=True))
    result = table(
        f"etlru, w = 1, ξ = {args.threshold:,}: gap closed, p50 against lru; means over {len(capacities)} sizes",
        ("left out", *(source.source.rpartition("/")[2] for source in sources)),
    )
    for feature in without:
        columns = []
        for source in sources:
            shares, medians = [], []
            for capacity in capacities:
                lru, optimum = (done[source, capacity, (name, None)] for name in REFERENCES)
                own = done[source, capacity, (POLICY, feature)]
                shares.append(own.gap_closed(lru, optimum))
                medians.append(own.against(lru).p50)
            columns.append(f"{shown(mean(shares), '{:.1%}')}, {shown(mean(medians))}")
        result.add_row("nothing" if feature is None else feature.name.lower().replace("_", " "), *columns)
    return result


def _serve(
    source: TraceSource, capacity: int, arm: tuple[str, Feature | None], threshold: int, page_size: int
) -> Figures:
    policy, feature = arm
    requests = trace_of(source).requests
    cell = Cell("", policy, capacity, threshold, None, WEIGHT if policy == POLICY else None, page_size)
    with _left_out(feature):
        return figures(requests, simulate(cache_for(cell, knowledge_of(source)), requests), threshold)


@contextmanager
def _left_out(feature: Feature | None) -> Iterator[None]:
    """In this process, what is known of a turn lacks a feature while the block lasts."""

    def features(conversation: Conversation) -> Features:
        row = list(features_of(conversation))
        if feature is not None:
            row[feature] = 0
        return tuple(row)

    used = vars(conversations)
    used["features_of"] = features
    try:
        yield
    finally:
        used["features_of"] = features_of
