"""A priority queue for keys that mostly rise: a bucket of :class:`~radix_tlru.policy.order.EvictionOrder`.

Keys are times of last use, and a leaf becomes evictable soon after it is used. So nearly every entry has a higher key
than the one before. Such entries are appended to a line: two machine words each, O(1) to add and to take. What arrives
out of order, such as the front of a leaf that was trimmed, goes into a heap.

Entries that do not count any more are dropped by a sweep, some at a time. Swept entries that still count move into a
second queue. When nothing is left to sweep, that one takes the place of the first.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice

__all__ = ["MonotoneQueue"]

_COMPACT_AFTER = 1024  # entries taken off the line before the others are moved to its front
_LEAST = (-math.inf, 0)


class MonotoneQueue:
    """A priority queue of (key, leaf id), least pair first."""

    __slots__ = ("_heap", "_ids", "_keys", "_last", "_swept", "_taken", "first")

    first: tuple[float, int] | None
    """The least entry; None if there is none."""

    def __init__(self) -> None:
        self._keys, self._ids = array("d"), array("q")
        self._taken = 0  # entries at the front of the line that are gone
        self._last = _LEAST  # entry of the line
        self._heap: list[tuple[float, int]] = []
        self._swept: MonotoneQueue | None = None  # during a sweep: the entries that it has kept
        self.first = None

    def __len__(self) -> int:
        swept = len(self._swept) if self._swept is not None else 0
        return len(self._keys) - self._taken + len(self._heap) + swept

    def in_order(self) -> Iterator[tuple[float, int]]:
        """All entries, the least first. The queue must not change meanwhile."""
        line = zip(islice(self._keys, self._taken, None), islice(self._ids, self._taken, None), strict=True)
        return merge(sorted(self._heap), line, self._swept.in_order() if self._swept is not None else ())

    def up_to(self, key: float) -> Iterator[tuple[float, int]]:
        """The entries with that key or less, in any order. The queue must not change meanwhile."""
        positions, heap = [0], self._heap  # what is below a higher key in the heap is higher
        while positions:
            position = positions.pop()
            if position < len(heap) and heap[position][0] <= key:
                yield heap[position]
                positions += [2 * position + 1, 2 * position + 2]
        for position in range(self._taken, len(self._keys)):
            if self._keys[position] > key:
                break
            yield self._keys[position], self._ids[position]
        if self._swept is not None:
            yield from self._swept.up_to(key)

    def push(self, key: float, leaf_id: int) -> bool:
        """Add an entry. Returns whether it is the first now."""
        entry = (key, leaf_id)
        if entry >= self._last:
            self._keys.append(key)
            self._ids.append(leaf_id)
            self._last = entry
        else:
            heappush(self._heap, entry)
        first = self.first
        if first is None or entry < first:
            self.first = entry
            return True
        return False

    def pop(self) -> None:
        """Take the first entry off."""
        swept = self._swept
        if swept is None:
            self._pop_unswept(self.first)
            self.first = self._first_unswept()
            return
        if swept.first == self.first:
            swept.pop()
        else:
            self._pop_unswept(self.first)
        self.first = _lesser(self._first_unswept(), swept.first)

    def sweep(self, most: int, counts: Callable[[float, int], bool]) -> int:
        """Look at ``most`` entries at most. Those that do not count are dropped, and those that are there twice.

        Returns how many entries are gone. A sweep is over when :attr:`is_swept` says so.
        """
        swept = self._swept
        if swept is None:
            swept = self._swept = MonotoneQueue()
        heap, keys, ids, taken = self._heap, self._keys, self._ids, self._taken
        dropped = 0
        for _ in range(most):  # in line, as every leaf that is added pays for a sweep
            if taken < len(keys):
                entry = (keys[taken], ids[taken])
                if heap and heap[0] < entry:
                    entry = heappop(heap)
                else:
                    taken += 1
            elif heap:
                entry = heappop(heap)
            else:
                break
            if entry != swept._last and counts(*entry):
                swept.push(*entry)
            else:
                dropped += 1
        self._take_to(taken)
        if not self._keys and not heap:
            self._keys, self._ids, self._taken, self._last = swept._keys, swept._ids, swept._taken, swept._last
            self._heap, self._swept = swept._heap, None
        self.first = _lesser(self._first_unswept(), swept.first)
        return dropped

    @property
    def is_swept(self) -> bool:
        """Whether no sweep is under way."""
        return self._swept is None

    def _first_unswept(self) -> tuple[float, int] | None:
        """The first entry of heap and line."""
        heap = self._heap
        if not self._keys:
            return heap[0] if heap else None
        entry = (self._keys[self._taken], self._ids[self._taken])
        return heap[0] if heap and heap[0] < entry else entry

    def _pop_unswept(self, first: tuple[float, int] | None) -> None:
        """Take the first entry of heap and line off: the one that is given."""
        heap, taken = self._heap, self._taken
        if heap and heap[0] == first:
            heappop(heap)
            return
        self._take_to(taken + 1)

    def _take_to(self, taken: int) -> None:
        """So many entries at the front of the line are gone."""
        if taken == len(self._keys):
            self._last = _LEAST
        if taken == len(self._keys) or (taken > _COMPACT_AFTER and 2 * taken > len(self._keys)):
            del self._keys[:taken], self._ids[:taken]
            taken = 0
        self._taken = taken


def _lesser(one: tuple[float, int] | None, other: tuple[float, int] | None) -> tuple[float, int] | None:
    """The lesser of two entries, if there are two."""
    if one is None or other is None:
        return one or other
    return min(one, other)
