"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

Knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add`) or vanishes
(:meth:`EvictionOrder.discard`) and asks it under pressure (:meth:`EvictionOrder.victim`); the live server and the
simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves whose next token costs alike at equal age share a heap by age, one heap for
each step of the prompt model (T-LRU: TEL-safe and protected), and a decision compares the heads of the heaps. Entries
are lazy: a leaf that was used, trimmed, locked or evicted since leaves its old entry behind, which is corrected or
dropped when it comes to the head. A decision is O(steps + log leaves), amortised.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from radix_tlru.models import Policy, Step
from radix_tlru.tel import marginal_cost, round_up

__all__ = ["EvictionOrder", "Leaf", "Phase", "Victim"]

Phase = Literal["tel_safe", "lru"]
"""Which of the two phases of T-LRU (paper, Algorithm 1) took a token: free at the tail, or the least recent."""

# Stale entries are swept out when the heaps hold this many more entries than twice the leaves.
_SLACK = 1024


class Leaf(NamedTuple):
    """What the order knows of an evictable leaf. Depths are tokens from the root, multiples of the page size."""

    start: int  # depth at which the leaf's own tokens begin: what stays if all of it is evicted
    end: int  # depth at which they end: X, the tokens of the path that are cached
    history: int  # L ≥ end: the deepest this path has ever been, evicted tails included
    last_access: float  # logical time of the last use


class Victim(NamedTuple):
    """A leaf, and the depth down to which it stays: tokens [keep, end) are to be evicted, a whole number of pages."""

    leaf_id: int
    leaf: Leaf
    keep: int
    phase: Phase


class EvictionOrder:
    """Evictable leaves, cheapest token first.

    Args:
        policy: the models that price a token.
        page_size: tokens in a page; leaves begin and end on page boundaries and are trimmed there.
        leaf_of: the leaf of that id as it is now, or None if it is not evictable (any more). Ids are never reused.
    """

    def __init__(self, policy: Policy, page_size: int, leaf_of: Callable[[int], Leaf | None]) -> None:
        self._policy = policy
        self._page_size = page_size
        self._leaf_of = leaf_of
        self._steps: tuple[Step, ...] = policy.prompts.steps
        self._heaps: tuple[list[tuple[float, int]], ...] = tuple([] for _ in self._steps)
        self._leaves = 0
        self._over_budget = 0
        self._now = 0.0

    def __len__(self) -> int:
        """Evictable leaves."""
        return self._leaves

    @property
    def over_budget(self) -> int:
        """Tokens that could go now at no cost to the tail; what paths share below it counts for each of them."""
        return self._over_budget

    @property
    def entries(self) -> int:
        """Heap entries held, stale ones included."""
        return sum(map(len, self._heaps))

    def add(self, leaf_id: int, leaf: Leaf) -> None:
        """A leaf became evictable."""
        self._leaves += 1
        self._over_budget += self._tel_safe(leaf)
        self._now = max(self._now, leaf.last_access)
        heappush(self._heaps[self._step(leaf)], (leaf.last_access, leaf_id))
        if self.entries > 2 * self._leaves + _SLACK:
            self._sweep()

    def discard(self, leaf: Leaf) -> None:
        """A leaf that was added is not evictable any more, with the end and history that it had."""
        self._leaves -= 1
        self._over_budget -= self._tel_safe(leaf)

    def victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to a page; None if nothing is evictable.

        Changes nothing: the caller evicts, and tells by :meth:`discard` and :meth:`add` what became of the leaf. One
        victim may hold fewer tokens than asked for, as what follows in the same leaf may cost more; ask again.
        """
        best: tuple[float, float, int] | None = None
        chosen: tuple[Leaf, Step] | None = None
        for heap, step in zip(self._heaps, self._steps, strict=True):
            leaf = self._head(heap, step)
            if leaf is None:
                continue
            last_access, leaf_id = heap[0]
            rate = self._policy.returns.rate(last_access, self._now)
            cost = marginal_cost(rate, step.exceed_probability, self._policy.median_weight)
            if best is None or (cost, last_access, leaf_id) < best:
                best, chosen = (cost, last_access, leaf_id), (leaf, step)
        if best is None or chosen is None:
            return None
        leaf, step = chosen
        keep = max(
            leaf.start,
            self._policy.keep(leaf.history, step, self._page_size),
            leaf.end - round_up(max(tokens, 1), self._page_size),
        )
        return Victim(best[2], leaf, keep, "lru" if step.exceed_probability > 0 else "tel_safe")

    def _step(self, leaf: Leaf) -> int:
        """Index of the step that the last token of the leaf lies in."""
        for index, step in enumerate(self._steps):
            if self._policy.keep(leaf.history, step, self._page_size) < leaf.end:
                return index
        raise AssertionError(f"the last step of a prompt model must end at the root, which {leaf} lies below")

    def _tel_safe(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail."""
        first = self._steps[0]
        if first.exceed_probability > 0:
            return 0
        return max(leaf.end - self._policy.keep(leaf.history, first, self._page_size), 0)

    def _head(self, heap: list[tuple[float, int]], step: Step) -> Leaf | None:
        """The least recent leaf of a step, after the stale entries before it were dropped or put right."""
        while heap:
            last_access, leaf_id = heap[0]
            leaf = self._leaf_of(leaf_id)
            if leaf is not None and leaf.last_access == last_access and self._steps[self._step(leaf)] is step:
                return leaf
            heappop(heap)
            if leaf is not None:
                self._now = max(self._now, leaf.last_access)
                heappush(self._heaps[self._step(leaf)], (leaf.last_access, leaf_id))
        return None

    def _sweep(self) -> None:
        """Drop the entries that no longer tell the truth, and duplicates; what is due next does not change."""
        live = {leaf_id for heap in self._heaps for _, leaf_id in heap}
        for heap in self._heaps:
            heap.clear()
        for leaf_id in sorted(live):
            leaf = self._leaf_of(leaf_id)
            if leaf is not None:
                self._heaps[self._step(leaf)].append((leaf.last_access, leaf_id))
        for heap in self._heaps:
            heapify(heap)
