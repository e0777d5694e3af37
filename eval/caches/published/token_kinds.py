"""SAECache: pages in queues by the kind of request, worth what pages of their kind of token have proved to be worth."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from eval.caches.blocks import Block, GroupedCache
from eval.caches.published.turns import Turn, Turns
from eval.traces.request import Request

Kind = Literal["system", "user", "tool", "answer", "thought"]
Queue = Literal["chat", "agentic", "structural", "evict-first"]

LEARNED_EVERY = 256
"""Evictions between two looks at what was learned (the paper's K; its value is assumed)."""

RATE, DECAY = 0.1, 0.99
"""Weight of the newest look (assumed), and what is left of older counts at each look (the paper's)."""

LOG_WAIT, LOG_SPREAD = 2.28, 1.34
"""Log seconds between two uses, and their deviation, before any was seen: the paper's fit of agents."""

WAIT_RATE = 0.05
"""Weight of the newest wait (assumed)."""

BANDS = 8
"""Stretches of equal depth of a context, within which structural pages count as equally deep."""

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.1, 3600.0
"""Waits that are learned from, s: less is no wait, more is another task (assumed)."""

SHORTEST_S = 0.001
"""Time since the last use at least, s, as it is divided by."""


@dataclass(slots=True)
class _Counts:
    """What became of pages; older counts weigh less."""

    found: float = 0.0
    missed: float = 0.0  # looked up and not cached
    evicted: float = 0.0
    regretted: float = 0.0  # looked up after they were evicted
    weight: float = 1.0

    def learn(self) -> None:
        """Move the weight towards 1 + 5 · misses after eviction + 2 · hits, both as shares; the paper's target."""
        regret = self.regretted / self.evicted if self.evicted else 0.0
        reuse = self.found / (self.found + self.missed) if self.found + self.missed else 0.0
        self.weight += RATE * (1.0 + 5.0 * min(regret, 1.0) + 2.0 * reuse - self.weight)
        self.found, self.missed = DECAY * self.found, DECAY * self.missed
        self.evicted, self.regretted = DECAY * self.evicted, DECAY * self.regretted


@dataclass(slots=True)
class _Timing:
    """The time between two uses: log-normal."""

    mean: float = LOG_WAIT
    variance: float = LOG_SPREAD**2

    def learn(self, wait_s: float) -> None:
        """One more wait."""
        error = math.log(wait_s) - self.mean
        self.mean += WAIT_RATE * error
        self.variance += WAIT_RATE * (error * error - self.variance)

    def survival(self, age_s: float) -> float:
        """The probability that a wait is longer than ``age_s``."""
        return 0.5 * math.erfc((math.log(age_s) - self.mean) / math.sqrt(2 * self.variance))


@dataclass(eq=False, slots=True)
class _Block(Block):
    kind: Kind = "user"
    is_back: bool = False  # it was evicted before, and its kind is known
    queue: Queue = "evict-first"
    band: int = 0  # of its depth in the context that used it last
    last_s: float = 0.0


class TokenKindCache(GroupedCache[_Block]):
    """The rule of SAECache: the page goes for which α_q · w_kind · p_q / age is the least.

    Queues: turns of chats, turns of agents, single requests that begin as others did, and what goes before all of them:
    answers, and the new part of single requests. p is 1 − F(age), F log-normal, for turns; 1 − offset for single
    requests. The weights of the kinds of token and the waits are learned.

    Source: Fang et al., "Not All Tokens Are Worth Caching" (arXiv 2605.18825): the four queues, the score, the target
    of the weights. Assumed: a trace has no texts to classify, so the rest of a first turn's prompt behind what it
    found is one user's, what it found is a system prompt, and the new part of a later turn is the last answer and then
    its input (user, tool); a request that is no first turn or calls a tool goes on, where the paper has a model that
    reads the prompt; α of a queue is learned as the weight of a kind is; the exponent of the offset is 1.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._turns = Turns()
        self._kinds: dict[str, _Counts] = {}
        self._queues: dict[str, _Counts] = {}
        self._timings: dict[str, _Timing] = {"chat": _Timing(), "agentic": _Timing()}
        self._ghosts: OrderedDict[int, tuple[Kind, Queue]] = OrderedDict()  # pages evicted, the oldest first
        self._ghost: tuple[Kind, Queue] | None = None  # of the page that is missed
        self._evictions = 0  # since the last look at what was learned
        self._now_s = 0.0
        self._releases = count(1)

    @property
    def weights(self) -> dict[str, float]:
        """What a page of each kind of token is worth, as learned so far; 1 before."""
        return {kind: counts.weight for kind, counts in self._kinds.items()}

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        super()._begin(request, path, names)
        self._now_s = request.arrival_s
        for block in path:
            for counts in self._counts(block.kind, block.queue):
                counts.found += 1

    def _miss(self, name: int) -> None:
        self._ghost = self._ghosts.pop(name, None)
        if self._ghost is not None:
            for counts in self._counts(*self._ghost):
                counts.regretted += 1

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        block = _Block(name, parent, depth)
        if self._ghost is not None:
            block.kind, block.is_back = self._ghost[0], True
        return block

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        prompt = len(request.prompt) // self.page_size
        names = [block.name for block in path]
        turn = self._turns.serve(request, names, prompt)
        queue = self._queue(request, turn)
        if turn.wait_s is not None and SHORTEST_WAIT_S <= turn.wait_s <= LONGEST_WAIT_S:
            self._timings[queue].learn(turn.wait_s)
        self._set_kinds(request, turn, path, hits)
        for block in reversed(path):
            block.last_s, block.place = self._now_s, (0, next(self._releases))
            block.band = block.depth * BANDS // len(path)
            is_answer = block.depth >= prompt
            is_new_of_one = queue == "structural" and block.depth >= hits
            block.queue = "evict-first" if is_answer or is_new_of_one else queue
        for block in path[hits:prompt]:  # an answer was not looked up
            for counts in self._counts(block.kind, block.queue):
                counts.missed += 1
        if self._evictions >= LEARNED_EVERY:
            self._evictions = 0
            for counts in (*self._kinds.values(), *self._queues.values()):
                counts.learn()

    def _queue(self, request: Request, turn: Turn) -> Queue:
        if request.stop == "tool_calls" or (turn.number > 1 and request.input == "tool"):
            return "agentic"
        return "structural" if turn.number == 1 else "chat"

    def _set_kinds(self, request: Request, turn: Turn, path: Sequence[_Block], hits: int) -> None:
        if turn.number == 1:
            for block in path[:hits]:
                block.kind = "system"
        said: Kind = "tool" if request.input == "tool" else "user"
        thought_end = request.prompt_tokens + request.thought_tokens
        for block in path[hits:]:
            start = block.depth * self.page_size
            if block.is_back:
                continue
            if start >= len(request.prompt):
                block.kind = "thought" if start < thought_end else "answer"
            else:
                block.kind = "answer" if start in turn.answer_before else said

    def _counts(self, kind: Kind, queue: Queue) -> tuple[_Counts, _Counts]:
        return self._kinds.setdefault(kind, _Counts()), self._queues.setdefault(queue, _Counts())

    def _group(self, block: _Block) -> Hashable:
        return block.queue, block.kind, block.band if block.queue == "structural" else 0

    def _score(self, block: _Block) -> float:
        age_s = max(self._now_s - block.last_s, SHORTEST_S)
        if block.queue == "evict-first":
            return -age_s
        timing = self._timings.get(block.queue)
        probability = 1.0 - block.band / BANDS if timing is None else timing.survival(age_s)
        of_kind, of_queue = self._counts(block.kind, block.queue)
        return of_queue.weight * of_kind.weight * probability / age_s

    def _evicted(self, block: _Block) -> None:
        for counts in self._counts(block.kind, block.queue):
            counts.evicted += 1
        self._ghosts[block.name] = block.kind, block.queue
        if len(self._ghosts) > self._pages:
            self._ghosts.popitem(last=False)
        self._evictions += 1
