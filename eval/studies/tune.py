"""`python -m eval tune`: which policy, ξ and w to serve a trace with, what to expect of them, and the flags to paste.

Every setting serves the whole trace and knows nothing of what is to come. The choice is made on the first half of the
requests; what is expected is said of the second half. The choice: of the settings whose median keeps its limit, those
whose TEL is within a tolerance (1 %) of the least; of these the one with the lowest median. Where it is no better than
stock lru on the second half, no flags are printed. Where it is, but other sessions could have said otherwise, a line
says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from eval.arguments import (
    NEXT_PROMPT_HELP,
    Several,
    add_page_size,
    add_policies,
    check_page_sizes,
    median_weight,
    number,
    output_folder,
    tokens,
    weight_text,
    whole,
)
from eval.caches.simulator import simulate
from eval.command import RunError
from eval.compare.bootstrap import FEWEST_SESSIONS, Sample, draws, interval, resampled
from eval.compare.changes import METRICS
from eval.parallel import in_parallel
from eval.simulate.cells import Cell, outcome, uncached_tokens
from eval.simulate.evaluate import cache_for, knowledge_of, trace_of
from eval.simulate.timing import Timing
from eval.studies.tune_figure import Setting, draw
from eval.terminal import show, table
from eval.timing_arguments import add_timing_arguments, threshold_of, timing_of
from eval.trace_arguments import TraceSource, add_trace_arguments, say_missing, trace_source
from eval.traces.request import Request
from eval.traces.variants import sessions_of
from radix_tlru.config import DEFAULT_NEXT_PROMPT, FLAGS

BASELINE = "sglang-lru"
POLICIES = ("tlru", "etlru")
WEIGHTS = {"tlru": (0.0, 0.05, 0.1, 0.2, 0.4), "etlru": (None,)}
"""w that are tried, unless others are given; None: the policy chooses it."""

FACTORS = (0.5, 0.75, 1.0, 1.5)
"""Multiples of the objective in tokens that are tried as ξ: pages and prompts vary, so the best need not be 1."""

TAIL_TOLERANCE = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, the pool, the objective, and which settings are tried."""
    add_trace_arguments(parser)
    add = parser.add_argument
    add("--capacity", type=tokens, required=True, metavar="TOKENS", help="KV pool of the server")
    add("--slo", type=number(least=0), required=True, metavar="MS", help="TTFT objective")
    add_timing_arguments(parser)
    add_page_size(parser)
    add("--next-prompt-estimate", type=tokens, metavar="TOKENS", help=f"{NEXT_PROMPT_HELP} (default: learned)")
    add_policies(parser, POLICIES, POLICIES, "tlru, etlru: to choose from (default: both)")
    own = "; ".join(f"{policy}: {' '.join(map(weight_text, weights))}" for policy, weights in WEIGHTS.items())
    add("--median-weight", action=Several, type=median_weight, metavar="W", help=f"w to choose from (default: {own})")
    limited = "by how much the median may rise, on the half that is chosen by (default: %(default)g)"
    add("--median-limit", type=number(), default=1.0, metavar="PERCENT", help=limited)
    add("--jobs", type=whole(1), default=1, metavar="N", help="settings tried side by side (default: 1)")
    add("--out", type=output_folder, required=True, metavar="DIR", help="for tune.json and frontier.png")


def run(args: argparse.Namespace) -> int:
    """Try, choose, print."""
    timing = timing_of(args)
    objective = threshold_of("--slo", args.slo, timing)
    check_page_sizes([args.page_size], [args.capacity])
    source = trace_source(args)
    trace = trace_of(source)
    say_missing(trace.missing())
    if len(trace.requests) < 4:
        raise ValueError(f"--trace {args.trace}: {len(trace.requests)} requests are too few to choose by")
    estimate = DEFAULT_NEXT_PROMPT if args.next_prompt_estimate is None else args.next_prompt_estimate
    if objective <= estimate:
        given = f"--slo {args.slo:g}" + (f" --alpha {args.alpha:g}" if args.alpha is not None else "")
        allowed = f"more than --next-prompt-estimate {estimate}, or nothing is ever TEL-safe"
        raise ValueError(f"{given}: is ξ = {objective} tokens, which must be {allowed}")
    base = Cell(trace.name, BASELINE, args.capacity, objective, estimate, 0.0, args.page_size, forced=True)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = tried([base, *_candidates(base, args)], objective, source, args.jobs)
    stock, *others = settings
    chosen = choose(others, stock, args.median_limit)
    rows = [_row(one, one is chosen) for one in settings]
    (args.out / "tune.json").write_text(json.dumps(rows, indent=1) + "\n")
    is_better = chosen.second.tel < stock.second.tel
    title = "recommended" if is_better else "best tried"
    files = [args.out / "tune.json"]
    if draw(settings, chosen, args.out / "frontier.png", title):
        files.append(args.out / "frontier.png")

    change = _Change(stock, chosen, trace.requests, objective)
    show(
        f"{timing} ({timing.origin}): {args.slo:g} ms is ξ = {objective:,}",
        _expected(stock, chosen, change, timing, title),
        f"{len(settings)} settings tried; all of them: {', '.join(map(str, files))}",
        f"\n  {flags_of(chosen.cell)}" if is_better else _no_better(stock, others),
        *[*_over_the_limit(stock, chosen, args.median_limit), *change.doubts()] * is_better,
    )
    return 0


