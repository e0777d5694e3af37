"""SIEVE over the leaves of the prefix tree: a hand that passes over what was used since it came by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.traces.request import Request


@dataclass(eq=False, slots=True)
class _Block(Block):
    was_used: bool = False  # since it was cached, or since the hand passed it


class SieveCache(TreeCache[_Block]):
    """The rule of SIEVE.

    Pages stay in the order in which they were cached. A hand goes from the oldest to the newest, and then from the
    oldest again. It evicts the first page that was not used since it last passed; those that were it passes, and marks
    them as not used.

    Source: Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches",
    NSDI 2024, Algorithm 1. Assumed: the hand passes over pages that are no leaves without a look at them, and meets a
    page that becomes a leaf behind it in the next round; of one request the deepest page is the oldest.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._ahead, self._behind = LeafQueue(self), LeafQueue(self)  # of the hand
        self._hand = (0, 0)  # the place that it has reached
        self._served = 0

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        self._served += 1
        for block in path:
            block.was_used = True

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        if self._ahead.first() is None:  # the newest leaf was evicted: what comes now is met in the next round
            self._begin_round()
        for block in path[hits:]:
            block.place = self._served, -block.depth

    def _offer(self, block: _Block) -> None:
        (self._behind if block.place < self._hand else self._ahead).push(block)

    def _victim(self) -> _Block:
        while True:
            block = self._ahead.first()
            if block is None:
                self._begin_round()
                assert self._ahead.first() is not None, "a full cache has a leaf that is not in use"
                continue
            self._hand = block.place[0], block.place[1] + 1
            if not block.was_used:
                return block
            block.was_used = False
            while self._ahead.first() is block:  # it was offered again with each use, always at one place
                self._ahead.pop()
            self._behind.push(block)

    def _begin_round(self) -> None:
        self._ahead, self._behind, self._hand = self._behind, self._ahead, (0, 0)
