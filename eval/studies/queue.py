"""`python -m eval queue`: the time to first token where requests wait for each other, policy by policy.

``simulate`` counts uncached tokens, as if each request had the server to itself. Under load a prefill also delays all
requests behind it. Here a server prefills one request after the other, first come, first served, in
``β + α · uncached`` ms each, and

    TTFT = time in the queue + β + α · uncached.

α is chosen so that lru is busy with prefills for a given share of the time (``--load``); all policies are on the same
server. ``--alpha`` gives it instead. Arrivals are those of the trace: a user who waits longer does not come back later.

With ``--itl`` answers take time, too: continuous batching as of ``batching.py``. Requests that run hold KV, which the
cache cannot evict, and wait while others prefill. The table then has ITL and tokens per second as well. Only policies
of the simulator can be run so.

Who waits for whom turns on who came first, so one run tells little of a server that is behind. ``--repeats`` serves the
trace again with each session a few seconds earlier or later, the same for all policies, and gives the mean change and
its 95 % interval.

Without ``--itl``, what is cached of the prompts in the queue counts as used under stock lru and radix-tlru, not under
stock tlru, as in SGLang (``queue_model.py``).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from eval.arguments import (
    NEXT_PROMPT_HELP,
    THRESHOLD_HELP,
    Several,
    add_median_weights,
    add_page_size,
    add_policies,
    check_page_sizes,
    number,
    tokens,
    weight_text,
    whole,
)
from eval.parallel import in_parallel
from eval.simulate.cells import Cell, tail_excess_latency
from eval.simulate.evaluate import cache_for, knowledge_of, trace_of
from eval.simulate.grid import LEARNING, NAMED_CACHES, check_weights, settings_in_force
from eval.simulate.timing import Timing
from eval.studies.batching import Batched, Engine, HoldingCache, serve_batches
from eval.studies.figures import four_digits, half_interval
from eval.studies.queue_model import QueueAware, Queued, line_for, serve, span_s
from eval.terminal import show, table, track
from eval.trace_arguments import TraceSource, add_trace_arguments, say_missing, trace_source
from eval.traces.request import Request, TraceError
from eval.traces.variants import NUDGED
from radix_tlru import Config
from radix_tlru.config import DEFAULT_NEXT_PROMPT

BASELINE = "sglang-lru"
POLICIES = (BASELINE, "sglang-tlru", "tlru", "etlru", "lru", "tail-belady")

BATCHED_BASELINE = "lru"
"""With ``--itl``: SGLang's own cache cannot be told what running requests hold."""

LOADS = (0.5, 0.8, 0.95)
"""Loads, unless others or α are given."""

