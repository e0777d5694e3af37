"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

Knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add`) or vanishes
(:meth:`EvictionOrder.discard`) and asks it under pressure (:meth:`EvictionOrder.victim`); the live server and the
simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves whose order does not change as time goes by share a heap, their *cell*: one
for each step of the prompt model (T-LRU: TEL-safe and protected) and each group of the return model (one for T-LRU;
kinds of conversations and bands of ages where rates are learned). A decision looks at the head of the cheapest cell; a
leaf that grows into another group is moved then and there, some twenty times in its life. Entries are lazy: a leaf that
was used, trimmed, locked or evicted since leaves its old entry behind, which is put right or dropped when it comes to
the head. A decision is O(log cells + log leaves), amortised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from radix_tlru.models import Leaf, Policy
from radix_tlru.tel import marginal_cost, round_up

__all__ = ["EvictionOrder", "Phase", "Victim"]

Phase = Literal["tel_safe", "lru"]
"""Which of the two phases of T-LRU (paper, Algorithm 1) took a token: free at the tail, or the least recent."""

# Stale entries are swept out when the heaps hold this many more entries than twice the leaves; and so many leaves are
# noted at most before they get their entries.
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
        self._page_size = page_size
        self._leaf_of = leaf_of
        self._leaves = 0
        self._over_budget = 0  # of the leaves that have an entry
        self._noted: dict[int, Leaf] = {}  # those that have none yet
        self._start(policy)

    def _start(self, policy: Policy) -> None:
        self._policy, self._returns = policy, policy.returns
        self._probabilities = policy.prompts.probabilities
        self._steps = len(self._probabilities)
        self._now = 0.0  # in the time of the return model
        self._cells: dict[int, list[tuple[float, int]]] = {}  # heaps of (key, leaf id) by group · steps + step
        self._entries = 0
        self._prices: list[tuple[float, float, int]] = []  # heap of (cost, rate, cell), one of each cell that is listed
        self._listed: set[int] = set()  # every cell that is not empty, if the model is timeless
        self._version = policy.returns.version  # of the prices
        self._alarms: list[tuple[float, int]] = []  # heap of (time, cell): the first leaf of the cell leaves it then
        self._moved = 0  # leaves that were put right
        self._alarm: dict[int, float] = {}  # the one alarm of a cell that counts

    def __len__(self) -> int:
        """Evictable leaves."""
        return self._leaves

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._policy

    @property
    def over_budget(self) -> int:
        """Tokens that could go now at no cost to the tail; what paths share below it counts for each of them."""
        self._admit()
        return self._over_budget

    @property
    def entries(self) -> int:
        """Heap entries held, stale ones included."""
        return self._entries + len(self._alarms)

    def add(self, leaf_id: int, leaf: Leaf) -> None:
        """A leaf became evictable."""
        self._leaves += 1
        self._noted[leaf_id] = leaf
        if len(self._noted) > _SLACK:
            self._admit()

    def discard(self, leaf_id: int, leaf: Leaf) -> None:
        """A leaf that was added is not evictable any more, with the end and history that it had."""
        self._leaves -= 1
        if self._noted.pop(leaf_id, None) is None:
            self._over_budget -= self._tel_safe(leaf, self._step(leaf))

    def use(self, policy: Policy) -> None:
        """Order the same leaves by ``policy``. This alone looks at all of them; stale entries are gone after it."""
        self._admit()
        leaf_ids = sorted({leaf_id for heap in self._cells.values() for _, leaf_id in heap})
        self._start(policy)
        self._over_budget = 0
        for leaf_id in leaf_ids:
            leaf = self._leaf_of(leaf_id)
            if leaf is not None:
                self._over_budget += self._tel_safe(leaf, self._push(leaf_id, leaf))

    def victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to the policy's trim chunk and to a page; None: no leaves.

        Evicts nothing: the caller does, and tells by :meth:`discard` and :meth:`add` what became of the leaf. One
        victim may hold fewer tokens than asked for, as what follows in the same leaf may cost more; ask again.
        """
        self._admit()
        if self._alarms and self._alarms[0][0] <= self._now:
            self._let_time_pass()
        found = self._cheapest_cell() if self._returns.timeless else self._cheapest_head()
        if found is None:
            return None
        cell, leaf = found
        step = cell % self._steps
        keep = max(
            leaf.start,
            self._policy.keep(leaf, step, self._page_size),
            self._returns.floor(leaf) // self._page_size * self._page_size,
            leaf.end - round_up(max(tokens, self._policy.trim_chunk), self._page_size),
        )
        return Victim(self._cells[cell][0][1], leaf, keep, "lru" if self._probabilities[step] > 0 else "tel_safe")

    def _cheapest_cell(self) -> tuple[int, Leaf] | None:
        """Where all leaves of a cell cost the same: the cells are in a heap by their price."""
        if self._version != self._returns.version:
            self._version = self._returns.version
            self._prices = [self._price(cell) for cell in self._listed]
            heapify(self._prices)
        while self._prices:
            cell = self._prices[0][2]
            leaf = self._head(cell)
            if self._prices[0][2] != cell:
                continue  # a leaf that was put right has gone to a cheaper cell
            if leaf is not None:
                return cell, leaf
            heappop(self._prices)
            self._listed.discard(cell)
        return None

    def _cheapest_head(self) -> tuple[int, Leaf] | None:
        """Where the price of a leaf changes with time: the first leaves of the cells, which are few, are compared."""
        found: tuple[int, Leaf] | None = None
        moved = -1
        while moved != self._moved:  # until none was put right, and perhaps into a cell that was passed
            cheapest, found, moved = (math.inf, math.inf, 0), None, self._moved
            for cell in list(self._cells):
                leaf = self._head(cell)
                if leaf is None:
                    continue
                key, leaf_id = self._cells[cell][0]
                group, step = divmod(cell, self._steps)
                rate = self._returns.rate(group, key, self._now)
                cost = marginal_cost(rate, self._probabilities[step], self._policy.median_weight)
                if (cost, key, leaf_id) < cheapest:
                    cheapest, found = (cost, key, leaf_id), (cell, leaf)
        return found

    def _price(self, cell: int) -> tuple[float, float, int]:
        group, step = divmod(cell, self._steps)
        rate = self._returns.rate(group, 0.0, self._now)
        return marginal_cost(rate, self._probabilities[step], self._policy.median_weight), rate, cell

    def _step(self, leaf: Leaf) -> int:
        """Index of the step that the last token of the leaf lies in."""
        # What Q keeps, ⌈(L + Q - ξ)⁺⌉ in whole pages, is less than all of the leaf if and only if Q is at most this.
        longest = self._policy.threshold - leaf.history + leaf.end - self._page_size
        next_prompt = self._policy.prompts.next_prompt
        for step in range(self._steps):
            tokens = next_prompt(leaf, step)
            if tokens is None or tokens <= longest:
                return step
        raise AssertionError(f"the last step of a prompt model must end at the root, above {leaf}")

    def _tel_safe(self, leaf: Leaf, step: int) -> int:
        """Tokens of the leaf's path that cost nothing at the tail; its last token lies in that step."""
        if step > 0 or self._probabilities[0] > 0:
            return 0
        return leaf.end - self._policy.keep(leaf, 0, self._page_size)

    def _admit(self) -> None:
        """Give the noted leaves their entries."""
        if not self._noted:
            return
        for leaf_id, leaf in self._noted.items():
            self._over_budget += self._tel_safe(leaf, self._push(leaf_id, leaf))
        self._noted.clear()
        if self.entries > 2 * self._leaves + _SLACK:
            self.use(self._policy)

    def _push(self, leaf_id: int, leaf: Leaf) -> int:
        """Put a leaf into its cell; returns its step."""
        self._now = max(self._now, self._returns.stamp(leaf))
        group, step = self._returns.group(leaf, self._now), self._step(leaf)
        cell = group.number * self._steps + step
        heap = self._cells.get(cell)
        if heap is None:
            heap = self._cells[cell] = []
        heappush(heap, (self._returns.key(leaf), leaf_id))
        self._entries += 1
        if self._returns.timeless and cell not in self._listed:
            self._listed.add(cell)
            heappush(self._prices, self._price(cell))
        if group.until < math.inf and heap[0][1] == leaf_id:
            self._wake(cell, group.until)
        return step

    def _head(self, cell: int) -> Leaf | None:
        """The first leaf of a cell, after the stale entries before it were dropped or put right."""
        heap = self._cells.get(cell)
        while heap:
            key, leaf_id = heap[0]
            leaf = self._leaf_of(leaf_id)
            if leaf is not None and self._returns.key(leaf) == key:
                group = self._returns.group(leaf, self._now)
                if group.number * self._steps + self._step(leaf) == cell:
                    return leaf
            heappop(heap)
            self._entries -= 1
            if leaf is not None:
                self._push(leaf_id, leaf)
                self._moved += 1
        return None

    def _wake(self, cell: int, time: float) -> None:
        """Look at the cell at that time, or before."""
        if time < self._alarm.get(cell, math.inf):
            self._alarm[cell] = time
            heappush(self._alarms, (time, cell))

    def _let_time_pass(self) -> None:
        """Move on the leaves that have grown into another group. The first of a cell does so before the others."""
        while self._alarms and self._alarms[0][0] <= self._now:
            time, cell = heappop(self._alarms)
            if self._alarm.get(cell) != time:
                continue
            del self._alarm[cell]
            leaf = self._head(cell)
            if leaf is not None:
                self._wake(cell, self._returns.group(leaf, self._now).until)
