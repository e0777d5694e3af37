"""S3-FIFO over the prefix tree: a small queue that drops what is used once, before a large one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from eval.caches.blocks import QueuedBlock, QueuedCache
from eval.traces.request import Request

SMALL_SHARE = 0.1
"""Share of the cache for the small queue. The ghost queue remembers as many pages as the rest holds."""

PROMOTED_AT = 2
"""Uses after the first that take a page from the small queue into the main queue."""

MOST_USES = 3
"""Uses are counted up to here."""


@dataclass(eq=False, slots=True)
class _Block(QueuedBlock):
    uses: int = 0  # since it was cached, or since it was last given another round
    is_main: bool = False


class S3FifoCache(QueuedCache[_Block]):
    """The rule of S3-FIFO.

    New pages enter the small queue. Its oldest page moves into the main queue if it was used at least twice since, else
    it is evicted and its name remembered. A page whose name is remembered enters the main queue. The oldest page of the
    main queue gets another round, with one use less, if it was used, else it is evicted. The small queue gives up pages
    unless it has less than its share.

    Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, Algorithm 1; the defaults are
    those of the authors' libCacheSim, ``libCacheSim/cache/eviction/S3FIFO.c`` (small-size-ratio 0.1, ghost-size-ratio
    0.9, move-to-main-threshold 2), which caches into the main queue while the cache fills for the first time and the
    small queue is full. On the tree: the rule looks at every page of a queue. One that it evicts and that is no leaf is
    in no queue from then on and freed as soon as it is one; if a request uses it before, it enters the queue that it
    would enter after its eviction: from small to main, from main to small. Of one request the deepest page is the
    oldest.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._small_share = int(SMALL_SHARE * self._pages)  # pages
        self._small: OrderedDict[int, _Block] = OrderedDict()  # the oldest first
        self._main: OrderedDict[int, _Block] = OrderedDict()
        self._entering = 0  # pages of the request that is being served that will enter the small queue
        self._ghosts: OrderedDict[int, None] = OrderedDict()  # the next to be forgotten first
        self._ghost_share = int((1 - SMALL_SHARE) * self._pages)
        self._is_back = self._has_evicted = False

    @property
    def _is_small_full(self) -> bool:
        return len(self._small) + self._entering >= self._small_share

    def _miss(self, name: int) -> None:
        self._is_back = name in self._ghosts
        if self._is_back:
            del self._ghosts[name]

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        is_main = self._is_back or (not self._has_evicted and self._is_small_full)
        self._entering += not is_main
        return _Block(name, parent, depth, is_main=is_main)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        super()._end(request, path, hits)
        self._entering = 0

    def _use(self, block: _Block) -> None:
        block.uses = min(block.uses + 1, MOST_USES)

    def _enter(self, block: _Block) -> None:
        (self._main if block.is_main else self._small)[block.name] = block

    def _return(self, block: _Block) -> None:
        block.is_main, block.uses = not block.is_main, 0
        self._enter(block)

    def _look(self) -> _Block | None:
        self._has_evicted = True
        if self._small and (self._is_small_full or not self._main):
            return self._look_at_small()
        _, block = self._main.popitem(last=False)
        if not block.uses:
            return block
        block.uses -= 1
        self._enter(block)
        return None

    def _look_at_small(self) -> _Block | None:
        """Move pages into the main queue up to the first that is evicted; None: all were moved."""
        while self._small:
            _, block = self._small.popitem(last=False)
            if block.uses < PROMOTED_AT:
                return block
            block.is_main, block.uses = True, 0
            self._enter(block)
        return None

    def _evicted(self, block: _Block) -> None:
        if block.is_main:
            return
        self._ghosts[block.name] = None
        if len(self._ghosts) > self._ghost_share:
            self._ghosts.popitem(last=False)
