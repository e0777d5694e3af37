"""`python -m eval simulate`: what each policy would do to the tail, for every combination of the flags.

Each combination is a cell and becomes a line of ``DIR/cells.jsonl`` as soon as it is done; a cell that is there is not
run again, so an interrupted run goes on where it was. Every cell is also told how much of the gap between LRU and the
hindsight optimum it closed; these two references are run where they are missing, once for all cells that share them.

With ``--replicas`` a cell is that many caches of ``--capacity`` tokens each behind a router, and its figures are of all
requests. Its references are run behind the same router. There Tail-Optimized Belady is no optimum: it knows when a
token is used next in the trace, not on which replica, so ``gap_closed`` is a share of the way to it and may exceed 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eval.caches.baselines import BASELINES as OTHERS
from eval.caches.policies import POLICIES, PartOfTrace, TraceKnowledge, simulated_cache
from eval.caches.routing import ROUTINGS, RoutedCache
from eval.caches.simulator import Cache
from eval.command import TraceOptions, add_trace_arguments, median_weight, tokens, trace_options
from eval.render.table import cells_table, console
from eval.simulate.cells import Cell, Outcome, outcome, uncached_tokens
from eval.simulate.grid import BASELINES, REFERENCES, WEIGHTED, grid
from eval.traces import Trace, open_trace
from eval.traces.request import Request, TraceError
from radix_tlru import ConfigError
from radix_tlru.config import DEFAULT_NEXT_PROMPT, LOAD, START_THRESHOLD


def add_arguments(
    parser: argparse.ArgumentParser,
    policies: tuple[str, ...] = (*POLICIES, *OTHERS),
    default: tuple[str, ...] = ("lru", "tlru", "tail-belady"),
) -> None:
    """Flags of the command; those that name several values span a grid."""
    add_trace_arguments(parser)
    parser.add_argument("--policy", nargs="+", default=default, choices=policies, metavar="P")
    parser.add_argument(
        "--capacity", nargs="+", type=tokens, required=True, metavar="TOKENS", help="of each replica, e.g. 500k 2M"
    )
    parser.add_argument("--threshold", nargs="+", type=tokens, default=[START_THRESHOLD], metavar="TOKENS", help="ξ")
    parser.add_argument(
        "--next-prompt-estimate",
        nargs="+",
        type=tokens,
        default=[None],
        metavar="TOKENS",
        help=f"Q̂ (default: {DEFAULT_NEXT_PROMPT}; learned by our servers' tlru and etlru)",
    )
    parser.add_argument(
        "--median-weight",
        nargs="+",
        type=median_weight,
        default=[None],
        metavar="W",
        help=f"w: 0 to 1, or {LOAD} for our servers' tlru and etlru (default: as a server, "
        f"{LOAD} where it learns, else 0; here no request waits, so {LOAD} is its lowest value)",
    )
    parser.add_argument("--page-size", nargs="+", type=tokens, default=[1], metavar="N", help="tokens (default: 1)")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1], metavar="N", help="caches behind a router")
    parser.add_argument(
        "--routing",
        nargs="+",
        choices=ROUTINGS,
        default=["prefix-aware"],
        metavar="R",
        help=f"of more than one replica: {', '.join(ROUTINGS)} (default: prefix-aware, the rule of SGLang's router)",
    )
    parser.add_argument(
        "--optional-caching", action="store_true", help="a context may be trimmed as soon as it is served"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--per-request", action="store_true", help="a Parquet file of all requests for each cell")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells side by side")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the cells on this Ray cluster ('local' starts one)")
    parser.epilog = f"policies: {', '.join(policies)}"


def run(args: argparse.Namespace, command: str = "simulate") -> int:
    """Run the cells that are missing and print the table of all; 2 if something asked for cannot be done.

    Args:
        command: whose name errors are printed under.
    """
    try:
        return _run(args)
    except (TraceError, ConfigError, ValueError, OSError) as error:
        print(f"eval {command}: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    options = trace_options(args)
    trace = trace_of(options)
    if trace.skipped:
        print(f"{trace.name}: {trace.skipped} bad records skipped", file=sys.stderr)
    wanted = grid(trace.name, args)
    folder: Path = args.out
    folder.mkdir(parents=True, exist_ok=True)
    _check_same_trace(folder, trace)
    _note_command(folder, args)
    references = Rows(folder / "references.jsonl")
    cells = Rows(folder / "cells.jsonl")

    compared = [cell.under(policy) for cell in wanted for policy in REFERENCES]
    _evaluate(args, options, references, compared, "references", lambda cell, done: done.row(cell, None))

    def row(cell: Cell, done: Outcome) -> dict[str, Any]:
        lru, optimum = (references.of(cell.under(policy))["tel"] for policy in REFERENCES)
        gap = lru - optimum
        return done.row(cell, round((lru - done.tel) / gap, 6) if gap > 0 else None)

    _evaluate(args, options, cells, wanted, "cells", row)
    cells.sort(wanted)
    console().print(cells_table([cells.of(cell) for cell in wanted]))
    print(f"{len(wanted)} cells in {folder}/cells.jsonl")
    return 0


class Rows:
    """A JSONL file of cells: what is there is known, what is new is appended line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            *whole, rest = path.read_text().split("\n")
            for number, line in enumerate(whole, start=1):
                try:
                    row = json.loads(line)
                    self._rows[row["cell"]] = row
                except (ValueError, TypeError, KeyError):
                    raise ValueError(f"{path}:{number}: not a row of cells; mend or delete it") from None
            if rest:  # a run was cut off in the middle of a line: that cell is run again
                path.write_text("".join(f"{line}\n" for line in whole))

    def __contains__(self, cell: Cell) -> bool:
        return cell.name in self._rows

    def of(self, cell: Cell) -> dict[str, Any]:
        """The row of a cell that is there."""
        return self._rows[cell.name]

    def append(self, row: dict[str, Any]) -> None:
        """Add a row, on the disk before this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._rows[row["cell"]] = row

    def sort(self, first: Sequence[Cell]) -> None:
        """Put the file into an order that does not depend on which cell was done first."""
        names = dict.fromkeys([*(cell.name for cell in first), *sorted(self._rows)])
        replacement = self.path.with_suffix(".tmp")
        replacement.write_text("".join(json.dumps(self._rows[name]) + "\n" for name in names))
        replacement.replace(self.path)


def _evaluate(
    args: argparse.Namespace,
    options: TraceOptions,
    rows: Rows,
    cells: Iterable[Cell],
    title: str,
    row: Callable[[Cell, Outcome], dict[str, Any]],
) -> None:
    """Run the cells that have no row yet."""
    per_request = args.out if args.per_request and title == "cells" else None
    missing = [cell for cell in dict.fromkeys(cells) if cell not in rows or not _kept(cell, per_request)]
    with Progress(
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = progress.add_task(title, total=len(missing))
        for cell, done in _outcomes(missing, options, per_request, args.jobs, args.ray):
            rows.append(row(cell, done))
            progress.advance(bar)


def _kept(cell: Cell, folder: Path | None) -> bool:
    """Whether the requests of a cell are in the folder, if they are to be."""
    return folder is None or (folder / f"{cell.name}.parquet").is_file()


def _outcomes(
    cells: Sequence[Cell], options: TraceOptions, folder: Path | None, jobs: int, ray: str | None
) -> Iterator[tuple[Cell, Outcome]]:
    """Outcomes as they come in: here, in ``jobs`` processes, or on a Ray cluster."""
    if ray is None and (jobs == 1 or len(cells) < 2):
        yield from ((cell, evaluate(cell, options, folder)) for cell in cells)
        return
    import joblib

    evaluate_one = joblib.delayed(_evaluate_one)
    if ray is None:
        with joblib.parallel_config(backend="loky", n_jobs=jobs):
            work = (evaluate_one(cell, options, folder) for cell in cells)
            yield from joblib.Parallel(return_as="generator_unordered")(work)
        return
    _join_ray(ray)
    with joblib.parallel_config(backend="ray", n_jobs=jobs):
        # Joblib's Ray backend returns nothing before all is done: batches, so that an interruption loses little.
        for start in range(0, len(cells), 4 * jobs):
            batch = cells[start : start + 4 * jobs]
            yield from joblib.Parallel()(evaluate_one(cell, options, folder) for cell in batch)


def _join_ray(address: str) -> None:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise ValueError(f"--ray {address}: needs the extra 'ray': pip install 'radix-tlru[ray]'") from None
    ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    register_ray()


def _evaluate_one(cell: Cell, options: TraceOptions, folder: Path | None) -> tuple[Cell, Outcome]:
    return cell, evaluate(cell, options, folder)


@lru_cache(maxsize=1)
def trace_of(options: TraceOptions) -> Trace:
    """The trace, read once in each process."""
    return open_trace(**dict(options))


@lru_cache(maxsize=1)
def knowledge_of(options: TraceOptions) -> TraceKnowledge:
    """What policies may know of it, likewise."""
    return TraceKnowledge(trace_of(options).requests)


def cache_for(cell: Cell, knowledge: TraceKnowledge) -> Cache:
    """The cache that a cell is about, or all of its replicas behind their router."""
    if cell.routing is None:
        return _replica(cell, knowledge)
    router = ROUTINGS[cell.routing]()
    return RoutedCache(lambda numbers: _replica(cell, PartOfTrace(knowledge, numbers)), cell.replicas, router)


def _replica(cell: Cell, knowledge: TraceKnowledge) -> Cache:
    if cell.policy in BASELINES:
        assert cell.forced, f"{cell.policy} caches every context"
        weight = (cell.median_weight,) if cell.policy in WEIGHTED else ()
        sizes = (cell.capacity, cell.threshold, cell.next_prompt_estimate, cell.page_size)
        baseline: Cache = BASELINES[cell.policy](*sizes, *weight)
        return baseline
    return simulated_cache(
        cell.policy,
        cell.capacity,
        threshold=cell.threshold,
        next_prompt_estimate=cell.next_prompt_estimate,
        median_weight=cell.median_weight,
        page_size=cell.page_size,
        knowledge=knowledge,
        prompts=knowledge.next_prompts if cell.policy == "etlru-given" else None,
        death_rate=knowledge.death_rate if cell.policy == "etlru-given" else 0.0,
        forced=cell.forced,
    )


def evaluate(cell: Cell, options: TraceOptions, folder: Path | None = None) -> Outcome:
    """Run one cell; with a folder, also write its requests to ``<cell>.parquet`` there."""
    requests = trace_of(options).requests
    cache = cache_for(cell, knowledge_of(options))
    by_request: list[tuple[int, int]] = []
    cached = []
    start = time.perf_counter()
    for request in requests:
        cached.append(cache.request(request))
        if folder is not None:
            evicted = _evicted(cache)
            by_request.append((evicted.get("tel_safe", 0), evicted.get("lru", 0)))
    seconds = time.perf_counter() - start
    if folder is not None:
        _write_requests(folder / f"{cell.name}.parquet", requests, cached, by_request)
    return outcome(requests, cached, cell.threshold, dict(_evicted(cache)), seconds)


def _evicted(cache: Cache) -> Mapping[str, int]:
    """Tokens by phase so far; empty where the cache does not tell."""
    evicted: Mapping[str, int] = getattr(cache, "evicted", {})
    return evicted


def _write_requests(
    path: Path, requests: Sequence[Request], cached: Sequence[int], evicted: Sequence[tuple[int, int]]
) -> None:
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    phases = np.diff(np.asarray(evicted, dtype=np.int64), axis=0, prepend=0)
    uncached = uncached_tokens(requests, cached)
    table = pyarrow.table(
        {
            "arrival_s": [request.arrival_s for request in requests],
            "prompt_tokens": [request.prompt_tokens for request in requests],
            "cached_tokens": pyarrow.array(cached, pyarrow.int64()),
            "uncached_tokens": uncached,
            "evicted_tel_safe": phases[:, 0],
            "evicted_lru": phases[:, 1],
        }
    )
    part = path.with_suffix(".part")  # what a run that is cut off leaves is not taken for the requests of a cell
    pyarrow.parquet.write_table(table, part)
    part.replace(path)


def _note_command(folder: Path, args: argparse.Namespace) -> None:
    """Add the command to those that filled the folder: a report says how its numbers were made."""
    path, line = folder / "commands.txt", getattr(args, "command_line", None)
    known = path.read_text().splitlines() if path.is_file() else []
    if line is not None and line not in known:
        path.write_text("".join(f"{command}\n" for command in (*known, line)))


def _check_same_trace(folder: Path, trace: Trace) -> None:
    """Refuse to add cells of another trace, or of one that has changed, to a folder of results."""
    import hashlib

    digest = hashlib.sha256()
    for request in trace.requests:
        digest.update(f"{request.arrival_s} {request.prompt_tokens} {request.output_tokens}\n".encode())
    facts = {"trace": trace.name, "requests": len(trace.requests), "digest": digest.hexdigest()[:16]}
    path = folder / "trace.json"
    if path.exists() and (known := json.loads(path.read_text())) != facts:
        raise ValueError(f"--out {folder}: holds results of {known['trace']} as it was then; give another folder")
    path.write_text(json.dumps(facts) + "\n")
