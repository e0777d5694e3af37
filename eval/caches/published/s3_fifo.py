"""S3-FIFO over the leaves of the prefix tree: a small queue that drops what is used once, before a large one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.traces.request import Request

SMALL_SHARE = 0.1
"""Share of the cache for the small queue. The ghost queue remembers as many pages as the rest holds."""

PROMOTED_AT = 2
"""Uses after the first that take a page from the small queue into the main queue."""

MOST_USES = 3
"""Uses are counted up to here."""


@dataclass(eq=False, slots=True)
class _Block(Block):
    uses: int = 0  # since it was cached, or since it was last given another round
    is_main: bool = False


class S3FifoCache(TreeCache[_Block]):
    """The rule of S3-FIFO.

    New pages enter the small queue. Its oldest page moves into the main queue if it was used at least twice since, else
    it is evicted and its name remembered. A page whose name is remembered enters the main queue. The oldest page of the
    main queue gets another round, with one use less, if it was used, else it is evicted. The small queue gives up pages
    unless the main queue has more than its share.

    Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, Algorithm 1; the defaults are
    those of the authors' libCacheSim, ``libCacheSim/cache/eviction/S3FIFO.c`` (small-size-ratio 0.1, ghost-size-ratio
    0.9, move-to-main-threshold 2), which caches into the main queue while the cache fills for the first time and the
    small queue is full. Assumed: queues hold all pages, but only leaves are looked at; a request that caches a context
    puts its pages into a queue from the last to the first, so that the deepest is the oldest.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._small_share = int(SMALL_SHARE * self._pages)  # pages
        self._small, self._main = 0, 0  # pages in the queues
        self._small_leaves, self._main_leaves = LeafQueue(self), LeafQueue(self)
        self._ghosts: OrderedDict[int, None] = OrderedDict()  # the next to be forgotten first
        self._ghost_share = int((1 - SMALL_SHARE) * self._pages)
        self._turn = 0  # counts entries into the queues
        self._is_back = self._has_evicted = False

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        for block in path:
            if block.uses < MOST_USES:
                block.uses += 1

    def _miss(self, name: int) -> None:
        self._is_back = name in self._ghosts
        if self._is_back:
            del self._ghosts[name]

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        is_main = self._is_back or (not self._has_evicted and self._small >= self._small_share)
        self._small, self._main = self._small + (not is_main), self._main + is_main
        return _Block(name, parent, depth, is_main=is_main)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        self._turn += 1
        for block in path[hits:]:
            block.place = self._turn, -block.depth

    def _offer(self, block: _Block) -> None:
        (self._main_leaves if block.is_main else self._small_leaves).push(block)

    def _victim(self) -> _Block:
        self._has_evicted = True
        if self._main <= self._pages - self._small_share:
            while (small := self._small_leaves.first()) is not None:
                if small.uses < PROMOTED_AT:
                    return small
                small.is_main, small.uses = True, 0
                self._small, self._main = self._small - 1, self._main + 1
                self._enter(small)
        while (main := self._main_leaves.first()) is not None:
            if not main.uses:
                return main
            main.uses -= 1
            self._enter(main)
        # All pages of the main queue that are leaves are in use.
        small = self._small_leaves.first()
        assert small is not None, "a full cache has a leaf that is not in use"
        return small

    def _enter(self, block: _Block) -> None:
        """Put a leaf at the end of the main queue."""
        self._turn += 1
        block.place = self._turn, 0
        self._main_leaves.push(block)

    def _evicted(self, block: _Block) -> None:
        if block.is_main:
            self._main -= 1
            return
        self._small -= 1
        self._ghosts[block.name] = None
        if len(self._ghosts) > self._ghost_share:
            self._ghosts.popitem(last=False)
