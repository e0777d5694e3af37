"""`python -m eval through-sglang`: the cells of `simulate` with the real SGLang cache, and how far the two agree.

``real-*`` are the caches of a server with radix-tlru (``build_cache``); ``sglang-*`` are stock, on the Rust core or,
with ``-python``, on the Python core. A real cache with radix-tlru evicts what the simulator evicts, request by request.
Stock evicts whole nodes, so its ``lru`` may keep less of one victim than the simulator's page-granular ``lru``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.table import Table

from eval.caches.knowledge import TraceKnowledge
from eval.caches.real import REAL_CACHES
from eval.caches.simulator import simulate
from eval.simulate import command
from eval.simulate.cells import Cell, uncached_tokens
from eval.simulate.evaluate import cache_for, trace_of
from eval.simulate.grid import ESTIMATED, grid
from eval.simulate.table import label
from eval.terminal import show, table
from eval.trace_arguments import trace_source
from eval.traces.request import Request

SIMULATED = {
    f"{real}{core}": simulated
    for real, simulated in (("real-tlru", "tlru"), ("real-etlru", "etlru"), ("sglang-lru", "lru"))
    for core in ("", "-python")
}
"""Real caches that the simulator has a counterpart of."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `simulate`, with other policies."""
    command.add_arguments(parser, policies=tuple(REAL_CACHES), default=("sglang-lru", "sglang-tlru", "real-tlru"))
    parser.add_argument("--no-agreement", action="store_true", help="do not compare with the simulator")


def run(args: argparse.Namespace) -> int:
    """Run the cells, then compare them with the simulator, request by request."""
    status = command.run(args)
    if args.no_agreement:
        return status
    trace = trace_of(trace_source(args))
    cells = [cell for cell in grid(trace.name, args) if cell.policy in SIMULATED]
    if cells:
        show(agreement(cells, trace.requests))
    return status


def agreement(cells: Sequence[Cell], requests: Sequence[Request]) -> Table:
    """A row a cell: p95 of the real cache and of the simulator, and how many requests differ."""
    sizes = ("replicas", "capacity", "ξ", "Q̂", "page")
    result = table("Real cache and simulator", ("policy", *sizes, "p95 real", "p95 simulated", "requests that differ"))
    knowledge = TraceKnowledge(requests)
    for cell in cells:
        real = simulate(cache_for(cell, knowledge), requests)
        counterpart = replace(cell, policy=SIMULATED[cell.policy])
        simulated = simulate(cache_for(counterpart, knowledge), requests)
        p95 = [f"{np.percentile(uncached_tokens(requests, cached), 95):,.0f}" for cached in (real, simulated)]
        differ = sum(one != other for one, other in zip(real, simulated, strict=True))
        estimate = "learned" if cell.next_prompt_estimate is None else f"{cell.next_prompt_estimate:,}"
        estimate = estimate if cell.policy in ESTIMATED else "–"
        fleet = f"{cell.replicas}, {cell.routing}" if cell.routing else "1"
        where = (fleet, f"{cell.capacity:,}", f"{cell.threshold:,}", estimate, f"{cell.page_size:,}")
        result.add_row(label(cell.policy, cell.median_weight), *where, *p95, f"{differ:,} of {len(requests):,}")
    return result
