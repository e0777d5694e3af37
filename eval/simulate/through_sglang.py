"""`python -m eval through-sglang`: the cells of `simulate` with the real SGLang cache, and how far the two agree.

``real-tlru`` and ``real-etlru`` are the cache of our server (``build_cache``); ``sglang-*`` are stock, on the Rust core
or, with ``-python``, on the Python core. Ours evicts what the simulator's does, request by request. Stock evicts whole
nodes, so its ``lru`` may keep less of one victim than the simulator's page-granular one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.table import Table

from eval.caches.policies import TraceKnowledge
from eval.caches.real import REAL_CACHES
from eval.caches.simulator import simulate as replay
from eval.command import trace_options
from eval.render.table import console, label
from eval.simulate import command as simulate
from eval.simulate.cells import Cell, uncached_tokens
from eval.simulate.grid import ESTIMATED, grid
from eval.traces import open_trace
from eval.traces.request import Request, TraceError
from radix_tlru import ConfigError

SIMULATED = {
    f"{real}{core}": simulated
    for real, simulated in (("real-tlru", "tlru"), ("real-etlru", "etlru"), ("sglang-lru", "lru"))
    for core in ("", "-python")
}
"""Real caches that the simulator has a counterpart of."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `simulate`, with other policies."""
    simulate.add_arguments(parser, policies=tuple(REAL_CACHES), default=("sglang-lru", "sglang-tlru", "real-tlru"))
    parser.add_argument("--no-agreement", action="store_true", help="do not compare with the simulator")


def run(args: argparse.Namespace) -> int:
    """Run the cells, then hold them against the simulator; 2 if something asked for cannot be done."""
    if status := simulate.run(args, "through-sglang"):
        return status
    if args.no_agreement:
        return 0
    try:
        trace = open_trace(**dict(trace_options(args)))
        cells = [cell for cell in grid(trace.name, args) if cell.policy in SIMULATED]
        if cells:
            console().print(agreement(cells, trace.requests))
    except (TraceError, ConfigError, ValueError, OSError) as error:
        print(f"eval through-sglang: {error}", file=sys.stderr)
        return 2
    return 0


def agreement(cells: Sequence[Cell], requests: Sequence[Request]) -> Table:
    """Real and simulated, side by side."""
    table = Table(title="Real cache and simulator", title_justify="left")
    sizes = ("replicas", "capacity", "ξ", "Q̂", "page")
    for column in ("policy", *sizes, "p95 real", "p95 simulated", "requests that differ"):
        first = column == "policy"
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    knowledge = TraceKnowledge(requests)
    for cell in cells:
        real = replay(simulate.cache_for(cell, knowledge), requests)
        counterpart = replace(cell, policy=SIMULATED[cell.policy])
        simulated = replay(simulate.cache_for(counterpart, knowledge), requests)
        p95 = [f"{np.percentile(uncached_tokens(requests, cached), 95):,.0f}" for cached in (real, simulated)]
        differ = sum(one != other for one, other in zip(real, simulated, strict=True))
        estimate = "learned" if cell.next_prompt_estimate is None else f"{cell.next_prompt_estimate:,}"
        estimate = estimate if cell.policy in ESTIMATED else "–"
        where = (f"{cell.capacity:,}", f"{cell.threshold:,}", estimate, f"{cell.page_size:,}")
        fleet = f"{cell.replicas}, {cell.routing}" if cell.routing else "1"
        table.add_row(label(cell.policy, cell.median_weight), fleet, *where, *p95, f"{differ:,} of {len(requests):,}")
    return table
