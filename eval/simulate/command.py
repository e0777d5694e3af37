"""`python -m eval simulate`: what each policy does to the tail, for every combination of the flags.

Each combination is a cell and becomes a line of ``DIR/cells.jsonl`` when it is done. A cell that is there is not run
again, so an interrupted run goes on where it was. ``gap_closed`` of a cell is the share of the gap between LRU and the
hindsight optimum that it closes; these two references are run where they are missing.

With ``--replicas`` a cell is that many caches of ``--capacity`` tokens each behind a router, and its figures are of all
requests. Its references are run behind the same router. Tail-Optimized Belady is no optimum there: it knows when a
token is used next in the trace, but not on which replica. So ``gap_closed`` may exceed 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from eval.arguments import (
    NEXT_PROMPT_HELP,
    THRESHOLD_HELP,
    Several,
    add_median_weights,
    add_page_size,
    add_policies,
    one_of,
    output_folder,
    tokens,
    whole,
)
from eval.caches.routing import ROUTINGS
from eval.simulate.cells import Cell
from eval.simulate.evaluate import Done, evaluate_all, trace_of
from eval.simulate.grid import EVICTIONS, REFERENCES, grid
from eval.simulate.per_request import requests_file
from eval.simulate.rows import CELLS, Rows, check_same_trace, note_command
from eval.simulate.rows import REFERENCES as REFERENCE_ROWS
from eval.simulate.table import cells_table
from eval.terminal import show
from eval.trace_arguments import add_trace_arguments, say_missing, say_too_long, trace_source
from radix_tlru.config import DEFAULT_NEXT_PROMPT, START_THRESHOLD


def add_arguments(
    parser: argparse.ArgumentParser,
    policies: tuple[str, ...] = EVICTIONS,
    default: tuple[str, ...] = ("lru", "tlru", "tail-belady"),
) -> None:
    """Flags of the command; those that take several values span a grid."""
    add_trace_arguments(parser)
    add_policies(parser, policies, default)
    add = parser.add_argument
    add("--capacity", action=Several, type=tokens, required=True, metavar="TOKENS", help="of each replica: 500k 2M")
    xi = f"{THRESHOLD_HELP} (default: {START_THRESHOLD})"
    add("--threshold", action=Several, type=tokens, default=[START_THRESHOLD], metavar="TOKENS", help=xi)
    add(
        "--next-prompt-estimate",
        action=Several,
        type=tokens,
        default=[None],
        metavar="TOKENS",
        help=f"{NEXT_PROMPT_HELP} (default: learned by tlru and etlru of radix-tlru, else {DEFAULT_NEXT_PROMPT})",
    )
    add_median_weights(parser, "w: 0 to 1 (default: its own, as on a server)")
    add_page_size(parser, several=True)
    add("--replicas", action=Several, type=whole(1), default=[1], metavar="N", help="caches behind a router")
    add(
        "--routing",
        action=Several,
        type=one_of(tuple(ROUTINGS)),
        default=["prefix-aware"],
        metavar="R",
        help=f"of more than one replica: {', '.join(ROUTINGS)} (default: prefix-aware, the rule of SGLang's router)",
    )
    add("--optional-caching", action="store_true", help="a context may be trimmed as soon as it is served")
    add(
        "--out",
        type=output_folder,
        required=True,
        metavar="DIR",
        help=f"for {CELLS}; a run that was cut off goes on there",
    )
    add("--per-request", action="store_true", help="a Parquet file of all requests for each cell")
    add("--jobs", type=whole(1), default=1, metavar="N", help="cells side by side (default: %(default)s)")
    add("--ray", metavar="ADDRESS", help="run the cells on this Ray cluster ('local' starts one)")


def run(args: argparse.Namespace) -> int:
    """Run the cells that are missing and print the table of all."""
    trace = trace_of(trace_source(args))
    wanted = grid(trace.name, args)
    folder: Path = args.out
    references, cells = Rows(folder / REFERENCE_ROWS), Rows(folder / CELLS)
    folder.mkdir(parents=True, exist_ok=True)
    check_same_trace(folder, trace)
    note_command(folder, args.command_line)
    say_missing(trace.missing())
    say_too_long(trace.name, max(request.prompt_tokens for request in trace.requests), args.capacity)

    compared = [cell.under(policy) for cell in wanted for policy in REFERENCES]
    _fill(args, references, compared, "references", lambda done: done.outcome.row(done.cell, None))

    def row(done: Done) -> dict[str, Any]:
        lru, optimum = (references[done.cell.under(policy).name]["tel"] for policy in REFERENCES)
        gap = lru - optimum
        return done.outcome.row(done.cell, round((lru - done.outcome.tel) / gap, 6) if gap > 0 else None)

    _fill(args, cells, wanted, "cells", row, args.out if args.per_request else None)
    cells.sort(cell.name for cell in wanted)
    show(cells_table([cells[cell.name] for cell in wanted]))
    print(f"{len(wanted)} cell{'s' * (len(wanted) != 1)} in {folder}/{CELLS}")
    return 0


def _fill(
    args: argparse.Namespace,
    rows: Rows,
    cells: Iterable[Cell],
    title: str,
    row: Callable[[Done], dict[str, Any]],
    folder: Path | None = None,
) -> None:
    """Run the cells that have no row yet, or whose requests are to be in the folder and are not."""
    missing = [
        cell
        for cell in dict.fromkeys(cells)
        if cell.name not in rows or (folder is not None and not requests_file(folder, cell.name).is_file())
    ]
    source = trace_source(args)
    for done in evaluate_all(missing, source, folder=folder, jobs=args.jobs, ray=args.ray, title=title):
        rows.append(row(done))
