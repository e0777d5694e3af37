"""The queue that leaves wait in, beside Python's heap."""

from __future__ import annotations

from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.policy.monotone_queue import MonotoneQueue

KEYS = st.one_of(st.integers(0, 20), st.floats(-5, 5), st.none())  # None: take the first off
SWEPT = st.tuples(st.just("sweep"), st.integers(1, 9))


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


@given(st.lists(st.one_of(KEYS, SWEPT), max_size=200))
def test_a_sweep_drops_what_does_not_count_and_nothing_else(steps: list[float | tuple[str, int] | None]) -> None:
    """Whatever is added and taken meanwhile. Here odd numbers do not count."""
    queue = MonotoneQueue()
    held: list[tuple[float, int]] = []
    looks: list[tuple[float, int]] = []

    def counts(key: float, number: int) -> bool:
        looks.append((key, number))
        return number % 2 == 0

    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            looks.clear()
            before = len(queue)
            assert before - queue.sweep(step[1], counts) == len(queue)
            assert len(looks) <= step[1]
            held = [entry for entry in held if entry not in looks or entry[1] % 2 == 0]
        elif step is not None:
            held.append((step, number))
            assert queue.push(step, number) == (min(held) == (step, number))
        elif held:
            held.remove(min(held))
            queue.pop()
        assert queue.first == min(held, default=None)
        assert list(queue.in_order()) == sorted(held)
        assert sorted(queue.up_to(10)) == sorted(entry for entry in held if entry[0] <= 10)
    while queue.sweep(3, counts) or not queue.is_swept:
        pass
    assert list(queue.in_order()) == sorted(entry for entry in held if entry[1] % 2 == 0)


def test_a_sweep_keeps_one_of_two_equal_entries() -> None:
    queue = MonotoneQueue()
    for key, leaf_id in ((1, 7), (2, 8), (3, 9), (1, 7), (2, 8), (2, 8)):
        queue.push(key, leaf_id)
    assert queue.sweep(100, lambda key, leaf_id: True) == 3
    assert queue.is_swept
    assert list(queue.in_order()) == [(1, 7), (2, 8), (3, 9)]


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