BATCHED = ("ITL p50", "p95", "tokens/s")
"""Columns with ``--itl``; ITL is the mean of a request."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; policies, weights and loads span a grid."""
    add_trace_arguments(parser)
    default = f"(default: {' '.join(POLICIES[:4])}; with --itl lru tlru etlru)"
    add_policies(parser, POLICIES, (), f"any of {', '.join(POLICIES)} {default}")
    add = parser.add_argument
    add("--capacity", type=tokens, required=True, metavar="TOKENS", help="e.g. 2M")
    add("--threshold", type=tokens, required=True, metavar="TOKENS", help=THRESHOLD_HELP)
    add(
        "--next-prompt-estimate",
        type=tokens,
        metavar="TOKENS",
        help=f"{NEXT_PROMPT_HELP} (default: learned by tlru and etlru, else {DEFAULT_NEXT_PROMPT})",
    )
    add_median_weights(parser, "w of tlru and etlru (default: that of a server)")
    add_page_size(parser)
    add(
        "--load",
        action=Several,
        type=number(above=0),
        default=[],
        metavar="SHARE",
        help="of the time that lru prefills; above 1 it cannot keep up (default: 0.5 0.8 0.95)",
    )
    add("--alpha", type=number(above=0), metavar="MS", help="a prefilled token, in place of --load")
    add("--beta", type=number(least=0), default=20.0, metavar="MS", help="of any prefill (default: %(default)s)")
    add("--itl", type=number(above=0), metavar="MS", help="answers take time: ms of a decoding step with one request")
    add(
        "--itl-slope",
        type=number(least=0),
        metavar="MS",
        help="with --itl: more for every other that runs (default: 0)",
    )
    add("--chunk", type=whole(1), metavar="TOKENS", help="with --itl: prefilled in a step (default: 2048)")
    add("--most-running", type=whole(1), metavar="N", help="with --itl: requests at once (default: 256)")
    add("--repeats", type=whole(1), default=1, metavar="N", help="of each run, sessions moved by seconds (default: 1)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs side by side (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], [args.capacity])
    for flag, value in _of_steps(args).items():
        if args.itl is None:
            raise ValueError(f"--{flag.replace('_', '-')} {value:g}: needs --itl; without it only prefills take time")
    show(compare(args))
    return 0


def compare(args: argparse.Namespace) -> Table:
    """A row for each load and policy, against stock lru at the same load."""
    source = trace_source(args)
    trace = trace_of(source)
    say_missing(trace.missing())
    if len(trace.requests) < 2 or span_s(trace.requests) <= 0:
        raise TraceError(f"--trace {trace.name}: has no arrival times to wait by")
    cells = _cells(trace.name, args)
    alone = cache_for(cells[0], knowledge_of(source))
    uncached = sum(request.prompt_tokens - alone.request(request) for request in track(trace.requests, "lru alone"))
    lines = _lines(args, trace.requests, uncached)
    sources = [source, *(replace(source, variant=f"{NUDGED}{repeat}") for repeat in range(1, args.repeats))]
    runs = list(itertools.product(sources, lines, cells))
    calls = [(cell, nudged, _engine(lines[load], args)) for nudged, load, cell in runs]
    done = dict(zip(runs, in_parallel(_served, calls, jobs=args.jobs, title="runs"), strict=True))
    decodes = args.itl is not None
    result = table(
        f"{trace.name}; {args.capacity:,} tokens, ξ = {args.threshold:,}, page {args.page_size}",
        ("load", "policy", "w", "busy", "uncached", "TEL", "TTFT p50", "p95", "p99", *(BATCHED if decodes else ())),
        texts=2,
    )
    result.caption = "; ".join(
        f"load {load:g}: {line.beta:g} ms + {line.alpha:.3g} ms a token" for load, line in lines.items()
    )
    result.caption_justify = "left"
    units = ("", "", "s", "s", "s", *(("ms", "ms", "") if decodes else ()))
    for load in lines:
        before = np.array([_figures(done[each, load, cells[0]], args.threshold) for each in sources])
        for cell in cells:
            after = np.array([_figures(done[each, load, cell], args.threshold) for each in sources])
            is_first = cell is cells[0]
            shown = map(_value, before[0], units) if is_first else map(_change, after.T, before.T, units)
            result.add_row(
                f"{load:g}" if is_first else "",
                cell.policy,
                weight_text(cell.median_weight) if cell.policy in LEARNING else "–",
                f"{done[source, load, cell].busy:.0%}",
                *shown,
                end_section=cell is cells[-1],
            )
    return result


def _lines(args: argparse.Namespace, requests: Sequence[Request], uncached: int) -> dict[float, Timing]:
    """The servers, by the share of the time that lru's ``uncached`` tokens keep them busy."""
    if args.alpha is None:
        return {load: line_for(load, args.beta, requests, uncached) for load in args.load or LOADS}
    if args.load:
        raise ValueError(f"--alpha {args.alpha:g}: not together with --load; give one of them")
    line = Timing(args.alpha, args.beta, "given")
    work_s = (args.beta * len(requests) + args.alpha * uncached) / 1000.0
    return {round(work_s / span_s(requests), 3): line}


def _figures(served: Queued | Batched, threshold: int) -> tuple[float, ...]:
    """Mean uncached tokens, TEL, TTFT in s: p50, p95, p99; of batches ITL in ms: p50, p95; and tokens a second."""
    tel = float(tail_excess_latency(served.uncached, threshold))
    figures = (float(served.uncached.mean()), tel, *np.percentile(served.ttft_s, [50, 95, 99]).tolist())
    if isinstance(served, Queued):
        return figures
    known_s = served.itl_s[~np.isnan(served.itl_s)]  # of answers of more than one token
    itl_ms = 1000 * np.percentile(known_s, [50, 95]) if len(known_s) else np.full(2, np.nan)
    return (*figures, *itl_ms.tolist(), served.tokens_per_s)


def _value(value: float, unit: str) -> str:
    if np.isnan(value):
        return "–"
    if unit == "ms":
        return f"{four_digits(value)} ms"
    return f"{value:.2f} s" if unit else f"{value:,.0f}"


def _change(after: NDArray[np.float64], before: NDArray[np.float64], unit: str) -> str:
    """From the baseline, the mean of repeats; of several with half of its 95 % interval (Student's t)."""
    if not before.all() or np.isnan([*after, *before]).any():
        return _value(after[0], unit)
    changes = 100 * (after / before - 1)
    if len(changes) == 1:
        return f"{changes[0]:+.0f}%"
    return f"{changes.mean():+.0f} ± {half_interval(changes):.0f} %"


def _cells(trace: str, args: argparse.Namespace) -> list[Cell]:
    """Stock lru, then the policies that are compared with it."""
    baseline = BASELINE if args.itl is None else BATCHED_BASELINE
    default = POLICIES[:4] if args.itl is None else ("tlru", "etlru")
    check_weights(args.policy or default, args.median_weight)
    cells = []
    for policy, weight in itertools.product(dict.fromkeys((baseline, *(args.policy or default))), args.median_weight):
        if args.itl is not None and policy in NAMED_CACHES:
            raise ValueError(f"--policy {policy}: is a real cache, which --itl cannot run; must be a simulated policy")
        Config(threshold=args.threshold, next_prompt_estimate=args.next_prompt_estimate, median_weight=weight)
        settings = settings_in_force(policy, args.next_prompt_estimate, weight if policy in LEARNING else None)
        cells.append(Cell(trace, policy, args.capacity, args.threshold, *settings, args.page_size))
    return list(dict.fromkeys(cells))


def _engine(line: Timing, args: argparse.Namespace) -> Timing | Engine:
    """The server: with ``--itl`` one that decodes."""
    if args.itl is None:
        return line
    steps = {"slope_ms" if name == "itl_slope" else name: value for name, value in _of_steps(args).items()}
    return Engine(line, args.itl, **steps)


def _of_steps(args: argparse.Namespace) -> dict[str, Any]:
    """Flags about the steps of continuous batching that were given."""
    names = ("itl_slope", "chunk", "most_running")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _served(cell: Cell, source: TraceSource, server: Timing | Engine) -> Queued | Batched:
    cache = cache_for(cell, knowledge_of(source))
    if isinstance(server, Engine):
        assert isinstance(cache, HoldingCache), f"{cell.policy} cannot be told what is held"
        return serve_batches(cache, trace_of(source).requests, server)
    assert isinstance(cache, QueueAware), f"{cell.policy} cannot be told of the queue"
    return serve(cache, trace_of(source).requests, server)
