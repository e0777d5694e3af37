"""ARC over the prefix tree: pages used once and pages used more often share the room as ghosts tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from eval.caches.blocks import QueuedBlock, QueuedCache
from eval.traces.request import Request


@dataclass(eq=False, slots=True)
class _Block(QueuedBlock):
    often: bool = False  # in T2: used by more than one request; else in T1


class ArcCache(QueuedCache[_Block]):
    """The rule of ARC, Adaptive Replacement Cache.

    T1 holds the pages that one request has used, T2 those that several have. B1 and B2 remember the names of pages
    evicted from them. T1 has a target size: a page that is missed and in B1 raises it, one in B2 lowers it. While T1 is
    above its target its least recently used page goes, else that of T2. A page that comes back from a ghost list is
    cached in T2. T1 and B1 together remember as many pages as the cache holds, all four lists twice as many.

    Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, Figure 4. vLLM has it
    for the CPU tier (``vllm/v1/kv_offload/cpu/policies/arc.py``), where a page that comes back is put into T1. On the
    tree: the rule looks at every page of a list. One that it evicts and that is no leaf is in a ghost list from then on
    and freed as soon as it is a leaf; if a request uses it before, it is one that comes back. A request uses each page
    of its path once, the deepest first. Its pages are in their lists, but do not go while it is served; if a list has
    no other, the other list gives up a page.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._once: OrderedDict[int, _Block] = OrderedDict()  # T1 without what is in use, the next to go first
        self._often: OrderedDict[int, _Block] = OrderedDict()  # T2
        self._using_once = self._using_often = 0  # pages of the request that is being served
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()  # B1, the next to be forgotten first
        self._often_ghosts: OrderedDict[int, None] = OrderedDict()  # B2
        self._target = 0.0  # pages of T1
        self._missed_of_often = self._missed_of_once = False  # whether the page that is missed is in B2, or in B1

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        super()._begin(request, path, names)
        for block in path:
            if block.is_due:
                self._miss(block.name)
                block.often = self._come(block.name)

    def _use(self, block: _Block) -> None:
        del (self._often if block.often else self._once)[block.name]
        block.often = True
        self._using_often += 1

    def _miss(self, name: int) -> None:
        once, often = len(self._once_ghosts), len(self._often_ghosts)
        self._missed_of_once, self._missed_of_often = name in self._once_ghosts, name in self._often_ghosts
        if self._missed_of_once:
            self._target = min(self._target + max(1.0, often / once), self._pages)
        elif self._missed_of_often:
            self._target = max(self._target - max(1.0, once / often), 0.0)

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth, often=self._come(name))

    def _come(self, name: int) -> bool:
        """Count a page that was missed into T1, or into T2 if a ghost list has it; returns which."""
        if self._missed_of_once or self._missed_of_often:
            del (self._once_ghosts if self._missed_of_once else self._often_ghosts)[name]
            self._using_often += 1
            return True
        self._using_once += 1
        once, often = len(self._once) + self._using_once, len(self._often) + self._using_often
        if self._once_ghosts and once + len(self._once_ghosts) > self._pages:
            self._once_ghosts.popitem(last=False)
        if self._often_ghosts and once + often + len(self._once_ghosts) + len(self._often_ghosts) > 2 * self._pages:
            self._often_ghosts.popitem(last=False)
        return False

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        super()._end(request, path, 0)  # what was found enters its list anew, too
        self._using_once = self._using_often = 0

    def _enter(self, block: _Block) -> None:
        (self._often if block.often else self._once)[block.name] = block

    def _return(self, block: _Block) -> None:
        self._enter(block)

    def _look(self) -> _Block:
        once = len(self._once) + self._using_once
        above = once > self._target or (self._missed_of_often and once == self._target)
        is_once = bool(self._once) and (above or not self._often)
        pages, ghosts = (self._once, self._once_ghosts) if is_once else (self._often, self._often_ghosts)
        name, block = pages.popitem(last=False)
        ghosts[name] = None
        return block
