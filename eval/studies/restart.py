"""`python -m eval restart`: what a restarted server gains by beginning with what it had learned (``--tlru-state``).

A learner is taught by the first requests of a trace. The next ones are served from an empty cache, by a learner that
begins with nothing, and by one that begins with that state. With ``--taught-by`` the state is of another workload, as a
prior that ships would be.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table

from eval.arguments import add_cache, check_page_sizes, weight_text, whole
from eval.caches.simulator import SimulatedCache
from eval.studies.figures import Figures, figures
from eval.terminal import show, table, track
from eval.trace_arguments import TraceSource, add_trace_arguments
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.state import LearnedState

WEIGHTS = (1.0, None)
"""w: the learned rates at once; and as a server starts: with nothing by lru, with a state by what was in force."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_trace_arguments(parser)
    add = parser.add_argument
    add("--taught-by", metavar="TRACE", help="another trace, read alike, which teaches (default: the trace itself)")
    add("--turns", type=whole(1), default=4_000, metavar="N", help="requests that teach (default: %(default)s)")
    add("--requests", type=whole(1), default=1_000, metavar="N", help="requests after them (default: %(default)s)")
    add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], [args.capacity])
    names = [args.trace] if args.taught_by is None else [args.trace, args.taught_by]
    source, *others = TraceSource.several(names, args)
    requests = taught_by = source.open().requests
    for other in others:  # one at most; what teaches is limited by --turns
        taught_by = replace(other, limit=args.turns).open().requests
    first = args.turns if args.taught_by is None else 0
    if len(taught_by) < args.turns:
        raise ValueError(f"--turns {args.turns}: must be at most {len(taught_by)}, the requests of the trace")
    if len(requests) <= first:
        raise ValueError(f"--turns {args.turns}: must be fewer than the {len(requests)} requests of the trace")
    show(compare(taught_by[: args.turns], requests[first : first + args.requests], args))
    return 0


def compare(teaching: Sequence[Request], requests: Sequence[Request], args: argparse.Namespace) -> Table:
    """A row for each w and beginning."""
    result = table(
        f"{len(requests):,} requests from an empty cache; the state is of {len(teaching):,}",
        ("w", "begins with", "other than lru after", "mean", "p50", "p95", "requests over ξ", "TEL"),
        texts=2,
    )
    for weight in WEIGHTS:
        teacher = _learner(args, weight)
        _serve(teacher, teaching, args)
        for name, learned in (("nothing", None), ("the state", teacher.snapshot())):
            began, found = _serve(_learner(args, weight, learned), requests, args)
            result.add_row(
                weight_text(weight),
                name,
                "–" if began is None else f"{began:,} requests",
                *(f"{figure:,.0f}" for figure in (found.mean, found.p50, found.p95, found.violations, found.tel)),
            )
    return result


def _learner(args: argparse.Namespace, weight: float | None, learned: LearnedState | None = None) -> Learner:
    config = Config("etlru", args.threshold, median_weight=weight, trim_chunk=1)
    return Learner(config, args.capacity, args.page_size, learned=learned)


def _serve(learner: Learner, requests: Sequence[Request], args: argparse.Namespace) -> tuple[int | None, Figures]:
    """Requests before the first that another policy than lru is in force for, and the figures."""
    cache, began = SimulatedCache(learner, args.capacity, args.page_size), None
    cached: list[int] = []
    for number, request in enumerate(track(requests, "requests")):
        if began is None and learner.in_force != "lru":
            began = number
        cached.append(cache.request(request))
    return began, figures(requests, cached, args.threshold)
