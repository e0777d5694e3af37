"""A priority queue for keys that mostly rise: a bucket of :class:`~radix_tlru.policy.order.EvictionOrder`.

Keys are times of last use, and a leaf becomes evictable soon after it is used. So nearly every entry has a higher key
than the one before. Such entries are appended to a line: two machine words each, O(1) to add and to take. What arrives
out of order, such as the front of a leaf that was trimmed, goes into a heap.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from heapq import heappop, heappush, merge
from itertools import islice

__all__ = ["MonotoneQueue"]

_COMPACT_AFTER = 1024  # entries taken off the line before the others are moved to its front
_LEAST = (-math.inf, 0)


class MonotoneQueue:
    """A priority queue of (key, leaf id), least pair first."""

    __slots__ = ("_heap", "_ids", "_keys", "_last", "_taken", "first")

    first: tuple[float, int] | None
    """The least entry; None if there is none."""

    def __init__(self) -> None:
        self._keys, self._ids = array("d"), array("q")
        self._taken = 0  # entries at the front of the line that are gone
        self._last = _LEAST  # entry of the line
        self._heap: list[tuple[float, int]] = []
        self.first = None

    def __len__(self) -> int:
        return len(self._keys) - self._taken + len(self._heap)

    def in_order(self) -> Iterator[tuple[float, int]]:
        """All entries, the least first. The queue must not change meanwhile."""
        line = zip(islice(self._keys, self._taken, None), islice(self._ids, self._taken, None), strict=True)
        return merge(sorted(self._heap), line)

    def clear(self) -> None:
        """Drop all entries."""
        self._keys, self._ids = array("d"), array("q")
        self._taken, self._last, self.first = 0, _LEAST, None
        self._heap.clear()

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
        heap, taken = self._heap, self._taken
        if heap and heap[0] == self.first:
            heappop(heap)
        else:
            taken += 1
            if taken == len(self._keys):
                self._last = _LEAST
                taken = self._compact(taken)
            elif taken > _COMPACT_AFTER and 2 * taken > len(self._keys):
                taken = self._compact(taken)
            self._taken = taken
        if not self._keys:
            self.first = heap[0] if heap else None
            return
        entry = (self._keys[taken], self._ids[taken])
        self.first = heap[0] if heap and heap[0] < entry else entry

    def _compact(self, taken: int) -> int:
        del self._keys[:taken], self._ids[:taken]
        return 0
