"""Whose turn a request was is found, and learned from, when its answer is out: after ``process_batch_result``."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from radix_tlru.sglang.scheduler.batches import batch_processed
from tests.helpers.caches import Driver, our_cache
from tests.helpers.rules import InTurn

pytestmark = pytest.mark.usefixtures("tree_core")

POOL, TURNS = 4_000, 120


def learning(*names: str) -> Driver:
    """A cache that evicts by the next of these candidates (of all) after every second turn that its shadows served."""
    driver = Driver(our_cache(POOL, policy="etlru", threshold=600, next_prompt_estimate=20))
    driver.cache.tail.learner.rule = InTurn(names or list(driver.cache.tail.learner.candidates), turns=2)
    return driver


def process(driver: Driver, serve: Callable[[], object]) -> None:
    """The scheduler processes the result of a batch, by which requests are served."""
    batch = SimpleNamespace(launch_ts=None)
    batch_processed(lambda *_: serve(), SimpleNamespace(tree_cache=driver.cache, device="cpu"), batch)


def turn(driver: Driver, draw: random.Random, number: int) -> int:
    history = driver.histories.setdefault(f"{draw.randrange(12)}", [])
    if len(history) > 1_500:
        history.clear()
    history += driver.fresh(draw.randrange(10, 400))
    return driver.request(history, prompt=len(history) - 5, stamp=float(number))


def test_turns_are_recorded_when_their_batch_was_processed_and_learned_from_step_by_step() -> None:
    driver, draw = learning(), random.Random(1)
    for number in range(TURNS):
        turn(driver, draw, number)
    learner = driver.cache.tail.learner
    served, sampled, in_force = learner.served.requests, learner.selector.sampled, learner.in_force

    def serve() -> None:
        for number in range(TURNS, TURNS + 3):
            turn(driver, draw, number)
        assert (learner.served.requests, learner.selector.sampled, learner.in_force) == (served, sampled, in_force)

    learned, processed = [0], [serve, *[lambda: None] * 18]
    for serves in processed:  # a step each: an estimate, the turn under each of three candidates, the verdict, the end
        process(driver, serves)
        learned.append(learner.selector.sampled - sampled)
        assert learner.served.requests == served + 3
    assert learned == [0] * 5 + [1] * 6 + [2] * 6 + [3] * 3
    assert learner.in_force != in_force
    assert driver.cache.tail.policy is learner.policy


def test_a_leaf_that_went_before_its_turn_was_recorded_is_no_fault() -> None:
    driver, draw = learning(), random.Random(5)

    def serve() -> None:
        for number in range(3):
            turn(driver, draw, number)
        driver.evict(POOL)

    process(driver, serve)
    tail = driver.cache.tail
    assert tail.learner is not None
    assert (tail.learner.served.requests, len(tail.order)) == (3, 0)
    assert not tail.breaker.has_tripped


def test_of_a_turn_that_is_continued_in_the_same_batch_the_last_one_is_written_on_the_leaf() -> None:
    driver, words = learning(), list(range(1, 301))

    def serve() -> None:
        driver.request(words[:200], prompt=150, stamp=1.0)
        driver.request(words, prompt=250, stamp=2.0)

    process(driver, serve)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.conversation.turn, leaf.conversation.stamp) == (300, 1, 2.0)


def test_what_an_operator_sees_is_brought_up_to_date_when_the_batch_was_processed() -> None:
    driver, draw, reports = learning(), random.Random(6), list[int]()
    tail = driver.cache.tail
    driver.cache.tail_metrics = SimpleNamespace(report=lambda: reports.append(tail.learner.served.requests))

    def serve() -> None:
        turn(driver, draw, 0)
        turn(driver, draw, 1)
        assert reports == []

    process(driver, serve)
    process(driver, lambda: None)
    assert reports == [2]


def test_where_one_is_served_after_the_other_it_makes_no_difference() -> None:
    """But for the leaf of the turn after which another policy is in force: it has a price by then."""
    at_once, later = learning("etlru w=0.6"), learning("etlru w=0.6")
    draws = random.Random(2), random.Random(2)
    for number in range(2 * TURNS):
        found: list[int] = []
        process(later, lambda number=number, found=found: found.append(turn(later, draws[1], number)))
        for _ in range(5):
            process(later, lambda: None)
        assert found == [turn(at_once, draws[0], number)]
        assert later.cache.tail.learner.in_force == at_once.cache.tail.learner.in_force
    assert later.cache.tail.counts == at_once.cache.tail.counts
    assert min(later.cache.tail.counts.values()) > 0


def test_from_many_that_end_at_once_it_is_learned_slice_by_slice_and_in_their_order() -> None:
    """Each processed batch, also one that ends nobody, is the time for a slice; all ranks process the same batches."""
    driver, draw = learning(), random.Random(4)
    for number in range(TURNS):
        turn(driver, draw, number)
    replayed = list[float]()
    shadows = driver.cache.tail.learner.selector._shadows.values()
    for shadow in shadows:
        serve = shadow.serve
        shadow.serve = lambda conversation, turn, serve=serve: (replayed.append(turn.stamp), serve(conversation, turn))[
            1
        ]
    process(driver, lambda: [turn(driver, draw, number) for number in range(TURNS, TURNS + 30)])
    counts = [0, len(replayed)]
    while len(replayed) < 30 * len(shadows):
        process(driver, lambda: None)
        counts.append(len(replayed))
    slices = [after - before for before, after in pairwise(counts)]
    assert slices[0] == max(slices) == 3, "of the 32nd part of 180 steps every other one is that of a shadow"
    assert sum(slices[:20]) > sum(slices[20:40]) > 20, "of fewer turns that wait a slice is less"
    assert set(slices[-20:]) == {0, 1}
    process(driver, lambda: [turn(driver, draw, number) for number in range(TURNS + 30, TURNS + 39)])
    assert len(replayed) < 31 * len(shadows) + 3
    turn(driver, draw, TURNS + 39)  # outside of a batch: nothing is left over
    assert replayed == [float(number) for number in range(TURNS, TURNS + 40) for _ in shadows]


def test_a_batch_that_cannot_be_processed_leaves_learning_as_it_was() -> None:
    driver, draw = learning(), random.Random(3)

    def fail() -> None:
        raise ValueError("of SGLang")

    with pytest.raises(ValueError, match="of SGLang"):
        process(driver, fail)
    for number in range(TURNS):
        turn(driver, draw, number)
    assert driver.cache.tail.learner.selector.sampled > 0
