"""SIEVE over the prefix tree: a hand that passes over what was used since it came by."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from eval.caches.blocks import QueuedBlock, QueuedCache


@dataclass(eq=False, slots=True)
class _Block(QueuedBlock):
    was_used: bool = False  # since it was cached, or since the hand passed it


class SieveCache(QueuedCache[_Block]):
    """The rule of SIEVE.

    Pages stay in the order in which they were cached. A hand goes from the oldest to the newest, and then from the
    oldest again. It evicts the first page that was not used since it last passed; those that were it passes, and marks
    them as not used.

    Source: Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches",
    NSDI 2024, Algorithm 1. On the tree: the hand looks at every page. One that it evicts and that is no leaf is freed
    as soon as it is one; a request that uses it before puts it at the newest end, as one that was evicted. Of one
    request the deepest page is the oldest.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._ahead: OrderedDict[int, _Block] = OrderedDict()  # of the hand, the oldest first
        self._passed: OrderedDict[int, _Block] = OrderedDict()  # in this round

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth)

    def _use(self, block: _Block) -> None:
        block.was_used = True

    def _enter(self, block: _Block) -> None:
        if not self._ahead:  # the hand is at the newest page: what comes now is met in the next round
            self._begin_round()
        self._ahead[block.name] = block

    def _return(self, block: _Block) -> None:
        block.was_used = False
        self._enter(block)

    def _look(self) -> _Block | None:
        if not self._ahead:
            self._begin_round()
        _, block = self._ahead.popitem(last=False)
        if not block.was_used:
            return block
        block.was_used = False
        self._passed[block.name] = block
        return None

    def _begin_round(self) -> None:
        self._ahead, self._passed = self._passed, self._ahead
