"""The longest calls in the scheduler's thread, beside stock: what one step of a server can be held up by.

Each cache is full of leaves, of which up to 10,000 are conversations that were served. Then it serves a generated trace
of chats, and all that moves on a server moves. Prefills get slower and faster, so ξ moves. Rates and lengths are
learned, and w is that of the candidate in force. Caches are served one after the other: garbage collection is left on,
and has to look at one cache alone. After each request the server is idle until nothing waits.
Last come bursts: 32 requests finish in one step of a scheduler that is never idle, then 1,000; and then contexts of
100,000 tokens, each of which needs the room of hundreds. Metrics are those of a server, in files that its processes
share. Times are CPU time of the thread.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.table import Table

from eval.caches.pages import token_ids
from eval.terminal import show, table, track
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.objective.calibration import PrefillBatch

if TYPE_CHECKING:
    from radix_tlru.sglang.offline import OfflineCache

STOCK = "stock lru"
CANDIDATES = {"tlru": Config("tlru"), "etlru": Config("etlru")}
"""As a server starts them without further flags, by the name of a row."""

TRACE = (
    "chat-mix:conversations=3000,arrival_span_s=600,first_prompt_median=100,first_prompt_range=20/400,"
    "next_prompt_range=20/100,answer_range=20/100"
)
"""10,045 requests."""

PAGE_SIZE, LEAF_TOKENS = 16, 256
LEAST_LEAVES, MOST_LEAVES = 10, 200_000
"""With fewer there is no room for the longest context of the trace."""

SERVED_BEFORE = 10_000
"""Conversations of one turn before the trace, at most; the other leaves are of no turn that anybody saw."""

BETA_MS, ALPHA_MS = 20.0, 0.3
"""Of a simulated prefill. With these, and the default objective, ξ is within the lengths of the trace."""

WAVE_TURNS, WAVE = 1_000, 0.3
"""Prefills get slower and faster by this share, once in so many."""


class Burst(NamedTuple):
    """Requests that finish in one step, after the trace."""

    requests: int
    times: int
    steps: int  # until the next burst


BURSTS = (Burst(32, 30, 100), Burst(1_000, 2, 600))

LONG, LONG_TOKENS = 10, 100_000
"""Contexts that come last, and their tokens."""

CALLS = {
    "match": "match: a request is looked up",
    "insert": "insert: a context is cached",
    "evict": "evict: room for an allocation",
    "turn": "turn: a finished request is recorded",
    "learn": "learn: a slice, of an idle server",
    "turns 32": "turns: some are recorded, where 32 finish in one step",
    "burst 32": "burst: a slice, where 32 finish in one step",
    "turns 1000": "turns: the same, where 1,000 do",
    "burst 1000": "burst: the same, where 1,000 do",
    "room": "room: for a context of 100,000 tokens, at once",
    "long": "long: a slice, after such a context",
    "report": "report: metrics are brought up to date",
    "prefill": "prefill: it is timed, and ξ follows",
    "move": "move of ξ, within the call before",
}
"""What is timed, by the title of its rows."""


def run(args: argparse.Namespace) -> None:
    """Print a table for each number of leaves from 10 to 200,000, and a line for each other."""
    from sglang.srt.utils import set_prometheus_multiproc_dir

    set_prometheus_multiproc_dir()  # before metrics are imported, as a server does
    for leaves in args.leaves:
        if LEAST_LEAVES <= leaves <= MOST_LEAVES:
            show(longest(leaves, TRACE))
        else:
            show(f"--leaves {leaves}: the longest calls are timed with {LEAST_LEAVES} to {MOST_LEAVES} leaves.\n")


def longest(leaves: int, source: str) -> Table:
    """Times of the calls of each cache while it serves a trace, from ``leaves`` leaves on."""
    requests = open_trace(source).requests
    clocks: dict[str, Clock] = {}
    for name in (STOCK, *CANDIDATES):
        cache, clocks[name] = cache_of(name, leaves), Clock()
        serve(cache, clocks[name], requests, leaves, name)
        del cache
        gc.collect()
    title = f"Longest calls in the scheduler's thread: {len(requests):,} requests, from {leaves:,} leaves on"
    result = table(title, ("call", "cache", "calls", "p50 (ms)", "p99.9 (ms)", "worst (ms)"), texts=2)
    for call, said in CALLS.items():
        timed = {name: clock.ms[call] for name, clock in clocks.items() if clock.ms[call]}
        for name, ms in timed.items():
            figures = (f"{figure:,.3f}" for figure in (*np.percentile(ms, (50, 99.9)), max(ms)))
            result.add_row(said, name, f"{len(ms):,}", *figures, end_section=name == list(timed)[-1])
            said = ""
    return result


def cache_of(name: str, leaves: int) -> OfflineCache:
    """An empty cache with room for so many leaves."""
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    capacity = leaves * LEAF_TOKENS
    if name == STOCK:
        return OfflineCache(stock_cache(capacity, PAGE_SIZE, core="rust"))
    return OfflineCache(build_cache(cache_params(capacity, PAGE_SIZE, "rust"), CANDIDATES[name]))


def serve(cache: OfflineCache, clock: Clock, requests: list[Request], leaves: int, name: str) -> None:
    """Fill a cache, then serve the requests and time the calls."""
    told = name != STOCK
    first = requests[0].arrival_s
    before = min(leaves, SERVED_BEFORE)
    for number in track(range(leaves), f"{name}: {leaves:,} leaves"):
        stamp = first - (leaves - number) / before if told and number >= leaves - before else None
        cache.request(leaf_of(number), LEAF_TOKENS // 2, stamp)
    clock.time(cache)
    page, units = PAGE_SIZE, dict[int, int]()
    for number, request in enumerate(track(requests, name)):
        tokens = token_ids(request.context, page, units)
        stamp = request.arrival_s if told else None
        cached = _served(cache, tokens, request.prompt_tokens, request.output_tokens, stamp)
        if told:
            clock.prefill(cache, number, request.prompt_tokens - min(cached, request.prompt_tokens))
    serve_bursts(cache, clock, requests[-1].arrival_s)
    serve_long(cache, clock, 2.0 * requests[-1].arrival_s - first, min(LONG_TOKENS, leaves * LEAF_TOKENS // 2))


def serve_bursts(cache: OfflineCache, clock: Clock, now: float) -> None:
    """Serve requests many of which finish in one step of the scheduler, and time what is learned at its end."""
    tail: Any = getattr(cache.cache, "tail", None)
    units = dict[int, int]()
    requests = iter(open_trace(f"{TRACE},seed=1").requests)
    for burst in BURSTS:
        if tail is not None:
            del tail.record_served, tail.learn  # are the class's again, and not timed
            tail.record_served = clock.timed(f"turns {burst.requests}", tail.record_served)
            tail.learn = clock.timed(f"burst {burst.requests}", tail.learn)
        for _ in range(burst.times):
            with tail.step() if tail is not None else nullcontext():
                for request in islice(requests, burst.requests):
                    stamp = None if tail is None else now + request.arrival_s
                    tokens = token_ids(request.context, PAGE_SIZE, units)
                    cache.request(tokens, request.prompt_tokens, stamp, request.output_tokens)
            for _ in range(burst.steps - 1 if tail is not None else 0):
                with tail.step():
                    pass


def serve_long(cache: OfflineCache, clock: Clock, now: float, length: int) -> None:
    """Serve contexts of ``length`` tokens, each of which needs the room of many, and time how that is learned from."""
    real: Any = cache.cache
    del real.evict_for_alloc
    real.evict_for_alloc = clock.timed("room", real.evict_for_alloc)
    tail = getattr(real, "tail", None)
    if tail is not None:
        del tail.record_served, tail.learn
        tail.learn = clock.timed("long", tail.learn)
    for number in range(LONG):
        first, stamp = (1 << 41) + number * length, None if tail is None else now + number
        _served(cache, range(first, first + length), length - PAGE_SIZE, PAGE_SIZE, stamp)


def _served(cache: OfflineCache, tokens: Sequence[int], prompt: int, answer: int, stamp: float | None) -> int:
    """Serve a request as a server does. Returns its tokens that were cached."""
    tail: Any = getattr(cache.cache, "tail", None)
    if tail is None:
        return cache.request(tokens, prompt, stamp, answer)
    with tail.step():
        cached = cache.request(tokens, prompt, stamp, answer)
    server: Any = cache.cache
    while server.has_work:
        server.use_idle_time()
    return cached


def leaf_of(number: int) -> Iterator[int]:
    """Tokens that nothing in the trace has."""
    first = (1 << 40) + number * LEAF_TOKENS
    return iter(range(first, first + LEAF_TOKENS))


def metrics_of(cache: Any) -> Any:
    """The metrics of a cache of ours, in a registry of their own."""
    from prometheus_client import CollectorRegistry, Counter, Gauge

    from radix_tlru.sglang.metrics import TailMetrics

    registry = CollectorRegistry()

    class Metrics(TailMetrics):
        _counter_cls = partial(Counter, registry=registry)
        _gauge_cls = partial(Gauge, registry=registry)

    return Metrics({"cache_type": "TailRadixCache", "tp_rank": "0"}, cache.tail, cache.live_threshold)


class Clock:
    """Times the calls of a cache, in ms."""

    def __init__(self) -> None:
        self.ms: defaultdict[str, list[float]] = defaultdict(list)

    def time(self, cache: OfflineCache) -> None:
        """Time the calls of a cache from now on."""
        real: Any = cache.cache
        for call, method in (("match", "match_prefix"), ("insert", "insert"), ("evict", "evict_for_alloc")):
            setattr(real, method, self.timed(call, getattr(real, method)))
        tail = getattr(real, "tail", None)
        if tail is not None:
            tail.record_served = self.timed("turn", tail.record_served)
            tail.learn = self.timed("learn", tail.learn)
            tail.use_threshold = self.timed("move", tail.use_threshold)
            real.tail_metrics = metrics_of(real)
            real.tail_metrics.report = self.timed("report", real.tail_metrics.report)

    def prefill(self, cache: OfflineCache, number: int, tokens: int) -> None:
        """The prefill of a request, of so many tokens."""
        wave = 1.0 + WAVE * math.sin(2.0 * math.pi * number / WAVE_TURNS)
        batch = PrefillBatch((str(number),), None, tokens)
        self.timed("prefill", cache.cache.live_threshold.count_batch)(batch, (BETA_MS + ALPHA_MS * tokens) * wave)

    def timed(self, call: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, whose CPU time is noted."""
        spent = self.ms[call]

        def timed(*arguments: Any, **named: Any) -> Any:
            before = time.thread_time_ns()
            answer = method(*arguments, **named)
            spent.append((time.thread_time_ns() - before) / 1e6)
            return answer

        return timed
