"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

Knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add`) or vanishes
(:meth:`EvictionOrder.discard`) and asks it under pressure (:meth:`EvictionOrder.victim`); the live server and the
simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves whose next token differs in price only by their return rates share a heap,
one for each step of the prompt model (T-LRU: TEL-safe and protected), and a decision compares the heads of the heaps.
Entries are lazy: a leaf that was used, trimmed, locked or evicted since leaves its old entry behind, which is put right
or dropped when it comes to the head. A decision is O(steps + log leaves), amortised.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from radix_tlru.models import Leaf, Policy
from radix_tlru.tel import marginal_cost, round_up

__all__ = ["EvictionOrder", "Phase", "Victim"]

Phase = Literal["tel_safe", "lru"]
"""Which of the two phases of T-LRU (paper, Algorithm 1) took a token: free at the tail, or the least recent."""

# Stale entries are swept out when the heaps hold this many more entries than twice the leaves.
_SLACK = 1024


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
        self._probabilities = policy.prompts.probabilities
        self._heaps: tuple[list[tuple[float, int]], ...] = tuple([] for _ in self._probabilities)
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
        self._push(leaf_id, leaf)
        if self.entries > 2 * self._leaves + _SLACK:
            self._sweep()

    def discard(self, leaf: Leaf) -> None:
        """A leaf that was added is not evictable any more, with the end and history that it had."""
        self._leaves -= 1
        self._over_budget -= self._tel_safe(leaf)

    def use(self, policy: Policy) -> None:
        """Price by another policy from now on, such as one with another threshold; its prompt model has as many steps.

        O(leaves log leaves), as each may lie in another step now: for rare moments, not for every eviction.
        """
        assert len(policy.prompts.probabilities) == len(self._heaps), "a policy cannot change its number of steps"
        self._policy, self._probabilities = policy, policy.prompts.probabilities
        self._sweep()
        leaves = (self._leaf_of(leaf_id) for heap in self._heaps for _, leaf_id in heap)
        self._over_budget = sum(self._tel_safe(leaf) for leaf in leaves if leaf is not None)

    def victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to the policy's trim chunk and to a page; None: no leaves.

        Changes nothing: the caller evicts, and tells by :meth:`discard` and :meth:`add` what became of the leaf. One
        victim may hold fewer tokens than asked for, as what follows in the same leaf may cost more; ask again.
        """
        cheapest: tuple[float, float, int] | None = None
        for index in range(len(self._heaps)):
            head = self._head(index)
            if head is None:
                continue
            key, leaf_id = self._heaps[index][0]
            rate = self._policy.returns.rate(key, self._now)
            price = (marginal_cost(rate, self._probabilities[index], self._policy.median_weight), key, leaf_id)
            if cheapest is None or price < cheapest:
                cheapest, leaf, step = price, head, index
        if cheapest is None:
            return None
        keep = max(
            leaf.start,
            self._policy.keep(leaf, step, self._page_size),
            leaf.end - round_up(max(tokens, self._policy.trim_chunk), self._page_size),
        )
        return Victim(cheapest[2], leaf, keep, "lru" if self._probabilities[step] > 0 else "tel_safe")

    def _step(self, leaf: Leaf) -> int:
        """Index of the step that the last token of the leaf lies in."""
        for step in range(len(self._heaps)):
            if self._policy.keep(leaf, step, self._page_size) < leaf.end:
                return step
        raise AssertionError(f"the last step of a prompt model must end at the root, above {leaf}")

    def _tel_safe(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail."""
        if self._probabilities[0] > 0:
            return 0
        return max(leaf.end - self._policy.keep(leaf, 0, self._page_size), 0)

    def _push(self, leaf_id: int, leaf: Leaf) -> None:
        self._now = max(self._now, leaf.last_access)
        heappush(self._heaps[self._step(leaf)], (self._policy.returns.key(leaf), leaf_id))

    def _head(self, step: int) -> Leaf | None:
        """The first leaf of a step, after the stale entries before it were dropped or put right.

        A history only grows, so a leaf put right moves to a later step if to another one, whose head is yet to be seen.
        """
        heap = self._heaps[step]
        while heap:
            key, leaf_id = heap[0]
            leaf = self._leaf_of(leaf_id)
            if leaf is not None and self._policy.returns.key(leaf) == key and self._step(leaf) == step:
                return leaf
            heappop(heap)
            if leaf is not None:
                self._push(leaf_id, leaf)
        return None

    def _sweep(self) -> None:
        """Drop the entries that no longer tell the truth, and duplicates; what is due next does not change."""
        live = {leaf_id for heap in self._heaps for _, leaf_id in heap}
        for heap in self._heaps:
            heap.clear()
        for leaf_id in sorted(live):
            leaf = self._leaf_of(leaf_id)
            if leaf is not None:
                self._push(leaf_id, leaf)
