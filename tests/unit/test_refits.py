"""When another model is in force: by the number of turns, or because predictions do not hold; a slice at each turn."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest

from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.refits import Refits
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.learning.turn_log import TurnLog
from tests.helpers.plain_hazards import random_features

FIRST, FEWEST, MOST = 64, 32, 500
SLICES = 75  # turns that a fit takes at most where one does a single slice
KINDS = 32 - 2  # slices more in which kinds of turns get their indexes after 2,500 turns than after 100


def moments(
    seed: int, turns: int, wait_s: Callable[[int], float] = lambda number: 60.0, returning: float = 0.5
) -> list[int]:
    """Numbers of the turns at which another model came into force.

    Of a random stream in which a conversation returns with that probability, after waits of an exponential
    distribution, whose mean may depend on the number of the turn.
    """
    log, random = TurnLog(), Random(seed)
    refits, found = Refits(log), []
    coming: list[tuple[float, int]] = []  # returns, by serial number
    begins = 0.0
    for number in range(1, turns + 1):
        if coming and coming[0][0] < begins:
            at, serial = heappop(coming)
            log.write_return(serial, at)
        else:
            at, begins = begins, begins + random.expovariate(1.0)
        serial = log.write_turn(random_features(random), at)
        if random.random() < returning:
            heappush(coming, (at + random.expovariate(1.0 / wait_s(number)), serial))
        if refits.count_turn():
            found.append(number)
    return found


def test_while_predictions_hold_models_come_into_force_at_the_same_turns_whatever_was_seen() -> None:
    found = moments(1, 6_000)
    assert found == moments(2, 6_000) == moments(3, 6_000, returning=0.2) == moments(4, 6_000, lambda _: 10.0)


def test_the_first_fit_begins_at_64_turns_and_the_others_when_a_quarter_was_added() -> None:
    found = moments(1, 12_000)
    assert FIRST < found[0] <= FIRST + 15, "four slices a turn"
    for earlier, later in pairwise(found):
        wait = min(max(earlier // 4, FEWEST), MOST)
        assert abs(later - earlier - wait) <= SLICES
    assert found[-1] > 12_000 - MOST - SLICES, "it goes on for ever"
    assert all(later - earlier == MOST for earlier, later in pairwise(found) if earlier > 4 * MOST + SLICES)


@pytest.mark.parametrize(("before_s", "after_s"), [(300.0, 5.0), (5.0, 300.0)])
def test_where_returns_are_not_as_predicted_a_fit_begins_within_200_turns(before_s: float, after_s: float) -> None:
    """A look comes every 100 turns, and shows what has come until then."""
    changes_at = 4_100
    steady, found = (
        moments(1, 5_000, lambda number, then_s=then_s: before_s if number < changes_at else then_s)
        for then_s in (before_s, after_s)
    )
    assert [each for each in found if each < changes_at] == [each for each in steady if each < changes_at]
    assert not [each for each in steady if changes_at <= each < changes_at + 200 + SLICES]
    assert [each for each in found if changes_at <= each < changes_at + 200 + SLICES]
    assert found == moments(1, 5_000, lambda number: before_s if number < changes_at else after_s), "the same each time"


def test_a_fit_of_many_turns_is_spread_over_more_turns_than_one_of_few() -> None:
    """Each turn does a slice. Where a slice is short a turn does four."""

    def turns_taken(begin_at: int) -> int:
        log, random = TurnLog(), Random(0)
        refits = Refits(log)
        refits._begin_at = refits._check_at = begin_at
        for number in range(1, begin_at + 100):
            log.write_turn(random_features(random), float(number))
            if refits.count_turn():
                return number - begin_at + 1
        raise AssertionError("no model came into force")

    assert turns_taken(2_500) - KINDS == pytest.approx(4 * turns_taken(100), abs=3)
    assert turns_taken(100) > 1, "no turn does all of it"


@pytest.mark.parametrize(("before", "begins"), [(0, 64), (400, 500)])
def test_after_a_restart_the_next_fit_begins_when_a_quarter_was_added(before: int, begins: int) -> None:
    log, again = TurnLog(), TurnLog()
    for number in range(before):
        log.write_turn(NOTHING_KNOWN, float(number))
    again.restore(log.snapshot())
    refits = Refits(again)
    refits.restore(HazardModel())
    while not refits.under_way:
        again.write_turn(NOTHING_KNOWN, 1.0)
    assert again.written == begins


def test_a_refit_replaces_the_model_with_one_of_the_data_at_its_start() -> None:
    log = TurnLog()
    refits = Refits(log)
    before = refits.model
    models = []
    for number in range(400):
        serial = log.write_turn(NOTHING_KNOWN, 10.0 * number)
        log.write_return(serial, 10.0 * number + 6.0)
        if number == FIRST - 1:
            *_, expected = before.fit(log.intervals())
            assert expected is not None
        is_new = refits.count_turn()
        assert is_new == (refits.model is not (models[-1] if models else before))
        if is_new:
            models.append(refits.model)
    assert len(models) > 3
    assert models[0].base.tobytes() == expected.base.tobytes()
    assert refits.model.hazards(NOTHING_KNOWN)[2] > before.hazards(NOTHING_KNOWN)[2], "all return after 6 s"


def test_a_model_knows_what_kinds_of_turns_are_worth_before_it_comes_into_force() -> None:
    """Or the first decisions by it would ask for dozens of indexes."""
    log, random = TurnLog(), Random(0)
    refits = Refits(log)
    kinds = [random_features(random) for _ in range(5)]
    number = 0
    while not refits.count_turn():
        log.write_turn(kinds[number % 5], float(number))
        number += 1
    model = refits.model
    assert set(model.indexes) == set(kinds)
    for kind in kinds:
        assert model.indexes[kind] == HazardModel(model.base, model.effects).index(kind)
