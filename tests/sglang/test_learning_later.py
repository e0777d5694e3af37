"""Whose turn a request was is found when its answer is out, after ``process_batch_result``, and learned from when the
server is idle, or a slice at each step if many wait."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix_tlru.learning.records import Turn
from radix_tlru.learning.selector import is_sampled
from radix_tlru.sglang.cache.learning_cache import REPORT_EVERY
from radix_tlru.sglang.requests.turns import fingerprint_of
from radix_tlru.sglang.scheduler.batches import batch_processed, server_idle, sleep_wanted
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


def idle(driver: Driver) -> bool:
    """The scheduler has no batch to run. Returns whether it goes to sleep."""
    slept: list[bool] = []
    scheduler = SimpleNamespace(tree_cache=driver.cache)

    def on_idle(scheduler: SimpleNamespace) -> None:
        sleep_wanted(lambda _: slept.append(True), scheduler)

    server_idle(on_idle, scheduler)
    return bool(slept)


def turn(driver: Driver, draw: random.Random, number: int) -> int:
    history = driver.histories.setdefault(f"{draw.randrange(12)}", [])
    if len(history) > 1_500:
        history.clear()
    history += driver.fresh(draw.randrange(10, 400))
    return driver.request(history, prompt=len(history) - 5, stamp=float(number))


def test_shadows_are_smaller_by_what_running_requests_hold_within_the_tree_and_beside_it() -> None:
    driver = learning("lru")
    learner = driver.cache.tail.learner
    running = driver.fresh(POOL // 2)
    driver.request(running)
    lock, decoded = driver.lock(driver.match(running).last_device_node), driver.allocate(POOL // 4)
    for number in range(600):
        driver.request(driver.fresh(100), prompt=95, stamp=float(number))
    assert learner.room == POOL // 4
    driver.unlock(lock)
    driver.allocator.free(decoded)
    for number in range(600, 1_200):
        driver.request(driver.fresh(100), prompt=95, stamp=float(number))
    assert learner.room == POOL


def test_turns_are_recorded_after_their_batch_and_learned_from_step_by_step() -> None:
    driver, draw = learning(), random.Random(1)
    for number in range(TURNS):
        turn(driver, draw, number)
    learner = driver.cache.tail.learner
    served, sampled, in_force = learner.served.requests, learner.selector.sampled, learner.in_force

    def serve() -> None:
        for number in range(TURNS, TURNS + 3):
            turn(driver, draw, number)
        assert (learner.served.requests, learner.selector.sampled, learner.in_force) == (served, sampled, in_force)

    recorded = [served]
    for serves in (serve, *[lambda: None] * 20):  # that few can wait
        process(driver, serves)
        recorded.append(learner.served.requests)
        assert learner.selector.sampled == sampled
    assert recorded == [served, served + 2, *[served + 3] * 20]
    learned, slept = [0], list[bool]()
    while not any(slept):  # a step each: the turn under three candidates, the verdict, the end; at last a report
        slept.append(idle(driver))
        learned.append(learner.selector.sampled - sampled)
    assert learned == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 3
    assert idle(driver), "nothing is left"
    assert learner.in_force != in_force
    assert driver.cache.tail.policy is learner.policy


def test_a_leaf_that_went_before_its_turn_was_recorded_is_no_fault() -> None:
    driver, draw = learning(), random.Random(5)

    def serve() -> None:
        for number in range(3):
            turn(driver, draw, number)
        driver.evict(POOL)

    process(driver, serve)
    process(driver, lambda: None)
    tail = driver.cache.tail
    assert tail.learner is not None
    assert (tail.learner.served.requests, len(tail.order)) == (3, 0)
    assert not tail.breaker.has_tripped


@pytest.mark.parametrize("tokens", [1_600, 2_100])
def test_what_is_left_of_a_leaf_is_of_the_turn_that_is_recorded_later(tokens: int) -> None:
    """Q̂ is 200: 300 of 700 tokens stay of each. The first 200 are shared: all else of two may go."""
    driver = Driver(our_cache(POOL, policy="tlru", threshold=600, trim_chunk=1))
    shared = driver.fresh(200)

    def serve() -> None:
        for number in range(4):
            driver.request(shared + driver.fresh(500), prompt=690, stamp=float(number))

    process(driver, serve)
    assert driver.cache.tail.has_work, "a step records two of them"
    driver.evict(tokens)
    while not idle(driver):
        pass
    stamps = [leaf.conversation.stamp for leaf in driver.cache.tail.leaves()]
    assert sorted(stamps) == [0.0, 1.0, 2.0, 3.0][-len(stamps) :]


def test_of_two_turns_of_a_conversation_in_one_batch_the_leaf_has_the_last() -> None:
    driver, words = learning(), list(range(1, 301))

    def serve() -> None:
        driver.request(words[:200], prompt=150, stamp=1.0)
        driver.request(words, prompt=250, stamp=2.0)

    process(driver, serve)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.conversation.turn, leaf.conversation.stamp) == (300, 1, 2.0)


def test_a_turn_that_ends_outside_of_a_batch_waits_for_an_idle_moment() -> None:
    """On a prefill server it ends when its KV has been sent, and then its first token is handed on."""
    driver, words = learning(), list(range(300))
    process(driver, lambda: None)
    end_turn(driver, words)
    tail, learner = driver.cache.tail, driver.cache.tail.learner
    assert (learner.served.requests, learner.unlearned, tail.has_work) == (0, 0, True)
    while not idle(driver):
        pass
    assert (learner.served.requests, learner.unlearned) == (1, 0)
    (leaf,) = tail.leaves()
    assert leaf.conversation.stamp == 1.0


def test_without_a_scheduler_it_is_learned_from_a_turn_at_once() -> None:
    driver, words = learning(), list(range(300))
    end_turn(driver, words)
    learner = driver.cache.tail.learner
    assert (learner.served.requests, learner.unlearned, driver.cache.tail.has_work) == (1, 0, False)


def end_turn(driver: Driver, words: list[int]) -> None:
    """Cache the words, and tell the cache of a turn that ends with them, outside of a batch."""
    driver.request(words)
    tail, key = driver.cache.tail, RadixKey(array("q", words))
    turn = Turn(1.0, len(words) - 1, 1, len(words), 0, fingerprint_of(key))
    tail.record_turn(driver.match(words).last_device_node, turn)


def test_what_an_operator_sees_is_brought_up_to_date_when_the_server_is_idle() -> None:
    driver, draw, reports = learning(), random.Random(6), list[int]()
    tail = driver.cache.tail
    driver.cache.tail_metrics = SimpleNamespace(report=lambda: reports.append(tail.learner.served.requests))

    def serve() -> None:
        turn(driver, draw, len(reports))

    process(driver, serve)
    process(driver, serve)
    assert reports == []
    while driver.cache.tail.has_work:
        assert not idle(driver)
        assert reports == []
    assert idle(driver)
    assert reports == [2], "once, when all is learned"


def test_sglang_does_what_it_does_when_idle_first_and_last_and_not_between_our_steps() -> None:
    driver, draw, seen = learning(), random.Random(9), list[bool]()
    scheduler = SimpleNamespace(tree_cache=driver.cache)
    for number in range(TURNS):
        turn(driver, draw, number)
    for _ in range(2):
        process(driver, lambda: turn(driver, draw, TURNS))
        seen.clear()
        steps = 0
        while driver.cache.has_work:
            server_idle(lambda _: seen.append(driver.cache.has_work), scheduler)
            steps += 1
        assert steps > 3
        assert seen == [True, False]
    server_idle(lambda _: seen.append(driver.cache.has_work), scheduler)
    assert seen == [True, False, False], "then each time"


def test_a_server_that_is_never_idle_reports_all_the_same() -> None:
    driver, draw, reports = learning(), random.Random(6), list[int]()
    tail = driver.cache.tail
    driver.cache.tail_metrics = SimpleNamespace(report=lambda: reports.append(tail.learner.served.requests))
    for number in range(200):
        process(driver, lambda number=number: turn(driver, draw, number))
    assert len(reports) >= 200 // REPORT_EVERY
    assert reports == sorted(set(reports))


def test_what_is_looked_up_before_it_is_recorded_is_back_all_the_same() -> None:
    """Of many that end at once the last ones wait, and a look-up does not take longer because of them."""
    driver = learning()
    contexts = [driver.fresh(100) for _ in range(40)]

    def serve() -> None:
        for number, context in enumerate(contexts):
            driver.request(context, prompt=90, stamp=float(number))

    process(driver, serve)
    learner = driver.cache.tail.learner
    assert learner.served.requests == math.ceil(40 / 16)
    for number in (0, 30):  # of which one is recorded
        driver.match([*contexts[number], 1])
    assert learner.served.requests == math.ceil(40 / 16)
    conversations = [leaf.conversation for leaf in driver.cache.tail.leaves()]
    assert sum(conversation.queued_until > learner.now for conversation in conversations) == 2
    while not idle(driver):
        pass
    by_stamp = {leaf.conversation.stamp: leaf.conversation for leaf in driver.cache.tail.leaves()}
    assert sorted(by_stamp) == [float(number) for number in range(40)]
    assert {stamp for stamp, back in by_stamp.items() if back.queued_until > learner.now} == {0.0, 30.0}


def test_a_request_that_is_looked_up_counts_once_among_those_that_are_queued() -> None:
    driver, words = learning(), list(range(100))
    driver.request(words, prompt=90, stamp=1.0)
    driver.match([*words, 100])
    (leaf,) = driver.cache.tail.leaves()
    assert leaf.conversation.turn_index == 1 + 1 / 2, "after the first turn, one of one that is queued"


def test_a_look_up_in_an_empty_tree_makes_nobody_queued() -> None:
    driver = learning()
    driver.request(range(100), prompt=90, stamp=1.0)
    driver.evict(100)
    driver.match(range(100))
    assert driver.cache.tail.learner._queued == 0


def test_a_look_up_that_ends_where_others_go_on_makes_nobody_queued() -> None:
    driver, queued = learning(), list[int]()
    for end in (100, 200):
        driver.request(range(end), prompt=end - 10, stamp=float(end))
    for end in (100, 200):
        driver.match(range(end))
        queued.append(driver.cache.tail.learner._queued)
    assert queued == [0, 1]


def test_a_stage_of_a_pipeline_learns_at_batches_alone() -> None:
    """Others are idle at other steps."""
    driver, draw = learning(), random.Random(8)
    driver.cache.tail.learns_when_idle = False
    for number in range(TURNS):
        turn(driver, draw, number)
    learner = driver.cache.tail.learner
    process(driver, lambda: turn(driver, draw, TURNS))
    assert idle(driver), "it goes to sleep when that is reported"
    assert learner.unlearned == 1
    for _ in range(5):
        process(driver, lambda: None)
    assert learner.unlearned == 0


def test_where_one_is_served_after_the_other_it_makes_no_difference() -> None:
    """But for the leaf of the turn after which another policy is in force: it has a price by then."""
    at_once, later = learning("etlru w=0.6"), learning("etlru w=0.6")
    draws = random.Random(2), random.Random(2)
    for number in range(2 * TURNS):
        found: list[int] = []
        process(later, lambda number=number, found=found: found.append(turn(later, draws[1], number)))
        while not idle(later):
            pass
        assert found == [turn(at_once, draws[0], number)]
        assert later.cache.tail.learner.in_force == at_once.cache.tail.learner.in_force
    assert later.cache.tail.counts == at_once.cache.tail.counts
    assert min(later.cache.tail.counts.values()) > 0


def test_from_many_that_end_at_once_it_is_learned_slice_by_slice_and_in_their_order() -> None:
    """Each processed batch, also one that ends nobody, is the time for a slice; all ranks process the same batches."""
    driver, draw = learning(), random.Random(4)
    for number in range(TURNS):
        turn(driver, draw, number)

    def serve_others(first: int, count: int) -> None:
        for number in range(first, first + count):
            driver.request(driver.fresh(50), prompt=45, stamp=float(number))

    learner, replayed = driver.cache.tail.learner, list[float]()
    shadows = learner.selector._shadows.values()
    for shadow in shadows:
        serve = shadow.serve_in_steps
        shadow.serve_in_steps = lambda conversation, turn, serve=serve: (
            replayed.append(turn.stamp),
            serve(conversation, turn),
        )[1]
    recorded = [learner.served.requests]
    process(driver, lambda: serve_others(TURNS, 40))
    counts = [0, len(replayed)]
    for _ in range(400):
        recorded.append(learner.served.requests)
        process(driver, lambda: None)
        counts.append(len(replayed))
    assert [after - before for before, after in pairwise(recorded)][:9] == [3, 3, 3, 2, 2, 2, 2, 2, 2]
    slices = [after - before for before, after in pairwise(counts)]
    assert max(slices) == 2, "of a 128th part of the steps that wait, half are those of shadows"
    assert sum(slices[10:30]) > sum(slices[40:60]) > 9, "of fewer turns that wait a slice is less"
    last = max(place for place, count in enumerate(slices) if count)
    assert set(slices[last - 10 :]) == {0, 1}
    assert learner.unlearned == 8, "which can wait until the server is idle"
    while not idle(driver):
        pass
    process(driver, lambda: serve_others(TURNS + 40, 9))
    turn(driver, draw, TURNS + 49)  # outside of a batch: nothing is left over
    assert replayed == [float(number) for number in range(TURNS, TURNS + 50) for _ in shadows]


def test_however_many_end_at_once_a_later_step_records_four_and_learns_eight_steps() -> None:
    driver = learning()
    learner = driver.cache.tail.learner
    for number in range(TURNS):
        driver.request(driver.fresh(20), prompt=15, stamp=float(number))

    def serve(first: int, count: int) -> None:
        for number in range(first, first + count):
            driver.request(driver.fresh(20), prompt=15, stamp=float(number))

    recorded = [learner.served.requests]
    for count in (400, *[0] * 120):
        process(driver, lambda count=count: serve(TURNS, count))
        recorded.append(learner.served.requests)
    steps = [after - before for before, after in pairwise(recorded)]
    assert steps[0] == 16, "the step in which they end does more"
    assert set(steps[1:20]) == {4}
    assert sum(steps) == 400
    assert learner.selector is not None
    first = learner.served.requests - learner.unlearned
    process(driver, lambda: None)
    last = learner.served.requests - learner.unlearned
    # One that the shadows serve takes five: three shadows, the verdict, the end. The first of them may be under way.
    taken = [5 if is_sampled(number, learner.selector.one_in) else 1 for number in range(first + 1, last + 1)]
    assert 0 < sum(taken) <= 8 + 4


def test_turns_never_pile_up_where_five_end_in_each_step() -> None:
    """Of 2,500 turns. Until a 16th of those that wait is five, more come than are recorded; so with a 128th."""
    driver, waiting, left = learning(), list[int](), list[int]()
    tail = driver.cache.tail
    for step in range(500):
        stamps = range(5 * step, 5 * step + 5)
        process(driver, lambda stamps=stamps: [driver.request(driver.fresh(20), stamp=float(at)) for at in stamps])
        waiting.append(len(tail._unrecorded))
        left.append(tail.learner.unlearned)
    assert 8 <= max(waiting) <= 16 * 5
    assert 8 <= max(left) <= 128 * 5


def test_a_batch_that_cannot_be_processed_leaves_learning_as_it_was() -> None:
    driver, draw = learning(), random.Random(3)

    def fail() -> None:
        raise ValueError("of SGLang")

    with pytest.raises(ValueError, match="of SGLang"):
        process(driver, fail)
    for number in range(TURNS):
        turn(driver, draw, number)
    assert driver.cache.tail.learner.selector.sampled > 0
