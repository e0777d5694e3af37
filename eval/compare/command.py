"""`python -m eval compare`: every policy against stock lru on many traces, and one verdict for each.

A policy is *never worse than lru*, or the command lists every figure of every setting in which it is worse by more than
1 %, the worst first. What 1 % means where lru has 0 or next to nothing is stated in ``changes.py`` and on the page.

``lru`` is page-granular. SGLang's own, ``sglang-lru``, evicts whole nodes and is a little worse.

A setting is one trace at one capacity under one ξ. Capacities are tokens, or shares of the trace's working set: the
most tokens at one time that a later prompt has again (``eval trace`` prints it). ξ is given in tokens, or follows from
a TTFT objective in ms and the line β + α·uncached. Each policy has the weight w of a server unless one is given.

``--variants`` asks whether the verdict holds on other traffic of the same kind (``traces/variants.py``), ``--mixes``
whether it holds where two kinds share a server (``traces/mixes.py``).

Written into DIR: ``cells.jsonl``, ``losses.txt``, ``compare.html`` with its figures. A run that was cut off goes on
with the same command. Cells that are there are not run again, even if the code of a policy has changed since. Cells of
a trace that has changed are dropped.
``--quick`` takes fewer settings of the same traces: seed 0, 10 and 50 % of the working set, ξ = 8,192.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import joblib

from eval.arguments import Several, add_median_weights, add_policies, number, output_folder, whole
from eval.compare.bootstrap import FEWEST_SESSIONS
from eval.compare.cells import check_own, drop_stale, fill
from eval.compare.page import PAGE, write_page
from eval.compare.settings import (
    BASELINE,
    OPTIMUM,
    QUICK_SHARES,
    QUICK_THRESHOLDS,
    SHARES,
    THRESHOLDS,
    Setting,
    cells_of,
    settings_of,
    size,
    thresholds,
)
from eval.compare.table import cell_grids, summary
from eval.compare.traces import Survey, sources, survey_all
from eval.compare.verdict import NOTHING_DIFFERS, Verdict, nothing_differs, verdicts
from eval.simulate.grid import EVICTIONS, check_weights
from eval.simulate.rows import CELLS, Rows, note_command
from eval.terminal import show
from eval.timing_arguments import add_timing_arguments, timing_of
from eval.trace_arguments import add_reading_arguments, say_too_long
from eval.traces.mixes import MIXES
from eval.traces.variants import VARIANTS

ALL = "all"
EVERY = tuple(name for name in EVICTIONS if not name.startswith("real-"))
"""What ``--policy all`` means. The real caches of radix-tlru evict what ``tlru`` and ``etlru`` do, and take minutes."""

LOSSES = "losses.txt"

DEFAULT_PAGE = 64
"""Default of ``--page-size``: contexts of 100,000 tokens are long lists for rules that look up page by page."""

FEW_SETTINGS = 6
"""Up to so many, the figures of every cell are printed, too."""

FEW_LOSSES = 10
"""Losses of a policy that are printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which traces, settings and policies."""
    add = parser.add_argument
    add("--trace", action=Several, metavar="PATH_OR_NAME", help="as of `eval trace`; any number")
    add(
        "--suite",
        nargs="?",
        const=True,
        metavar="FOLDER",
        help="every generated kind with two seeds, or every trace that lies in FOLDER",
    )
    made = "also halves of its sessions, sessions at each other's times, four times as slow, first turns alone"
    add("--variants", action="store_true", help=f"of each trace {made}: {', '.join(VARIANTS)}")
    both = "also one after the other, one from the middle of the other on, one stretched to the time of the other"
    add("--mixes", action="store_true", help=f"of each two traces {both}: {', '.join(MIXES)}")
    add_reading_arguments(parser)
    shares, quick = " ".join(SHARES), " ".join(QUICK_SHARES)
    add(
        "--capacity",
        action=Several,
        type=size,
        metavar="SIZE",
        help=f"tokens (500k), or a share of the working set (default: {shares}; with --quick {quick})".replace(
            "%", "%%"
        ),
    )
    quick = " ".join(map(str, QUICK_THRESHOLDS))
    xi = f"ξ (default: {' '.join(map(str, THRESHOLDS))}; with --quick {quick})"
    add("--threshold", action=Several, type=whole(1), metavar="TOKENS", help=xi)
    add("--ttft-slo", action=Several, type=number(above=0), metavar="MS", help="TTFT objectives in place of ξ")
    add_timing_arguments(parser)
    add("--seeds", action=Several, type=whole(0), metavar="N", help="of traces that are generated without one")
    add("--drawn", action="store_true", help="of those other parameters are drawn by the seed, too: half to twice each")
    add_policies(
        parser,
        (*EVICTIONS, ALL),
        (BASELINE, "tlru", "etlru", OPTIMUM),
        f"any of {', '.join(EVICTIONS)}; {ALL}: all but real-* (default: lru tlru etlru tail-belady; lru and "
        "tail-belady always run)",
    )
    add_median_weights(parser, "w: 0 to 1 (default: as a server)")
    add("--page-size", type=whole(1), default=DEFAULT_PAGE, metavar="N", help="tokens (default: %(default)s)")
    add("--quick", action="store_true", help="fewer settings of the same traces")
    jobs = joblib.cpu_count()
    add("--jobs", type=whole(1), default=jobs, metavar="N", help=f"cells side by side (default: all cores, {jobs})")
    add("--out", type=output_folder, required=True, metavar="DIR", help=f"for {CELLS}, the page and its figures")


def run(args: argparse.Namespace) -> int:
    """Run the cells that are missing, print the verdicts, write the page."""
    check_weights([*EVERY] if ALL in args.policy else args.policy, args.median_weight)
    wanted = sources(args)
    settings_of([], args)  # what is wrong with ξ is said before traces are read
    if args.ttft_slo:
        timing, objectives = timing_of(args), zip(args.ttft_slo, thresholds(args), strict=True)
        show(f"{timing} ({timing.origin}): {', '.join(f'{slo:g} ms is ξ = {xi:,}' for slo, xi in objectives)}")
    folder = args.suite if isinstance(args.suite, str) else None
    settings = settings_of(survey_all(wanted, jobs=args.jobs, folder=folder), args)
    ran = judge(settings, args)
    print(f"{ran:,} cells run now; in {args.out}: {PAGE}, {CELLS}, {LOSSES}")
    return 0


def judge(settings: Sequence[Setting], args: argparse.Namespace) -> int:
    """Compare in these settings: run what is missing, write, print the verdicts.

    Args:
        args: the flags of the command but those that say which settings: policy, median_weight, jobs, out.

    Returns:
        How many cells were run.

    Raises:
        ValueError, OSError: something asked for cannot be done.
    """
    if ALL in args.policy:
        args.policy = [name for name in args.policy if name != ALL] + list(EVERY)
    wanted = [(setting, cells_of(setting, args)) for setting in settings]
    folder: Path = args.out
    rows = Rows(folder / CELLS)
    check_own(rows)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    drop_stale(rows, settings)
    note_command(folder, args.command_line)
    for trace in dict.fromkeys(setting.trace for setting in settings):
        own = [each for each in settings if each.trace is trace]
        _say_nothing_repeats(trace.name, own)
        _say_too_little(trace)
        say_too_long(trace.name, trace.longest, (each.capacity for each in own))
    ran = fill(rows, wanted, args.jobs)
    rows.sort(cell.name for _, cells in wanted for cell in cells)
    # A cell may be there from a run that asked for the same tokens by another name.
    shown = [{**rows[cell.name], "capacity_asked": setting.size.text} for setting, cells in wanted for cell in cells]
    found = verdicts(shown)
    (folder / LOSSES).write_text("".join(f"{line}\n" for line in _lines(found)))
    write_page(folder, found, shown, args.command_line or "", LOSSES)
    if len(settings) <= FEW_SETTINGS:
        show(*(grid.printed() for grid in cell_grids(shown, intervals=False)))
    show(summary(found).printed(), *_lines(found, FEW_LOSSES))
    return ran


def _say_nothing_repeats(trace: str, settings: Sequence[Setting]) -> None:
    """Say on standard error which capacities are shares of nothing."""
    shares = [each for each in settings if each.size.share is not None and not each.trace.working_set]
    if shares:
        page = f"any share of it is one page, {shares[0].page_size:,} tokens, and no policy can win"
        print(f"{trace}: no prompt has tokens of an earlier one, its working set is 0: {page}", file=sys.stderr)


def _say_too_little(trace: Survey) -> None:
    """Say on standard error what a trace is too small for, or does not tell; of what is made of one, nothing."""
    if trace.source.is_made:
        return
    if trace.sessions < FEWEST_SESSIONS:
        few = f"sessions: {trace.sessions:,}, fewer than {FEWEST_SESSIONS}"
        print(f"{trace.name}: {few}: too few for intervals, and to tell policies apart", file=sys.stderr)
    if trace.requests > 1 and not trace.duration_s:
        print(f"{trace.name}: all requests come at one time: etlru cannot learn who comes back when", file=sys.stderr)


def _lines(found: Sequence[Verdict], most: int | None = None) -> list[str]:
    """The sentence of each policy, and its losses, at most so many."""
    lines = []
    for one in found:
        if one.policy == BASELINE:
            continue
        lines.append(one.sentence)
        lines += [f"  {loss}" for loss in one.losses[:most]]
        if most is not None and len(one.losses) > most:
            lines.append(f"  … and {len(one.losses) - most:,} more, in {LOSSES}")
    return [*lines, *([NOTHING_DIFFERS] if nothing_differs(found) else [])]
