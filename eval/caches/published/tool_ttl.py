"""Pins while a tool runs: a context whose answer calls a tool stays for as long as the wait for the tool pays."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.caches.published.turns import Turns
from eval.caches.routing import Service
from eval.traces.request import Request

KNOWN_WAITS = 1000
"""Times of tools that are remembered: the last ones."""

FEWEST_WAITS = 100
"""Times of tools from which on they are looked at."""

COLD_TTL_S = 2.0
"""How long a context is pinned before: the fixed threshold of the released code, s."""

ATTENTION_TOKENS = 51_000
"""Length of a context from which its attention costs more than all else of its prefill. For a 7B model: 6.7 billion
weights by 32 layers of 4,096, as a token costs 2 FLOPs a weight, and 2 a layer, width and token of the context."""


def reload_s(context: int) -> float:
    """What the prefill of a context of so many tokens costs, s."""
    return Service().seconds(context, 0) * (1 + context / ATTENTION_TOKENS)


def best_ttl_s(waits_s: Sequence[float], reload_s: float) -> float:
    """The wait τ with the greatest P(tool ≤ τ) · reload − τ; 0 if no pin pays.

    >>> best_ttl_s([1.0, 1.0, 1.0, 60.0], reload_s=10.0)    # 0.75 · 10 − 1 = 6.5; 10 − 60 < 0
    1.0
    >>> best_ttl_s([60.0, 60.0], reload_s=10.0)
    0.0

    Args:
        waits_s: times of tools that were seen, rising.
        reload_s: what a prefill of the context costs.
    """
    waits = np.asarray(waits_s)
    worth = reload_s * np.arange(1, len(waits) + 1) / len(waits) - waits
    best = int(worth.argmax())
    return float(waits[best]) if worth[best] > 0 else 0.0


@dataclass(eq=False, slots=True)
class _Block(Block):
    pins: int = 0  # of conversations


@dataclass(frozen=True, slots=True)
class _Pin:
    until_s: float
    start: int  # of its conversation: the number of its first request
    path: Sequence[_Block]


class ToolTtlCache(TreeCache[_Block]):
    """The rule of Continuum (CacheTTL in later versions).

    An answer that ends with a tool call pins its context for the time to live τ = argmax P(tool ≤ τ) · (T · η +
    reload) − τ. What is not pinned goes least recently used first. A pin ends with the next turn of its conversation,
    or after τ; its pages then are as if just used. If nothing else is left, the pin goes whose conversation began last.

    Source: Li et al., "Continuum" (arXiv 2511.02230), the utility of a TTL, its Algorithm 1 and prevention of
    deadlocks. Assumed: T · η, the wait in a queue that a pin saves, is 0, as no request waits here; reload is the
    prefill of a 7B model on an A100 (:class:`~eval.caches.routing.Service`) with its attention (there: measured); all
    tools have one distribution, which the paper uses for tools that it has seen seldom, as traces do not name them;
    before 100 tools were seen the TTL is 2 s, as in the released code. Its order of scheduling has no counterpart here.
    A trace must say how answers end and name conversations; without, the rule is lru.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._leaves = LeafQueue(self)
        self._releases = count(1)
        self._turns = Turns()
        self._answer_end_s = 0.0  # of the request that is being served
        self._served = 0
        self._starts: dict[str, int] = {}  # by conversation: the number of its first request
        self._pins: dict[str, _Pin] = {}  # by conversation
        self._expiries: list[tuple[float, str]] = []  # heap; void once the conversation has another pin, or none
        self._waits: deque[float] = deque()  # times of tools, s, the oldest first
        self._sorted: list[float] = []

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        self._served += 1
        while self._expiries and self._expiries[0][0] <= request.arrival_s:
            until_s, conversation = heappop(self._expiries)
            if conversation in self._pins and self._pins[conversation].until_s == until_s:
                self._unpin(conversation)
        if request.conversation is None:
            return
        if request.conversation in self._pins:
            self._unpin(request.conversation)
        self._starts.setdefault(request.conversation, self._served)
        turn = self._turns.serve(request, names, len(names))
        self._answer_end_s = turn.end_s
        if turn.wait_s is not None and request.input == "tool":
            self._learn(turn.wait_s)

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        self._release(path)
        ttl_s = self._ttl_s(len(request.context)) if request.stop == "tool_calls" else 0.0
        if request.conversation is None or ttl_s == 0.0:
            return
        pin = _Pin(self._answer_end_s + ttl_s, self._starts[request.conversation], path)
        self._pins[request.conversation] = pin
        heappush(self._expiries, (pin.until_s, request.conversation))
        for block in path:
            block.pins += 1

    def _offer(self, block: _Block) -> None:
        if not block.pins:
            self._leaves.push(block)

    def _victim(self) -> _Block:
        while (block := self._leaves.first()) is None:
            assert self._pins, "a full cache has a leaf that is not in use"
            self._unpin(max(self._pins, key=lambda conversation: self._pins[conversation].start))
        return block

    def _unpin(self, conversation: str) -> None:
        path = self._pins.pop(conversation).path
        for block in path:
            block.pins -= 1
        self._release(path)
        for block in path:
            if self.may_go(block):
                self._offer(block)

    def _release(self, path: Sequence[_Block]) -> None:
        for block in reversed(path):
            block.place = 0, next(self._releases)

    def _learn(self, wait_s: float) -> None:
        self._waits.append(wait_s)
        insort(self._sorted, wait_s)
        if len(self._waits) > KNOWN_WAITS:
            del self._sorted[bisect_left(self._sorted, self._waits.popleft())]

    def _ttl_s(self, context: int) -> float:
        if len(self._waits) < FEWEST_WAITS:
            return COLD_TTL_S
        return best_ttl_s(self._sorted, reload_s(context))
