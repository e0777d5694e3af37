"""Workload-aware eviction: pages go by the probability of a use soon, which is learned for each kind of request."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count

from eval.caches.blocks import Block, GroupedCache
from eval.caches.published.turns import Turns
from eval.traces.request import Request

MOST_TURNS = 10
"""Turns from which a conversation is of one kind of request."""

SOONEST_S = 0.3
"""A use sooner after the one before, s, is one of a system prompt, and not learned from."""

LIFE_S = 5.0
"""How soon is soon, s."""

PRIOR_WAIT_S, PRIOR_USES = 60.0, 2.0
"""What is believed of a kind before anything is known: half of its pages are used again, after a minute."""


@dataclass(slots=True)
class _Kind:
    """What was seen of a kind of request, in pages."""

    uses: float = PRIOR_USES
    reuses: float = PRIOR_USES / 2
    waits_s: float = PRIOR_USES / 2 * PRIOR_WAIT_S  # sum

    def log_probability(self, age_s: float) -> float:
        """Log of the probability that a page unused for ``age_s`` is used within the next ``LIFE_S``."""
        rate = self.reuses / self.waits_s
        return math.log(self.reuses / self.uses) - rate * age_s + math.log(-math.expm1(-rate * LIFE_S))


@dataclass(eq=False, slots=True)
class _Block(Block):
    kind: _Kind = field(kw_only=True)  # of the request that used it last
    last_s: float = 0.0  # when it came


class WorkloadAwareCache(GroupedCache[_Block]):
    """The rule of "KVCache Cache in the Wild".

    A page has the kind of the request that used it last: its category and its turn. For each kind the time to the next
    use is exponential, and a share of the uses has no successor. The page goes for which a use soon is least probable;
    of one request's the deepest. Uses of pages that were evicted are learned from, too, however long ago that was.

    Source: Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025 (arXiv 2506.02634), section 4; queues by kind,
    ``LIFE_S`` and ``SOONEST_S`` as in the authors' vllm-project/vllm#22236 (``vllm/v1/core/kv_cache_utils.py``,
    ``benchmarks/profiler_utils.py``), which profile an hour before, in a cache that evicts nothing. Assumed: the same
    is learned while serving; the category is that of the trace, else what the input is (user, tool), else there is one;
    turns after the tenth are one kind.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._kinds: dict[Hashable, _Kind] = {}
        self._unknown = _Kind()  # of a page that is cached while its request is being served
        self._turns = Turns()
        self._ghosts: dict[int, tuple[_Kind, float]] = {}  # evicted pages: kind and last use
        self._regretted: list[tuple[_Kind, float]] = []  # evicted pages that a request looks up
        self._now_s = 0.0
        self._releases = count(1)

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        super()._begin(request, path, names)
        self._now_s = request.arrival_s
        for block in path:
            self._count_reuse(block.kind, block.last_s)

    def _miss(self, name: int) -> None:
        ghost = self._ghosts.pop(name, None)
        if ghost is not None:
            self._regretted.append(ghost)

    def _count_reuse(self, kind: _Kind, last_s: float) -> None:
        wait_s = self._now_s - last_s
        if wait_s > SOONEST_S:
            kind.reuses += 1
            kind.waits_s += wait_s

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth, kind=self._unknown)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        names = [block.name for block in path]
        turn = self._turns.serve(request, names, len(request.prompt) // self.page_size)
        key = request.category or request.input, min(turn.number, MOST_TURNS)
        kind = self._kinds.setdefault(key, _Kind())
        kind.uses += len(path)
        for ghost in self._regretted:
            self._count_reuse(*ghost)
        self._regretted.clear()
        for block in reversed(path):
            block.kind, block.last_s, block.place = kind, self._now_s, (0, next(self._releases))

    def _group(self, block: _Block) -> Hashable:
        return id(block.kind)

    def _score(self, block: _Block) -> float:
        return block.kind.log_probability(self._now_s - block.last_s)

    def _evicted(self, block: _Block) -> None:
        self._ghosts[block.name] = block.kind, block.last_s
