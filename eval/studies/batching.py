"""Serving with continuous batching: requests that decode hold KV, and wait for those that prefill.

The engine works in steps, as SGLang's does without ``--enable-mixed-chunk``. A step that prefills takes up to ``chunk``
tokens of requests that wait, first come, first served, in β + α · tokens. If nobody can be prefilled, a step decodes
one token of every request that runs, in ITL + slope · (running − 1).

A prompt that is longer than what is left of a chunk goes on in the next step. With its last chunk comes the first token
of its answer, so an answer alone takes (output − 1) · ITL from there.

From its first chunk to its last token a request holds its whole context, answer included. What is held cannot be
evicted: the cache has the rest of the pool. A request that does not fit beside what is held waits, and so do all
behind it. SGLang reserves a part of an answer only and takes back requests when that was too little; that is left out.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eval.caches.simulator import Hold
from eval.studies.queue_model import MOST_REFRESHED, REFRESH, Line, QueueAware
from eval.traces.request import Request

__all__ = ["Batched", "Engine", "HoldingCache", "serve_batches"]


@runtime_checkable
class HoldingCache(QueueAware, Protocol):
    """A cache of which running requests hold a part."""

    def fits(self, request: Request) -> bool:
        """Whether a context fits beside what is held."""

    def hold(self, request: Request) -> Hold:
        """Keep the context of a request that was just served until it is released."""

    def release(self, held: Hold) -> None:
        """Give it back."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How long steps take, and what fits into one."""

    line: Line
    itl_ms: float  # of a step that decodes, for the first request
    slope_ms: float = 0.0  # for every other
    chunk: int = 2048  # tokens prefilled in a step
    most_running: int = 256

    def seconds(self, prefilled: int | None, running: int) -> float:
        """Of one step, which decodes if ``prefilled`` is None."""
        if prefilled is not None:
            return self.line.seconds(prefilled)
        return (self.itl_ms + self.slope_ms * (running - 1)) / 1000.0 if running else 0.0


class Batched(NamedTuple):
    """A trace that was served; one value a request, in its order."""

    uncached: NDArray[np.int64]  # tokens
    ttft_s: NDArray[np.float64]
    itl_s: NDArray[np.float64]  # mean over the tokens of an answer; nan for answers of one token
    busy: float  # share of the time from the first arrival to the last answer in which steps run
    tokens_per_s: float  # of answers, over the same time


class _Running(NamedTuple):
    """A request that decodes. Ordered by the step that gives its last token."""

    last_step: int
    number: int
    first_token_s: float
    held: Hold


@dataclass(slots=True)
class _State:
    now: float = 0.0
    step: int = 0  # steps that decoded
    busy_s: float = 0.0
    running: list[_Running] = field(default_factory=list)  # a heap

    def pass_steps(self, count: int, each_s: float) -> None:
        self.now += count * each_s
        self.busy_s += count * each_s


class _Prefill:
    """A request whose prompt is being prefilled."""

    def __init__(self, number: int, uncached: int, held: Hold) -> None:
        self.number, self.left, self.held = number, uncached, held


def serve_batches(cache: HoldingCache, requests: Sequence[Request], engine: Engine) -> Batched:
    """Serve a trace, step by step; steps that are alike are taken at once."""
    coming, queue = deque(range(len(requests))), deque[int]()
    uncached = np.zeros(len(requests), dtype=np.int64)
    ttft, itl = np.zeros(len(requests)), np.full(len(requests), np.nan)
    state = _State(now=requests[0].arrival_s)
    prefill: _Prefill | None = None
    prefills = 0
    while coming or queue or prefill or state.running:
        if not (queue or prefill or state.running):
            state.now = max(state.now, requests[coming[0]].arrival_s)
        while coming and requests[coming[0]].arrival_s <= state.now:
            queue.append(coming.popleft())
        budget, started = engine.chunk, False
        done: list[_Prefill] = []
        while budget and (prefill or _may_start(cache, requests, queue, state, engine, len(done))):
            if prefill is None:
                if prefills % REFRESH == 0:
                    for number in reversed(list(itertools.islice(queue, MOST_REFRESHED))):  # the head of the queue last
                        cache.touch(requests[number])
                prefills += 1
                number = queue.popleft()
                uncached[number] = requests[number].prompt_tokens - cache.request(requests[number])
                prefill = _Prefill(number, int(uncached[number]), cache.hold(requests[number]))
            started = True
            taken = min(budget, prefill.left)
            budget -= taken
            prefill.left -= taken
            if not prefill.left:
                done.append(prefill)
                prefill = None
        tokens = engine.chunk - budget
        count = 1 if started else _steps(state, coming, requests, engine, bool(queue))
        state.pass_steps(count, engine.seconds(tokens if started else None, len(state.running)))
        state.step += 0 if started else count
        for one in done:
            ttft[one.number] = state.now - requests[one.number].arrival_s
            last = state.step + max(requests[one.number].output_tokens, 1) - 1
            heapq.heappush(state.running, _Running(last, one.number, state.now, one.held))
        while state.running and state.running[0].last_step <= state.step:
            ended = heapq.heappop(state.running)
            cache.release(ended.held)
            more = requests[ended.number].output_tokens - 1
            if more > 0:
                itl[ended.number] = (state.now - ended.first_token_s) / more
    span_s = state.now - requests[0].arrival_s
    answers = sum(request.output_tokens for request in requests)
    return Batched(uncached, ttft, itl, state.busy_s / span_s, answers / span_s)


def _may_start(
    cache: HoldingCache,
    requests: Sequence[Request],
    queue: Sequence[int],
    state: _State,
    engine: Engine,
    done: int,
) -> bool:
    """Whether the head of the queue may be prefilled now. Where nothing else runs it always may."""
    if not queue:
        return False
    running = len(state.running) + done
    return not running or (running < engine.most_running and cache.fits(requests[queue[0]]))


def _steps(
    state: _State, coming: Sequence[int], requests: Sequence[Request], engine: Engine, someone_waits: bool
) -> int:
    """Steps that only decode until an answer ends or, if nobody waits, the next request arrives."""
    until_end = state.running[0].last_step - state.step
    if someone_waits or not coming:
        return until_end
    each_s = engine.seconds(None, len(state.running))
    until_arrival = int(np.ceil((requests[coming[0]].arrival_s - state.now) / each_s)) if each_s else until_end
    return min(until_end, max(until_arrival, 1))
