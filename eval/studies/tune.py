"""`python -m eval tune`: which policy, ξ and w to serve a trace with, what to expect of them, and the flags to paste.

Every setting plays the whole trace, learning nothing of what is to come. The choice is made on the first half of the
requests; what is expected is said of the second, which no choice has seen. The choice: of all settings whose TEL is
within a tolerance (1 %) of the least, the one whose median pays least.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eval.command import TraceOptions, add_trace_arguments, median_weight, tokens, trace_options, weight_text
from eval.render.table import console
from eval.simulate.cells import Cell, Outcome, outcome
from eval.simulate.command import cache_for, knowledge_of, trace_of
from eval.studies.paper.timing import ASSUMED, Timing, TimingError, read
from eval.traces import TraceError
from radix_tlru import Config, ConfigError
from radix_tlru.config import DEFAULT_NEXT_PROMPT, FLAGS

__all__ = ["Setting", "add_arguments", "choose", "flags_of", "run", "tried"]

BASELINE = "sglang-lru"
POLICIES = ("tlru", "etlru")
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)
FACTORS = (0.5, 0.75, 1.0, 1.5)
"""Of ξ for the objective: as pages and prompts vary, the best threshold to evict by need not be the objective."""

TAIL_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Setting:
    """A cell that was tried, and what came of it: on the first half, to choose by, and on the second, to expect."""

    cell: Cell
    first: Outcome
    second: Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, the pool, the objective, and how fine the grid is."""
    add_trace_arguments(parser)
    parser.add_argument("--capacity", type=tokens, required=True, metavar="TOKENS", help="KV pool of the server")
    parser.add_argument("--slo", type=float, required=True, metavar="MS", help="TTFT objective")
    parser.add_argument("--alpha", type=float, metavar="MS", help="ms a prefilled token (see `eval paper --calibrate`)")
    parser.add_argument("--beta", type=float, metavar="MS", help="ms of a request without any (default: 0)")
    parser.add_argument("--timing", type=Path, metavar="FILE", help="α and β from a file, such as gpu's timing.json")
    parser.add_argument("--page-size", type=int, default=1, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument(
        "--next-prompt-estimate",
        type=tokens,
        metavar="TOKENS",
        help="Q̂ (default: learned)",
    )
    parser.add_argument("--policy", nargs="+", default=["tlru"], help="to choose from (default: %(default)s)")
    parser.add_argument("--median-weight", type=median_weight, nargs="+", default=list(WEIGHTS), metavar="W")
    parser.add_argument(
        "--median-limit", type=float, metavar="PERCENT", help="by how much the median may rise (default: any)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="settings tried at once (default: 1)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for tune.json and frontier.png")


def run(args: argparse.Namespace) -> int:
    """Try, choose, print; 2 if something asked for cannot be done."""
    try:
        return _run(args)
    except (TraceError, TimingError, ConfigError, ValueError, OSError) as error:
        print(f"eval tune: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    timing = _timing(args)
    objective = timing.tokens(args.slo)
    if objective < 1:
        raise ValueError(f"--slo {args.slo:g}: leaves no token to prefill: TTFT = {timing.beta:g} ms + α·uncached")
    if args.page_size < 1:
        raise ValueError(f"--page-size {args.page_size}: must be 1 or more")
    if args.capacity < args.page_size:
        raise ValueError(f"--capacity {args.capacity}: must be at least one page of {args.page_size} tokens")
    for policy in args.policy:
        if policy not in POLICIES:
            raise ValueError(f"--policy {policy}: must be one that a server takes: {', '.join(POLICIES)}")
    options = trace_options(args)
    trace = trace_of(options)
    if len(trace.requests) < 4:
        raise ValueError(f"--trace {args.trace}: {len(trace.requests)} requests are too few to choose by")
    estimate = DEFAULT_NEXT_PROMPT if args.next_prompt_estimate is None else args.next_prompt_estimate
    if objective <= estimate:
        given = f"--slo {args.slo:g}" + (f" --alpha {args.alpha:g}" if args.alpha is not None else "")
        allowed = f"more than --next-prompt-estimate {estimate}, or nothing is ever TEL-safe"
        raise ValueError(f"{given}: is ξ = {objective} tokens, which must be {allowed}")
    base = Cell(trace.name, BASELINE, args.capacity, objective, estimate, 0.0, args.page_size, forced=True)
    settings = tried([base, *_grid(base, args)], objective, options, args.jobs)
    stock, *others = settings
    chosen = choose(others, stock, args.median_limit)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [_row(one, one is chosen) for one in settings]
    (args.out / "tune.json").write_text(json.dumps(rows, indent=1) + "\n")
    files = [args.out / "tune.json"]
    if _draw(settings, chosen, args.out / "frontier.png"):
        files.append(args.out / "frontier.png")

    line = f"TTFT = {timing.beta:g} ms + {timing.alpha:.5g} ms · uncached"
    print(f"{line} ({timing.origin}): {args.slo:g} ms is ξ = {objective:,}")
    console().print(_table(stock, chosen, timing))
    if chosen.second.tel >= stock.second.tel:
        print(_no_better(stock, others))
    print(f"{len(settings)} settings tried; all of them: {', '.join(map(str, files))}")
    print(f"\n  {flags_of(chosen.cell)}")
    return 0


def _timing(args: argparse.Namespace) -> Timing:
    if args.timing is not None:
        if args.alpha is not None or args.beta is not None:
            raise ValueError(f"--timing {args.timing}: not together with --alpha or --beta; give one of them")
        return read(args.timing)
    if args.alpha is None:
        if args.beta is not None:
            raise ValueError(f"--beta {args.beta:g}: needs --alpha")
        return ASSUMED
    return Timing(args.alpha, args.beta or 0.0, "given")


def _no_better(stock: Setting, others: Sequence[Setting]) -> str:
    """What to do where the recommended setting does not beat stock lru on the half that was not chosen by."""
    if not stock.second.tel:
        return "With stock lru no request of the half that was not chosen by is over the SLO: keep stock lru."
    if all((one.first.mean, one.second.mean) == (stock.first.mean, stock.second.mean) for one in others):
        return "Whatever is evicted, as many tokens are prefilled as with stock lru: keep stock lru."
    return "Nothing tried beats stock lru on the half that was not chosen by: keep stock lru, or a larger pool."


def _grid(base: Cell, args: argparse.Namespace) -> list[Cell]:
    """Every candidate; thresholds that leave nothing over Q̂ are none."""
    estimate = base.next_prompt_estimate or 0
    thresholds = sorted({xi for factor in FACTORS if (xi := round(base.threshold * factor)) > estimate})
    cells = []
    for policy, threshold, weight in itertools.product(args.policy, thresholds, args.median_weight):
        Config(median_weight=weight)  # raises ConfigError for what no policy takes
        given = {"next_prompt_estimate": args.next_prompt_estimate, "median_weight": weight}
        cells.append(replace(base, policy=policy, threshold=threshold, **given))
    return cells


def tried(cells: Sequence[Cell], objective: int, options: TraceOptions, jobs: int = 1) -> list[Setting]:
    """Play the trace under every cell; the outcomes are judged by ``objective`` (tokens), whatever a cell evicts by."""
    if jobs == 1:
        return [_try(cell, objective, options) for cell in cells]
    import joblib

    found: list[Setting] = joblib.Parallel(n_jobs=jobs)(
        joblib.delayed(_try)(cell, objective, options) for cell in cells
    )
    return found


def _try(cell: Cell, objective: int, options: TraceOptions) -> Setting:
    requests = trace_of(options).requests
    cache = cache_for(cell, knowledge_of(options))
    cached = [cache.request(request) for request in requests]
    half = len(requests) // 2
    parts = ((requests[:half], cached[:half]), (requests[half:], cached[half:]))
    first, second = (outcome(part, found, objective, {}, 0.0) for part, found in parts)
    return Setting(cell, first, second)


def choose(
    settings: Sequence[Setting], stock: Setting, median_limit: float | None = None, tolerance: float = TAIL_TOLERANCE
) -> Setting:
    """The least median among those whose TEL is within ``tolerance`` of the least, all on the first half.

    Args:
        median_limit: by how much the median may rise against stock, in per cent; only such settings are looked at.

    Raises:
        ValueError: no setting keeps the limit.
    """
    limit = float("inf") if median_limit is None else stock.first.p50 * (1 + median_limit / 100)
    allowed = [one for one in settings if one.first.p50 <= limit]
    if not allowed:
        raise ValueError(f"--median-limit {median_limit:g}: no setting that was tried keeps it")
    least = min(one.first.tel for one in allowed)
    near = [one for one in allowed if one.first.tel <= least * (1 + tolerance)]
    return min(near, key=lambda one: (one.first.p50, one.first.tel))


def flags_of(cell: Cell) -> str:
    """The flags of a server that evicts as the cell does."""
    fields = ("policy", "threshold", "next_prompt_estimate", "median_weight")
    given = {name: value for name in fields if (value := getattr(cell, name)) is not None}
    return " ".join(f"{FLAGS[name]} {value}" for name, value in given.items())


def _row(one: Setting, chosen: bool) -> dict[str, Any]:
    return {**asdict(one.cell), "chosen": chosen, "first_half": asdict(one.first), "second_half": asdict(one.second)}


def _table(stock: Setting, chosen: Setting, timing: Timing) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Expected, from the second half of the trace", title_justify="left")
    table.add_column("")
    for head in ("stock lru", "recommended", "change"):
        table.add_column(head, justify="right")
    before, after = stock.second, chosen.second
    rows: list[tuple[str, float, float, str]] = [
        *(
            (f"TTFT {name} (ms)", timing.ms(getattr(before, name)), timing.ms(getattr(after, name)), "{:,.0f}")
            for name in ("p50", "p90", "p95", "p99")
        ),
        ("uncached tokens, mean", before.mean, after.mean, "{:,.0f}"),
        ("requests over the SLO", before.violations, after.violations, "{:,.0f}"),
        ("TEL (tokens over ξ)", before.tel, after.tel, "{:,.0f}"),
        ("hit ratio", before.hit_ratio, after.hit_ratio, "{:.1%}"),
    ]
    for name, old, new, form in rows:
        table.add_row(name, form.format(old), form.format(new), f"{new / old - 1:+.1%}" if old else "–")
    return table


def _draw(settings: Sequence[Setting], chosen: Setting, path: Path) -> bool:
    """TEL against the median, as changes against stock lru, on the half that nothing was chosen by.

    Returns whether there is such a figure: not where stock's TEL or median is 0. One of an earlier run is removed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from eval.render.report.style import INK, RC, look, percent_axis

    stock, *others = settings
    path.unlink(missing_ok=True)
    if not stock.second.tel or not stock.second.p50:
        return False
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.6))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.1, right=0.97, bottom=0.14, top=0.96)
        lines = sorted({(one.cell.policy, one.cell.threshold) for one in others})
        shades = {threshold: 0.25 + 0.75 * rank for rank, threshold in _ranks(threshold for _, threshold in lines)}
        for policy, threshold in lines:
            line = [one for one in others if (one.cell.policy, one.cell.threshold) == (policy, threshold)]
            line.sort(key=lambda one: (isinstance(one.cell.median_weight, str), one.cell.median_weight))
            x = [one.second.p50 / stock.second.p50 - 1 for one in line]
            y = [one.second.tel / stock.second.tel - 1 for one in line]
            style = look(policy)
            axes.plot(x, y, color=style.colour, alpha=shades[threshold], marker=style.marker, markersize=3.5,
                      linewidth=0.9, label=f"{policy}, ξ = {threshold:,}")  # fmt: skip
            axes.plot(x[0], y[0], color=style.colour, alpha=shades[threshold], marker=style.marker, markersize=6)
        place = (chosen.second.p50 / stock.second.p50 - 1, chosen.second.tel / stock.second.tel - 1)
        axes.plot(*place, marker="o", markersize=12, markerfacecolor="none", color=INK, linestyle="none",
                  label=f"recommended, w = {_w(chosen)}")  # fmt: skip
        axes.plot(0, 0, marker="s", color=INK, markersize=4)
        axes.annotate("stock lru", (0, 0), xytext=(5, 3), textcoords="offset points", fontsize=7)
        percent_axis(axes.xaxis)
        percent_axis(axes.yaxis)
        axes.set(xlabel="median uncached tokens against stock lru", ylabel="TEL against stock lru")
        axes.legend(frameon=False, fontsize=7, title=f"large marks: w = {_w(line[0])}", title_fontsize=7)
        figure.savefig(path, dpi=220)
    return True


def _w(one: Setting) -> str:
    return weight_text(one.cell.median_weight)


def _ranks(thresholds: Iterable[int]) -> list[tuple[float, int]]:
    """Each threshold with its place among them, from 0 to 1."""
    known = sorted(set(thresholds))
    return [(place / max(len(known) - 1, 1), threshold) for place, threshold in enumerate(known)]