def _over_the_limit(stock: Setting, chosen: Setting, median_limit: float) -> list[str]:
    """That the median keeps its limit on the half that was chosen by alone."""
    if chosen.second.p50 <= stock.second.p50 * (1 + median_limit / 100):
        return []
    return [
        f"The median keeps --median-limit {median_limit:g} on the half that was chosen by, and not on the other. Try "
        "more of this traffic, or a w that is higher."
    ]


def _no_better(stock: Setting, others: Sequence[Setting]) -> str:
    """What to do where the chosen setting does not beat stock lru on the second half."""
    if not stock.second.tel:
        return "With stock lru no request of the half that was not chosen by is over the SLO: keep stock lru."
    if all((one.first.mean, one.second.mean) == (stock.first.mean, stock.second.mean) for one in others):
        return "Whatever is evicted, as many tokens are prefilled as with stock lru: keep stock lru."
    return "Nothing tried beats stock lru on the half that was not chosen by: keep stock lru, or a larger pool."


def _candidates(base: Cell, args: argparse.Namespace) -> list[Cell]:
    """Every setting to choose from. A ξ that is not above Q̂ is left out."""
    estimate = base.next_prompt_estimate or 0
    thresholds = sorted({xi for factor in FACTORS if (xi := round(base.threshold * factor)) > estimate})
    cells = []
    for policy, threshold in itertools.product(dict.fromkeys(args.policy), thresholds):
        for weight in args.median_weight or WEIGHTS[policy]:
            given = {"next_prompt_estimate": args.next_prompt_estimate, "median_weight": weight}
            cells.append(replace(base, policy=policy, threshold=threshold, **given))
    return cells


def tried(cells: Sequence[Cell], objective: int, source: TraceSource, jobs: int = 1) -> list[Setting]:
    """Serve the trace under every cell. All are judged by ``objective`` (tokens), whatever ξ a cell evicts by."""
    calls = [(cell, objective, source) for cell in cells]
    return list(in_parallel(_try, calls, jobs=jobs, title="settings"))


def _try(cell: Cell, objective: int, source: TraceSource) -> Setting:
    requests = trace_of(source).requests
    cached = simulate(cache_for(cell, knowledge_of(source)), requests)
    half = len(requests) // 2
    parts = ((requests[:half], cached[:half]), (requests[half:], cached[half:]))
    first, second = (outcome(part, found, objective) for part, found in parts)
    return Setting(cell, first, second, uncached_tokens(*parts[1]))


def choose(
    settings: Sequence[Setting], stock: Setting, median_limit: float, tolerance: float = TAIL_TOLERANCE
) -> Setting:
    """The lowest median among those whose TEL is within ``tolerance`` of the least, all on the first half.

    Args:
        median_limit: by how much the median may rise against stock, in per cent; other settings are left out.

    Raises:
        RunError: no setting keeps the limit.
    """
    limit = stock.first.p50 * (1 + median_limit / 100)
    allowed = [one for one in settings if one.first.p50 <= limit]
    if not allowed:
        raise RunError(
            f"--median-limit {median_limit:g}: no setting that was tried keeps it: allow more, or keep stock lru"
        )
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


class _Change:
    """How far the changes against stock lru on the second half would move if other sessions had come."""

    def __init__(self, stock: Setting, chosen: Setting, requests: Sequence[Request], objective: int) -> None:
        second = len(requests) // 2
        prompt = np.array([request.prompt_tokens for request in requests[second:]])
        numbers, session = np.unique(sessions_of(requests)[second:], return_inverse=True)
        drawn = draws(len(numbers))
        self._is_known = len(numbers) >= FEWEST_SESSIONS
        self._stock, self._chosen = (
            resampled(Sample(one.uncached, prompt, session), objective, drawn) for one in (stock, chosen)
        )

    def ends(self, metric: str, of: Callable[[float], float] = float) -> NDArray[np.float64]:
        """Ends of the 95 % interval of the relative change of ``of`` a figure; nan: it cannot be told."""
        if not self._is_known:
            return np.full(2, np.nan)
        column = METRICS.index(metric)
        stock, chosen = (np.array(list(map(of, figures[:, column]))) for figures in (self._stock, self._chosen))
        return interval(np.divide(chosen, stock, out=np.full_like(stock, np.nan), where=stock != 0) - 1)

    def doubts(self) -> list[str]:
        """Why a lower TEL may be no better policy."""
        _, most = self.ends("tel")
        if np.isnan(most):
            return [f"By chance or not cannot be told: fewer than {FEWEST_SESSIONS} sessions, or some without any TEL."]
        return ["Chance alone may have lowered TEL: its interval holds 0. Try more of this traffic."] * bool(most >= 0)


def _expected(stock: Setting, chosen: Setting, change: _Change, timing: Timing, title: str) -> Table:
    columns = ("", "stock lru", title, "change", "95 % interval")
    result = table("Expected, from the second half of the trace", columns)
    rows: list[tuple[str, str, str, Callable[[float], float]]] = [
        *((f"TTFT {name} (ms)", name, "{:,.0f}", timing.ms) for name in ("p50", "p90", "p95", "p99")),
        ("uncached tokens, mean", "mean", "{:,.0f}", float),
        ("requests over the SLO", "violations", "{:,.0f}", float),
        ("TEL (tokens over ξ)", "tel", "{:,.0f}", float),
        ("hit ratio", "hit_ratio", "{:.1%}", float),
    ]
    for name, metric, form, of in rows:
        old, new = (of(getattr(one.second, metric)) for one in (stock, chosen))
        low, high = change.ends(metric, of)
        ends = "–" if np.isnan(low) else f"{low:+.1%} to {high:+.1%}"
        result.add_row(name, form.format(old), form.format(new), f"{new / old - 1:+.1%}" if old else "–", ends)
    return result
