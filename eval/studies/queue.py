"""`python -m eval queue`: the time to first token where requests wait for each other, policy by policy.

``simulate`` counts uncached tokens, as if each request had the server to itself. Under load a prefill also delays all
requests behind it. Here a server prefills one request after the other, first come, first served, in
``β + α · uncached`` ms each, and

    TTFT = time in the queue + β + α · uncached.

α is chosen so that stock lru is busy for a given share of the time (``--load``); all policies are on the same server.
Arrivals are those of the trace: a user who waits longer does not come back later. Decoding and batching are left out;
``python -m eval replay --users N`` has both, on a real server.

At every 32nd prefill, what is cached of the prompts in the queue counts as used, under stock lru and radix-tlru, not
under stock tlru. A scheduler does the same (SGLang 0.5.23, ``schedule_policy.py``, ``_touch_waiting_prefixes``).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from eval.arguments import (
    Several,
    add_page_size,
    add_policies,
    check_page_sizes,
    median_weight,
    number,
    tokens,
    weight_text,
    whole,
)
from eval.caches.simulator import Cache
from eval.parallel import in_parallel
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for, knowledge_of, trace_of
from eval.simulate.grid import LEARNING, settings_in_force
from eval.terminal import show, table
from eval.trace_arguments import TraceSource, add_trace_arguments, trace_source
from eval.traces.request import Request, TraceError
from radix_tlru import Config
from radix_tlru.config import DEFAULT_NEXT_PROMPT
from radix_tlru.objective.load_weight import PrefillLoad

__all__ = [
    "MOST_REFRESHED",
    "REFRESH",
    "Line",
    "QueueAware",
    "Queued",
    "add_arguments",
    "compare",
    "line_for",
    "run",
    "serve",
]

BASELINE = "sglang-lru"
POLICIES = (BASELINE, "sglang-tlru", "tlru", "etlru", "lru", "tail-belady")

REFRESH, MOST_REFRESHED = 32, 128
"""Prefills between two refreshes of queued prompts, and requests at the head of the queue that one covers (SGLang)."""


class Line(NamedTuple):
    """The time of a prefill: β + α · uncached."""

    alpha_ms: float  # a token
    beta_ms: float

    def seconds(self, uncached: int) -> float:
        """For ``uncached`` tokens."""
        return (self.beta_ms + self.alpha_ms * uncached) / 1000.0


@runtime_checkable
class QueueAware(Cache, Protocol):
    """A cache that is told of the queue."""

    def touch(self, request: Request) -> None:
        """Mark what is cached of a queued request's prompt as used."""

    def count_prefill(self, load: PrefillLoad) -> None:
        """A prefill starts."""


class Queued(NamedTuple):
    """A trace that was served; one value a request, in its order."""

    uncached: NDArray[np.int64]  # tokens
    ttft_s: NDArray[np.float64]
    busy: float  # share of the time from the first arrival to the last that prefills take


def serve(cache: QueueAware, requests: Sequence[Request], line: Line) -> Queued:
    """Serve a trace first come, first served, one request at a time."""
    queue: deque[Request] = deque()
    coming = deque(requests)
    now, prefills = 0.0, 0
    uncached: list[int] = []
    ttft: list[float] = []
    while queue or coming:
        is_idle = not queue and coming[0].arrival_s > now
        if is_idle:
            now = coming[0].arrival_s
        left, before = len(queue), uncached[-1] if uncached else 0
        while coming and coming[0].arrival_s <= now:
            queue.append(coming.popleft())
        # Those that arrived during the prefill before have waited for half of it on average.
        waited = 0.0 if is_idle else (len(queue) - left) * before / 2
        if prefills % REFRESH == 0:
            for request in reversed(list(itertools.islice(queue, MOST_REFRESHED))):  # the head of the queue last
                cache.touch(request)
        prefills += 1
        request = queue.popleft()
        uncached.append(request.prompt_tokens - cache.request(request))
        cache.count_prefill(PrefillLoad(uncached[-1], len(queue), waited))
        now += line.seconds(uncached[-1])
        ttft.append(now - request.arrival_s)
    work = sum(map(line.seconds, uncached))
    return Queued(np.array(uncached), np.array(ttft), work / (span_s(requests) or math.inf))


def span_s(requests: Sequence[Request]) -> float:
    """Seconds from the first arrival to the last."""
    return requests[-1].arrival_s - requests[0].arrival_s


