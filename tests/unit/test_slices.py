"""Learning in slices: how much of what waits a step of the scheduler does."""

from __future__ import annotations

import math

from radix_tlru import Config
from radix_tlru.learning.learner import Learner, steps_of_a_slice
from tests.helpers.turns import NEXT_PROMPT, PAGE, THRESHOLD, turn


def test_a_slice_is_a_128th_of_what_waits_and_at_most_8_steps_or_those_of_what_came_since() -> None:
    learner = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)  # four steps a turn once there are shadows
    finished = []
    for recorded in (1_000, 0, 2):
        for number in range(recorded):
            learner.record_turn(turn(float(number), 900, 900, number), learns_later=True)
        finished.append(learner.learn(a_slice=True))
    # Of the first 50 turns each is a step. 1,000 · 4 / 128 = 31.25, and 8 of the next 30.25 and 30.06.
    assert finished == [32, 8, 8]


def test_what_waits_is_bounded_on_a_server_that_is_never_idle_whatever_its_turns_take() -> None:
    """10 turns come in each step, of six steps of learning where a slice counts on five. The 4,096 first may wait."""
    waiting = 0  # steps
    for _ in range(5_000):
        waiting += 10 * 6
        waiting -= steps_of_a_slice(math.ceil(waiting / 6), 5, 10)
    assert 4_096 * 6 < waiting < (4_096 + 2 * 10) * 6
