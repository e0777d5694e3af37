"""Workload-aware eviction: pages go by the probability of a use soon, which is learned for each kind of request."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count

from eval.caches.blocks import Block, GroupedCache
from eval.caches.published.turns import Turns
from eval.traces.request import Request

MOST_TURNS = 10
"""Turns from which a conversation is of one kind of request."""

REMEMBERED = 4
"""Evicted pages whose last use is remembered, in sizes of the cache, so that a use after eviction counts as one."""

PRIOR_WAIT_S, PRIOR_USES = 60.0, 2.0
"""What is believed of a kind before anything is known: half of its pages are used again, after a minute."""

LIFE_SHARE = 0.001
"""Weight of an evicted page in the mean time that pages stay unused before they are evicted."""


SHORTEST_LIFE_S = 1.0
"""``life`` at least, s."""


@dataclass(slots=True)
class _Kind:
    """What was seen of a kind of request, in pages."""

    uses: float = PRIOR_USES
    reuses: float = PRIOR_USES / 2
    waits_s: float = PRIOR_USES / 2 * PRIOR_WAIT_S  # sum

    def log_probability(self, age_s: float, life_s: float) -> float:
        """Log of the probability that a page unused for ``age_s`` is used within the next ``life_s``."""
        rate = self.reuses / self.waits_s
        return math.log(self.reuses / self.uses) - rate * age_s + math.log(-math.expm1(-rate * life_s))


@dataclass(eq=False, slots=True)
class _Block(Block):
    kind: _Kind = field(kw_only=True)  # of the request that used it last
    last_s: float = 0.0  # when it came


class WorkloadAwareCache(GroupedCache[_Block]):
    """The rule of "KVCache Cache in the Wild".

    A page has the kind of the request that used it last: its category and its turn. For each kind the time to the next
    use is exponential. The page goes for which a use within ``life`` is least probable; of one request's the deepest.

    Source: Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025 (arXiv 2506.02634), section 4; queues by kind as
    in vllm-project/vllm#22236. Assumed: distributions are learned while serving (there: profiled on an hour before),
    and a share of the uses has no successor; ``life`` is the mean time that evicted pages had been unused; the category
    is that of the trace, else what the input is (user, tool), else there is one; turns after the tenth are one kind.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._kinds: dict[Hashable, _Kind] = {}
        self._unknown = _Kind()  # of a page that is cached while its request is being served
        self._turns = Turns()
        self._ghosts: OrderedDict[int, tuple[_Kind, float]] = OrderedDict()  # evicted pages: kind and last use
        self._regretted: list[tuple[_Kind, float]] = []  # evicted pages that a request looks up
        self._ages_s: list[float] = []  # of pages evicted for it: how long they were unused
        self._life_s = PRIOR_WAIT_S
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
        kind.reuses += 1
        kind.waits_s += self._now_s - last_s

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth, kind=self._unknown)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        names = [block.name for block in path]
        turn = self._turns.serve(request, names, len(request.prompt) // self.page_size)
        key = request.category or request.input, min(turn.number, MOST_TURNS)
        kind = self._kinds.setdefault(key, _Kind())
        kind.uses += len(path)
        self._learn()
        for block in reversed(path):
            block.kind, block.last_s, block.place = kind, self._now_s, (0, next(self._releases))

    def _learn(self) -> None:
        for kind, last_s in self._regretted:
            self._count_reuse(kind, last_s)
        for age_s in self._ages_s:
            self._life_s += LIFE_SHARE * (age_s - self._life_s)
        self._regretted.clear()
        self._ages_s.clear()

    def _group(self, block: _Block) -> Hashable:
        return id(block.kind)

    def _score(self, block: _Block) -> float:
        return block.kind.log_probability(self._now_s - block.last_s, max(self._life_s, SHORTEST_LIFE_S))

    def _evicted(self, block: _Block) -> None:
        self._ages_s.append(self._now_s - block.last_s)
        self._ghosts[block.name] = block.kind, block.last_s
        if len(self._ghosts) > REMEMBERED * self._pages:
            self._ghosts.popitem(last=False)