def line_for(load: float, beta_ms: float, requests: Sequence[Request], uncached: int) -> Line:
    """The server that ``uncached`` tokens in all keep busy for a share ``load`` of the time.

    Raises:
        ValueError: β alone takes more time.
    """
    left_ms = 1000.0 * load * span_s(requests) - beta_ms * len(requests)
    if left_ms <= 0:
        raise ValueError(f"--beta {beta_ms:g}: {len(requests):,} requests are more than --load {load:g} by that alone")
    return Line(left_ms / max(uncached, 1), beta_ms)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; policies, weights and loads span a grid."""
    add_trace_arguments(parser)
    add_policies(parser, POLICIES, POLICIES[:4])
    add = parser.add_argument
    add("--capacity", type=tokens, required=True, metavar="TOKENS", help="e.g. 2M")
    add("--threshold", type=tokens, required=True, metavar="TOKENS", help="ξ")
    add(
        "--next-prompt-estimate",
        type=tokens,
        metavar="TOKENS",
        help=f"Q̂ (default: learned by tlru and etlru, else {DEFAULT_NEXT_PROMPT})",
    )
    add(
        "--median-weight",
        action=Several,
        type=median_weight,
        default=[None],
        metavar="W",
        help="w of tlru and etlru (default: that of a server)",
    )
    add_page_size(parser)
    add(
        "--load",
        action=Several,
        type=number(above=0, below=1),
        default=[0.5, 0.8, 0.95],
        metavar="SHARE",
        help="of the time that stock lru is busy (default: 0.5 0.8 0.95)",
    )
    add("--beta", type=number(least=0), default=20.0, metavar="MS", help="of any prefill (default: %(default)s)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs side by side (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        ValueError, OSError: something asked for cannot be done.
    """
    check_page_sizes([args.page_size], [args.capacity])
    show(compare(args))
    return 0


def compare(args: argparse.Namespace) -> Table:
    """A row for each load and policy, against stock lru at the same load."""
    source = trace_source(args)
    trace = trace_of(source)
    if len(trace.requests) < 2 or span_s(trace.requests) <= 0:
        raise TraceError(f"--trace {trace.name}: has no arrival times to wait by")
    cells = _cells(trace.name, args)
    alone = cache_for(cells[0], knowledge_of(source))
    uncached = sum(request.prompt_tokens - alone.request(request) for request in trace.requests)
    lines = {load: line_for(load, args.beta, trace.requests, uncached) for load in args.load}
    runs = list(itertools.product(lines, cells))
    calls = [(cell, source, lines[load]) for load, cell in runs]
    done = dict(zip(runs, in_parallel(_served, calls, jobs=args.jobs, title="runs"), strict=True))
    result = table(
        f"{trace.name}; {args.capacity:,} tokens, ξ = {args.threshold:,}, page {args.page_size}",
        ("load", "policy", "w", "busy", "uncached", "TEL", "TTFT p50", "p95", "p99"),
        texts=2,
    )
    for load in lines:
        before = _figures(done[load, cells[0]], args.threshold)
        for cell in cells:
            after = _figures(done[load, cell], args.threshold)
            is_first = cell is cells[0]
            units = ("", "", "s", "s", "s")
            result.add_row(
                f"{load:g}" if is_first else "",
                cell.policy,
                weight_text(cell.median_weight) if cell.policy in LEARNING else "–",
                f"{done[load, cell].busy:.0%}",
                *(_shown(a, b, is_first, unit) for a, b, unit in zip(after, before, units, strict=True)),
                end_section=cell is cells[-1],
            )
    return result


def _figures(served: Queued, threshold: int) -> tuple[float, ...]:
    """Mean uncached tokens, TEL (tokens), and TTFT (s): p50, p95, p99."""
    tel = float(np.maximum(served.uncached - threshold, 0).sum())
    return (float(served.uncached.mean()), tel, *np.percentile(served.ttft_s, [50, 95, 99]).tolist())


def _shown(value: float, before: float, is_baseline: bool, unit: str) -> str:
    if is_baseline or not before:
        return f"{value:.2f} s" if unit else f"{value:,.0f}"
    return f"{value / before - 1:+.0%}"


def _cells(trace: str, args: argparse.Namespace) -> list[Cell]:
    """Stock lru, then the policies that are compared with it."""
    cells = []
    for policy, weight in itertools.product(dict.fromkeys((BASELINE, *args.policy)), args.median_weight):
        Config(threshold=args.threshold, next_prompt_estimate=args.next_prompt_estimate, median_weight=weight)
        settings = settings_in_force(policy, args.next_prompt_estimate, weight if policy in LEARNING else None)
        cells.append(Cell(trace, policy, args.capacity, args.threshold, *settings, args.page_size))
    return list(dict.fromkeys(cells))


def _served(cell: Cell, source: TraceSource, line: Line) -> Queued:
    cache = cache_for(cell, knowledge_of(source))
    assert isinstance(cache, QueueAware), f"{cell.policy} cannot be told of the queue"
    return serve(cache, trace_of(source).requests, line)
