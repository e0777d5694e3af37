"""ARC over the leaves of the prefix tree: pages used once and pages used more often share the room as ghosts tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.traces.request import Request


@dataclass(eq=False, slots=True)
class _Block(Block):
    often: bool = False  # in T2: used by more than one request; else in T1


class ArcCache(TreeCache[_Block]):
    """The rule of ARC, Adaptive Replacement Cache.

    T1 holds the pages that one request has used, T2 those that several have. B1 and B2 remember the names of pages
    evicted from them. T1 has a target size: a page that is missed and in B1 raises it, one in B2 lowers it. While T1 is
    above its target its least recently used page goes, else that of T2. A page that comes back from a ghost list is
    cached in T2. T1 and B1 together remember as many pages as the cache holds, all four lists twice as many.

    Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, Figure 4. vLLM has it
    for the CPU tier (``vllm/v1/kv_offload/cpu/policies/arc.py``), where a page that comes back is put into T1. Assumed:
    a request uses each page of its path once; if the list that should give up a page has no leaf, the other one does.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._once, self._often = 0, 0  # pages in T1 and T2
        self._once_leaves, self._often_leaves = LeafQueue(self), LeafQueue(self)
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()  # B1, the next to be forgotten first
        self._often_ghosts: OrderedDict[int, None] = OrderedDict()  # B2
        self._target = 0.0  # pages of T1
        self._served = 0
        self._missed_of_often = self._missed_of_once = False  # whether the page that is missed is in B2, or in B1

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        self._served += 1
        for block in path:
            if not block.often:
                block.often = True
                self._once -= 1
                self._often += 1

    def _miss(self, name: int) -> None:
        once, often = len(self._once_ghosts), len(self._often_ghosts)
        self._missed_of_once, self._missed_of_often = name in self._once_ghosts, name in self._often_ghosts
        if self._missed_of_once:
            self._target = min(self._target + max(1.0, often / once), self._pages)
        elif self._missed_of_often:
            self._target = max(self._target - max(1.0, once / often), 0.0)

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        is_back = self._missed_of_once or self._missed_of_often
        if is_back:
            self._once_ghosts.pop(name, None)
            self._often_ghosts.pop(name, None)
            self._often += 1
        else:
            self._once += 1
            self._forget()
        return _Block(name, parent, depth, often=is_back)

    def _forget(self) -> None:
        if self._once_ghosts and self._once + len(self._once_ghosts) > self._pages:
            self._once_ghosts.popitem(last=False)
        everything = self._once + self._often + len(self._once_ghosts) + len(self._often_ghosts)
        if self._often_ghosts and everything > 2 * self._pages:
            self._often_ghosts.popitem(last=False)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        for block in path:
            block.place = self._served, -block.depth

    def _offer(self, block: _Block) -> None:
        (self._often_leaves if block.often else self._once_leaves).push(block)

    def _victim(self) -> _Block:
        above = self._once > self._target or (self._missed_of_often and self._once == self._target)
        queues = (self._once_leaves, self._often_leaves)
        for queue in queues if above else reversed(queues):
            block = queue.first()
            if block is not None:
                return block
        raise AssertionError("a full cache has a leaf that is not in use")

    def _evicted(self, block: _Block) -> None:
        if block.often:
            self._often -= 1
            self._often_ghosts[block.name] = None
        else:
            self._once -= 1
            self._once_ghosts[block.name] = None
