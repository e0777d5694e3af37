"""A priority queue for keys that mostly rise: a bucket of an order, or the times at which its groups expire.

Keys of a bucket are times of last use, and a leaf becomes evictable soon after it is used. So nearly every entry has a
higher key than the one before. Such entries are appended to a line: two machine words each, O(1) to add and to take.
What arrives out of order, such as the front of a leaf that was trimmed, goes into a heap. An entry of the heap is bytes
that sort as entries do: Python's garbage collector would look at thousands of pairs.

Entries that do not count any more are dropped by a sweep, some at a time. Swept entries that still count move into a
second queue. When nothing is left to sweep, that one takes the place of the first.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice
from struct import Struct

__all__ = ["MonotoneQueue"]

_COMPACT_AFTER = 1024  # entries taken off the line before the others are moved to its front
_LEAST = (-math.inf, 0)
_PACKED = Struct(">?dQ")  # key > 0, key, id


class MonotoneQueue:
    """A priority queue of (key, leaf id), least pair first."""

    __slots__ = ("_heap", "_heap_first", "_ids", "_keys", "_last", "_swept", "_taken", "first")

    first: tuple[float, int] | None
    """The least entry; None if there is none."""

    def __init__(self) -> None:
        self._keys, self._ids = array("d"), array("q")
        self._taken = 0  # entries at the front of the line that are gone
        self._last = _LEAST  # entry of the line
        self._heap: list[bytes] = []
        self._heap_first: tuple[float, int] | None = None  # entry of the heap
        self._swept: MonotoneQueue | None = None  # during a sweep: the entries that it has kept
        self.first = None

    def __len__(self) -> int:
        swept = len(self._swept) if self._swept is not None else 0
        return len(self._keys) - self._taken + len(self._heap) + swept

    def in_order(self) -> Iterator[tuple[float, int]]:
        """All entries, the least first. The queue must not change meanwhile."""
        line = zip(islice(self._keys, self._taken, None), islice(self._ids, self._taken, None), strict=True)
        swept = self._swept.in_order() if self._swept is not None else ()
        return merge(self._heap_in_order(), line, swept)

    def _heap_in_order(self) -> Iterator[tuple[float, int]]:
        """The entries of the heap, each once its parent was taken: the first few cost little."""
        heap = self._heap
        reached = [(heap[0], 0)] if heap else []
        while reached:
            entry, position = heappop(reached)
            yield _unpacked(entry)
            for below in range(2 * position + 1, min(2 * position + 3, len(heap))):
                heappush(reached, (heap[below], below))

    def up_to(self, key: float) -> Iterator[tuple[float, int]]:
        """The entries with that key or less, in any order. The queue must not change meanwhile."""
        positions, heap = [0], self._heap  # what is below a higher key in the heap is higher
        while positions:
            position = positions.pop()
            if position < len(heap) and (entry := _unpacked(heap[position]))[0] <= key:
                yield entry
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
            heappush(self._heap, _PACKED.pack(True, key, leaf_id) if key > 0.0 else _mirrored(key, leaf_id))
            if self._heap_first is None or entry < self._heap_first:
                self._heap_first = entry
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
        keys, ids, taken = self._keys, self._ids, self._taken
        dropped = 0
        for _ in range(most):  # in line, as every leaf that is added pays for a sweep
            least = self._heap_first
            if taken < len(keys) and (least is None or (keys[taken], ids[taken]) <= least):
                entry = (keys[taken], ids[taken])
                taken += 1
            elif least is not None:
                entry = least
                self._pop_heap()
            else:
                break
            if entry != swept._last and counts(*entry):
                swept.push(*entry)
            else:
                dropped += 1
        self._take_to(taken)
        if not self._keys and self._heap_first is None:
            self._keys, self._ids, self._taken, self._last = swept._keys, swept._ids, swept._taken, swept._last
            self._heap, self._heap_first, self._swept = swept._heap, swept._heap_first, None
        self.first = _lesser(self._first_unswept(), swept.first)
        return dropped

    @property
    def is_swept(self) -> bool:
        """Whether no sweep is under way."""
        return self._swept is None

    def _first_unswept(self) -> tuple[float, int] | None:
        """The first entry of heap and line."""
        if not self._keys:
            return self._heap_first
        entry, least = (self._keys[self._taken], self._ids[self._taken]), self._heap_first
        return entry if least is None or entry < least else least

    def _pop_unswept(self, first: tuple[float, int] | None) -> None:
        """Take the first entry of heap and line off: the one that is given."""
        if self._heap_first is not None and self._heap_first == first:
            self._pop_heap()
        else:
            self._take_to(self._taken + 1)

    def _pop_heap(self) -> None:
        """Take the least entry off the heap."""
        heap = self._heap
        heappop(heap)
        if heap:
            is_positive, key, leaf_id = _PACKED.unpack(heap[0])  # in line, as every decision pays for it
            self._heap_first = (key, leaf_id) if is_positive else _unpacked(heap[0])
        else:
            self._heap_first = None

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


def _mirrored(key: float, leaf_id: int) -> bytes:
    """An entry as bytes, whose key is not above 0: the lower, the less."""
    packed = _PACKED.pack(False, -key or 0.0, leaf_id)
    return bytes([0, *(255 - byte for byte in packed[1:9]), *packed[9:]])


def _unpacked(entry: bytes) -> tuple[float, int]:
    """The key and the leaf's id."""
    is_positive, key, leaf_id = _PACKED.unpack(entry)
    if is_positive:
        return key, leaf_id
    _, key, leaf_id = _PACKED.unpack(bytes([0, *(255 - byte for byte in entry[1:9]), *entry[9:]]))
    return -key, leaf_id
