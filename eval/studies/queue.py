"""`python -m eval queue`: the time to first token where requests wait for each other, policy by policy.

``simulate`` counts uncached tokens, as if each request had the server to itself. Under load it has not: what one
request has to prefill, all behind it wait for. Here a server prefills one request after the other, first come, first
served, for ``β + α · uncached`` ms each, and

    TTFT = the wait for all that came before + β + α · uncached.

α is set so that stock lru would be busy for a given share of the time (``--load``): all policies are on the same
server. Arrivals are those of the trace: who waits longer does not come back later. Decoding and batching are left out;
``python -m eval replay --users N`` has both, on a real server.

While a request waits what is cached of its prompt is used again, at every 32nd prefill, as a scheduler does it for
stock lru, and so for ours, not for stock tlru (SGLang 0.5.23, ``schedule_policy.py``, ``_touch_waiting_prefixes``).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import joblib
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.caches.simulator import Cache
from eval.command import TraceOptions, add_trace_arguments, median_weight, tokens, trace_options, weight_text
from eval.render.table import console
from eval.simulate.cells import Cell
from eval.simulate.command import cache_for, knowledge_of, trace_of
from eval.simulate.grid import OURS, own_settings
from eval.traces.request import Request, TraceError
from radix_tlru import Config, ConfigError
from radix_tlru.config import DEFAULT_NEXT_PROMPT
from radix_tlru.objective.load_weight import PrefillLoad

__all__ = ["Line", "Queued", "serve"]

BASELINE = "sglang-lru"
POLICIES = (BASELINE, "sglang-tlru", "tlru", "etlru", "lru", "tail-belady")

REFRESH, MOST_REFRESHED = 32, 128
"""Prefills from one use of what waits to the next, and requests from the head of the queue that it is of (SGLang)."""


class Line(NamedTuple):
    """The time of a prefill: β + α · uncached."""

    alpha_ms: float  # a token
    beta_ms: float

    def seconds(self, uncached: int) -> float:
        """For so many tokens."""
        return (self.beta_ms + self.alpha_ms * uncached) / 1000.0


@runtime_checkable
class Waits(Cache, Protocol):
    """A cache that hears of requests before they are served."""

    def touch(self, request: Request) -> None:
        """A request has come and waits."""

    def count_prefill(self, load: PrefillLoad) -> None:
        """A prefill starts."""


class Queued(NamedTuple):
    """A trace that was served; one value a request, in its order."""

    uncached: NDArray[np.int64]  # tokens
    ttft_s: NDArray[np.float64]
    busy: float  # share of the time from the first arrival to the last that prefills take


def serve(cache: Waits, requests: Sequence[Request], line: Line) -> Queued:
    """First come, first served, one at a time."""
    waiting: deque[Request] = deque()
    coming = deque(requests)
    now, prefills = 0.0, 0
    uncached: list[int] = []
    ttft: list[float] = []
    while waiting or coming:
        idle = not waiting and coming[0].arrival_s > now
        if idle:
            now = coming[0].arrival_s
        left, before = len(waiting), uncached[-1] if uncached else 0
        while coming and coming[0].arrival_s <= now:
            waiting.append(coming.popleft())
        waited = 0.0 if idle else (len(waiting) - left) * before / 2
        if prefills % REFRESH == 0:
            for request in reversed(list(itertools.islice(waiting, MOST_REFRESHED))):  # the next to be served last
                cache.touch(request)
        prefills += 1
        request = waiting.popleft()
        uncached.append(request.prompt_tokens - cache.request(request))
        cache.count_prefill(PrefillLoad(uncached[-1], len(waiting), waited))
        now += line.seconds(uncached[-1])
        ttft.append(now - request.arrival_s)
    work = sum(map(line.seconds, uncached))
    return Queued(np.array(uncached), np.array(ttft), work / (span_s(requests) or math.inf))


def span_s(requests: Sequence[Request]) -> float:
    """From the first arrival to the last."""
    return requests[-1].arrival_s - requests[0].arrival_s


def line_for(load: float, beta_ms: float, requests: Sequence[Request], uncached: int) -> Line:
    """The server that so many uncached tokens in all would keep busy for that share of the time.

    Raises ValueError if β alone is more.
    """
    left_ms = 1000.0 * load * span_s(requests) - beta_ms * len(requests)
    if left_ms <= 0:
        raise ValueError(f"--beta {beta_ms:g}: {len(requests):,} requests are more than --load {load:g} by that alone")
    return Line(left_ms / max(uncached, 1), beta_ms)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; policies, weights and loads span a grid."""
    add_trace_arguments(parser)
    add = parser.add_argument
    add(
        "--policy",
        nargs="+",
        choices=POLICIES,
        default=list(POLICIES[:4]),
        metavar="P",
        help=f"of {' '.join(POLICIES)}",
    )
    add("--capacity", type=tokens, required=True, metavar="TOKENS", help="e.g. 2M")
    add("--threshold", type=tokens, required=True, metavar="TOKENS", help="ξ")
    add("--next-prompt-estimate", type=tokens, metavar="TOKENS", help=f"Q̂ (ours: learned; else {DEFAULT_NEXT_PROMPT})")
    add(
        "--median-weight", nargs="+", type=median_weight, default=[None], metavar="W", help="w of ours (a server's own)"
    )
    add("--page-size", type=tokens, default=1, metavar="N", help="tokens (%(default)s)")
    add("--load", nargs="+", type=float, default=[0.5, 0.8, 0.95], metavar="SHARE", help="of the time (0.5 0.8 0.95)")
    add("--beta", type=float, default=20.0, metavar="MS", help="of a prefill, whatever its length (%(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="runs side by side (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print a table; 2 if something asked for cannot be done."""
    try:
        for load in args.load:
            if not 0 < load < 1:
                raise ValueError(f"--load {load:g}: must be above 0 and below 1")
        if args.beta < 0:
            raise ValueError(f"--beta {args.beta:g}: must be 0 ms or more")
        if not 1 <= args.page_size <= args.capacity:
            raise ValueError(f"--page-size {args.page_size}: must be 1 to the {args.capacity} tokens of the cache")
        if args.jobs < 1:
            raise ValueError(f"--jobs {args.jobs}: must be 1 or more")
        console().print(compare(args))
    except (TraceError, ConfigError, ValueError, OSError) as error:
        print(f"eval queue: {error}", file=sys.stderr)
        return 2
    return 0


def compare(args: argparse.Namespace) -> Table:
    """A row for each load and policy, against stock lru at the same load."""
    options = trace_options(args)
    trace = trace_of(options)
    if len(trace.requests) < 2 or span_s(trace.requests) <= 0:
        raise TraceError(f"--trace {trace.name}: has no arrival times to wait by")
    cells = _cells(trace.name, args)
    alone = cache_for(cells[0], knowledge_of(options))
    uncached = sum(request.prompt_tokens - alone.request(request) for request in trace.requests)
    lines = {load: line_for(load, args.beta, trace.requests, uncached) for load in args.load}
    runs = list(itertools.product(lines, cells))
    work = (joblib.delayed(_served)(cell, options, lines[load]) for load, cell in runs)
    found = joblib.Parallel(n_jobs=args.jobs, return_as="generator")(work)
    progress = track(found, "runs", total=len(runs), console=Console(stderr=True), transient=True)
    done = dict(zip(runs, progress, strict=True))
    sizes = f"{args.capacity:,} tokens, ξ = {args.threshold:,}, page {args.page_size}"
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{trace.name}; {sizes}", title_justify="left", pad_edge=False, padding=(0, 1)
    )
    for column in ("load", "policy", "w", "busy", "uncached", "TEL", "TTFT p50", "p95", "p99"):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for load in lines:
        before = figures(done[load, cells[0]], args.threshold)
        for cell in cells:
            after = figures(done[load, cell], args.threshold)
            first = cell is cells[0]
            table.add_row(
                f"{load:g}" if first else "",
                cell.policy,
                weight_text(cell.median_weight) if cell.policy in OURS else "–",
                f"{done[load, cell].busy:.0%}",
                *(_shown(a, b, first, unit) for a, b, unit in zip(after, before, ("", "", "s", "s", "s"), strict=True)),
                end_section=cell is cells[-1],
            )
    return table


def figures(served: Queued, threshold: int) -> tuple[float, ...]:
    """Mean uncached tokens, TEL (tokens), and TTFT (s): p50, p95, p99."""
    tel = float(np.maximum(served.uncached - threshold, 0).sum())
    return (float(served.uncached.mean()), tel, *np.percentile(served.ttft_s, [50, 95, 99]).tolist())


def _shown(value: float, before: float, first: bool, unit: str) -> str:
    if first or not before:
        return f"{value:.2f} s" if unit else f"{value:,.0f}"
    return f"{value / before - 1:+.0%}"


def _cells(trace: str, args: argparse.Namespace) -> list[Cell]:
    """Stock lru, and what is held against it."""
    cells = []
    for policy, weight in itertools.product(dict.fromkeys((BASELINE, *args.policy)), args.median_weight):
        Config(threshold=args.threshold, next_prompt_estimate=args.next_prompt_estimate, median_weight=weight)
        settings = own_settings(policy, args.next_prompt_estimate, weight if policy in OURS else None)
        cells.append(Cell(trace, policy, args.capacity, args.threshold, *settings, args.page_size))
    return list(dict.fromkeys(cells))


def _served(cell: Cell, options: TraceOptions, line: Line) -> Queued:
    cache = cache_for(cell, knowledge_of(options))
    assert isinstance(cache, Waits), f"{cell.policy} hears of no request that waits"
    return serve(cache, trace_of(options).requests, line)
