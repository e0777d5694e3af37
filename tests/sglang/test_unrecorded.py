"""Turns that wait to be recorded while their cache is emptied, or what continues them is prefilled.

To record a turn takes as long as to cache it, and after a step that ends a thousand requests as many wait. So nothing
may wait until all of them are recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix_tlru.hints.schema import Hints
from radix_tlru.learning.records import Turn
from radix_tlru.sglang.cache.unrecorded import ServedTurn, UnrecordedTurns
from radix_tlru.sglang.requests.turns import fingerprint_of
from radix_tlru.sglang.scheduler.batches import batch_processed
from tests.helpers.caches import Driver, our_cache

pytestmark = pytest.mark.usefixtures("tree_core")

POOL, TOKENS, MANY = 4_000, 50, 40
MOST_IN_A_STEP = 4


@pytest.fixture
def driver() -> Driver:
    return Driver(our_cache(POOL, policy="etlru", threshold=600, next_prompt_estimate=20))


def process(driver: Driver, serve: Callable[[], object]) -> None:
    """The scheduler processes the result of a batch, by which requests are served."""
    scheduler = SimpleNamespace(tree_cache=driver.cache, device="cpu")
    batch_processed(lambda *_: serve(), scheduler, SimpleNamespace(launch_ts=None))


def idle(driver: Driver) -> None:
    """The server has no batch to run until nothing waits."""
    while driver.cache.has_work:
        driver.cache.use_idle_time()


def flush(driver: Driver) -> None:
    """As SGLang does on ``/flush_cache``."""
    driver.cache.reset()
    driver.allocator.clear()


def end_many(driver: Driver, hints: Hints | None = None) -> list[list[int]]:
    """Requests of 40 tokens with answers of 10, in one step. Returns their contexts."""
    contexts = [driver.fresh(TOKENS) for _ in range(MANY)]

    def serve() -> None:
        for number, words in enumerate(contexts):
            driver.request(words)
            served = Turn(float(number), 40, 10, TOKENS, 0, fingerprint_of(RadixKey(array("q", words))), hints)
            driver.cache.tail.record_turn(driver.match(words).last_device_node, served)

    process(driver, serve)
    return contexts


def test_a_flush_records_none_of_those_that_wait_and_they_are_of_no_node_of_the_next_tree(driver: Driver) -> None:
    end_many(driver)
    learner = driver.cache.tail.learner
    before = learner.served.requests
    flush(driver)
    assert learner.served.requests == before < MANY
    words = driver.fresh(TOKENS)
    process(driver, lambda: driver.request(words))
    idle(driver)
    assert learner.served.requests == MANY
    assert not driver.cache.tail._unrecorded._at, "nothing is kept of those that were recorded"
    (leaf,) = driver.cache.tail.leaves()
    assert leaf.conversation is None


def test_after_a_flush_what_was_claimed_of_the_tree_before_fills_no_quota(driver: Driver) -> None:
    end_many(driver, Hints(returns_in_s=60.0))
    flush(driver)
    idle(driver)
    learner = driver.cache.tail.learner
    assert (learner.served.requests, learner._quota._held) == (MANY, {})


def test_what_is_prefilled_ahead_is_recorded_after_those_that_wait(driver: Driver) -> None:
    """It goes on with the prompt of one of them, without the answer as that was cached."""
    contexts = end_many(driver)
    goes_on = [*contexts[30][:40], *driver.fresh(20)]
    learner = driver.cache.tail.learner
    before = learner.served.requests

    def serve() -> None:
        driver.request(goes_on)
        ahead = Turn(float(MANY), 60, 0, 60, 40, fingerprint_of(RadixKey(array("q", goes_on))))
        driver.cache.tail.record_prefill(driver.match(goes_on).last_device_node, ahead)

    process(driver, serve)
    assert learner.served.requests - before <= MOST_IN_A_STEP
    idle(driver)
    assert learner.served.requests == MANY
    (leaf,) = (leaf for leaf in driver.cache.tail.leaves() if leaf.end == 60)
    assert (leaf.conversation.number, leaf.conversation.context_len) == (31, 60)


@pytest.mark.parametrize(("ends", "waiting"), [(16, 225), (17, 4_096), (80, 4_096)])
def test_turns_that_end_faster_than_16_a_step_do_not_pile_up(ends: int, waiting: int) -> None:
    """A step records 16 of them. Each holds its prompt, and answers of one token may be asked for, for hours."""
    turns = UnrecordedTurns()
    turn = Turn(0.0, 49, 1, TOKENS, 0, fingerprint_of(RadixKey(array("q", range(TOKENS)))))
    left = []
    for _ in range(5_000):
        for _ in range(ends):
            turns.add(ServedTurn(1, turn, "", is_leaf=True))
        assert len([*turns.take(turns.in_a_step)]) <= max(ends, 16)
        left.append(len(turns))
    assert max(left) == waiting
