"""The queue that leaves wait in, beside Python's heap."""

from __future__ import annotations

from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.policy.monotone_queue import MonotoneQueue

KEYS = st.one_of(st.integers(0, 20), st.floats(-5, 5), st.none())  # None: take the first off


@given(st.lists(KEYS, max_size=200))
def test_it_gives_what_a_heap_gives(steps: list[float | None]) -> None:
    queue: MonotoneQueue = MonotoneQueue()
    heap: list[tuple[float, int]] = []
    for number, key in enumerate(steps):
        if key is not None:
            heappush(heap, (key, number))
            assert queue.push(key, number) == (heap[0] == (key, number))
        elif heap:
            heappop(heap)
            queue.pop()
        assert queue.first == (heap[0] if heap else None)
        assert list(queue.in_order()) == sorted(heap)
    queue.clear()
    assert queue.first is None
    assert list(queue.in_order()) == []
    assert queue.push(0, 0), "as new"


def test_the_line_moves_up_and_nobody_loses_a_place() -> None:
    queue, left = MonotoneQueue(), 0
    for number in range(10_000):
        queue.push(number, number)
        if number % 4:  # it grows, and what was taken off is given back meanwhile
            assert queue.first == (left, left)
            queue.pop()
            left += 1
    assert [leaf_id for _, leaf_id in queue.in_order()] == list(range(left, 10_000))
    queue.push(left - 1, left - 1)  # out of turn
    assert queue.first == (left - 1, left - 1)
    for number in range(left - 1, 10_000):
        assert queue.first == (number, number)
        queue.pop()
    assert queue.first is None
    assert queue.push(0, 0), "an empty line takes anything"
