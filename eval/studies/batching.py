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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eval.caches.simulator import Hold
from eval.simulate.timing import Timing
from eval.studies.queue_model import QueueAware, refresh
from eval.traces.request import Request


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

    line: Timing  # of a step that prefills
    itl_ms: float  # of a step that decodes, for the first request
    slope_ms: float = 0.0  # for every other
    chunk: int = 2048  # tokens prefilled in a step
    most_running: int = 256

    def seconds(self, prefilled: int | None, running: int) -> float:
        """Of one step, which decodes if ``prefilled`` is None."""
        if prefilled is not None:
            return self.line.ms(prefilled) / 1000.0
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
class _Prefilling:
    """A request whose prompt is being prefilled."""

    number: int
    left: int  # tokens to prefill
    held: Hold


def serve_batches(cache: HoldingCache, requests: Sequence[Request], engine: Engine) -> Batched:
    """Serve a trace, step by step; steps that are alike are taken at once."""
    server = _Server(cache, requests, engine)
    while server.has_work:
        server.take_in()
        prefilled, done = server.prefill()
        server.pass_time(prefilled)
        server.begin_answers(done)
        server.end_answers()
    span_s = server.now - requests[0].arrival_s
    answers = sum(request.output_tokens for request in requests)
    return Batched(server.uncached, server.ttft_s, server.itl_s, server.busy_s / span_s, answers / span_s)


class _Server:
    """The state between two steps. A request is known by its number in the trace."""

    def __init__(self, cache: HoldingCache, requests: Sequence[Request], engine: Engine) -> None:
        self._cache, self._requests, self._engine = cache, requests, engine
        self._coming, self._queue = deque(range(len(requests))), deque[int]()
        self._prefilling: _Prefilling | None = None  # the request whose prompt goes on in the next step
        self._running: list[_Running] = []  # a heap
        self._prefills = 0  # prompts begun
        self._step = 0  # steps that decoded
        self.now = requests[0].arrival_s
        self.busy_s = 0.0
        self.uncached = np.zeros(len(requests), dtype=np.int64)
        self.ttft_s, self.itl_s = np.zeros(len(requests)), np.full(len(requests), np.nan)

    @property
    def has_work(self) -> bool:
        return bool(self._coming) or self._is_occupied

    @property
    def _is_occupied(self) -> bool:
        return bool(self._queue or self._prefilling or self._running)

    def take_in(self) -> None:
        """Queue who has arrived; with nothing else to do, wait for the next one."""
        if not self._is_occupied:
            self.now = max(self.now, self._requests[self._coming[0]].arrival_s)
        while self._coming and self._requests[self._coming[0]].arrival_s <= self.now:
            self._queue.append(self._coming.popleft())

    def prefill(self) -> tuple[int | None, list[_Prefilling]]:
        """Prefill a chunk. Returns its tokens, None if nobody could be prefilled, and the prompts that end with it."""
        budget, started = self._engine.chunk, False
        done: list[_Prefilling] = []
        while budget and (self._prefilling or self._may_begin(len(done))):
            prompt = self._prefilling or self._begin()
            started = True
            taken = min(budget, prompt.left)
            budget -= taken
            prompt.left -= taken
            self._prefilling = prompt if prompt.left else None
            if not prompt.left:
                done.append(prompt)
        return self._engine.chunk - budget if started else None, done

    def _may_begin(self, done: int) -> bool:
        """Whether the head of the queue may be prefilled now. Where nothing else runs it always may."""
        if not self._queue:
            return False
        running = len(self._running) + done
        return not running or (running < self._engine.most_running and self._cache.fits(self._requests[self._queue[0]]))

    def _begin(self) -> _Prefilling:
        """Take the head of the queue and look up what is cached of it."""
        refresh(self._cache, self._prefills, (self._requests[number] for number in self._queue))
        self._prefills += 1
        number = self._queue.popleft()
        request = self._requests[number]
        self.uncached[number] = request.prompt_tokens - self._cache.request(request)
        return _Prefilling(number, int(self.uncached[number]), self._cache.hold(request))

    def pass_time(self, prefilled: int | None) -> None:
        """A step that prefills, or steps that decode until something changes."""
        count = 1 if prefilled is not None else self._steps()
        taken_s = count * self._engine.seconds(prefilled, len(self._running))
        self.now += taken_s
        self.busy_s += taken_s
        self._step += count if prefilled is None else 0

    def _steps(self) -> int:
        """Steps that only decode until an answer ends or, if nobody waits, the next request arrives."""
        until_end = self._running[0].last_step - self._step
        if self._queue or not self._coming:
            return until_end
        each_s = self._engine.seconds(None, len(self._running))
        wait_s = self._requests[self._coming[0]].arrival_s - self.now
        until_arrival = int(np.ceil(wait_s / each_s)) if each_s else until_end
        return min(until_end, max(until_arrival, 1))

    def begin_answers(self, done: Sequence[_Prefilling]) -> None:
        """Prompts that are prefilled have their first token."""
        for prompt in done:
            request = self._requests[prompt.number]
            self.ttft_s[prompt.number] = self.now - request.arrival_s
            last = self._step + max(request.output_tokens, 1) - 1
            heapq.heappush(self._running, _Running(last, prompt.number, self.now, prompt.held))

    def end_answers(self) -> None:
        """Answers that have their last token release what they hold."""
        while self._running and self._running[0].last_step <= self._step:
            ended = heapq.heappop(self._running)
            self._cache.release(ended.held)
            more = self._requests[ended.number].output_tokens - 1
            if more > 0:
                self.itl_s[ended.number] = (self.now - ended.first_token_s) / more
