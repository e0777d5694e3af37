"""Whether predicted returns can be held against those that came: counts are exact, and true hazards come true."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.learning.age_bands import BANDS, MIDDLES, SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.refits import Refits
from radix_tlru.learning.reliability import Reliability, ReturnsByAge
from radix_tlru.learning.turn_features import NOTHING_KNOWN, SIZES, Feature, Features
from radix_tlru.learning.turn_log import TurnLog
from tests.helpers.examples import examples
from tests.helpers.plain_hazards import Interval, PlainModel, as_arrays, drawn, overlap


def by_hand(hazard: Callable[[float], float]) -> HazardModel:
    """A model of a hazard by age (1 / s), the same for all."""
    return HazardModel(np.array([np.log(hazard(float(middle)) * middle / 0.3) for middle in MIDDLES]))


def count(reliability: Reliability, model: HazardModel, log: TurnLog) -> None:
    for _ in reliability.count(model, log.intervals(), log.now):
        pass


def test_what_is_predicted_is_the_hazard_times_the_time_watched() -> None:
    log, reliability = TurnLog(), Reliability()
    model = by_hand(lambda age: 0.01 if age < 22 else 0.002)
    back = log.write_turn(NOTHING_KNOWN, 100.0)
    log.write_turn(NOTHING_KNOWN, 100.0)
    log.write_return(back, 110.0)
    count(reliability, model, log)
    early, late, *_ = reliability.by_age
    assert early == pytest.approx((20.0, 20 * 0.01, 1))  # both were silent for 10 s
    assert late == ReturnsByAge(0.0, 0.0, 0)
    log.write_turn(NOTHING_KNOWN, 125.0)
    count(reliability, model, log)
    early, late, *_ = reliability.by_age
    # The band that ends at 22.6 s is of the first group, which is said to end at 22 s.
    assert early == pytest.approx((20.0 + 12.0, 0.01 * (32.0 + BANDS[6] - 22.0), 1))
    assert late == pytest.approx((3.0, 0.002 * (25.0 - BANDS[6]), 0))


def test_each_time_is_predicted_by_the_model_that_was_in_force_then() -> None:
    log, reliability = TurnLog(), Reliability()
    log.write_turn(NOTHING_KNOWN, 0.0)
    for end, hazard in ((4.0, 0.5), (8.0, 0.25), (16.0, 0.125)):
        log.write_end(log.write_turn(NOTHING_KNOWN, end))
        count(reliability, by_hand(lambda age, hazard=hazard: hazard), log)
    assert reliability.by_age[0].predicted == pytest.approx(4 * 0.5 + 4 * 0.25 + 8 * 0.125)


@pytest.mark.parametrize(
    ("predicted", "returns", "holds"),
    [
        (100, 190, True),  # 150, and 4 · √100
        (100, 191, False),
        (100, 40, True),  # 1.5 times 40, and 4 · √100
        (100, 39, False),
        (0.5, 8, True),  # 0.75, and 4 · √4
        (0.5, 9, False),
        (16, 0, True),
        (17, 0, False),
    ],
)
def test_predictions_hold_unless_far_more_or_fewer_come(predicted: float, returns: int, holds: bool) -> None:
    log, reliability, waited_s = TurnLog(), Reliability(), predicted / 200
    silent = [log.write_turn(NOTHING_KNOWN, 0.0) for _ in range(200)]
    for serial in silent[:returns]:
        log.write_return(serial, waited_s)
    log.write_turn(NOTHING_KNOWN, waited_s)
    count(reliability, by_hand(lambda age: 1.0), log)
    assert reliability.by_age[0][1:] == (pytest.approx(predicted), returns)
    assert reliability.holds is holds


eighths = st.integers(0, 3_000).map(lambda number: number / 8)  # s, so that sums are exact
steps = st.lists(
    st.tuples(
        eighths.filter(bool),
        st.sampled_from(["turn", "turn", "return", "end", "supersede", "count"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(steps, st.integers(0, 3))
def test_all_time_and_every_return_is_counted_once(steps_taken: list[tuple[float, str, int]], seed: int) -> None:
    """However often it is counted, and whatever becomes of conversations between two counts."""
    log, reliability = TurnLog(), Reliability()
    random = np.random.default_rng(seed)
    model = HazardModel(random.normal(size=len(BANDS)), tuple(random.normal(size=(size, len(SPANS))) for size in SIZES))
    open_rows: list[int] = []
    superseded: set[int] = set()
    at = 0.0
    for wait, what, which in [*steps_taken, (1.0, "turn", 0), (1.0, "count", 0)]:
        at += wait
        serial = open_rows[which % len(open_rows)] if open_rows else -1
        if what == "turn" or serial < 0:
            open_rows.append(log.write_turn((which, *NOTHING_KNOWN[1:]), at))
        elif what == "return":
            log.write_return(serial, at)
            open_rows.remove(serial)
        elif what == "end":
            log.write_end(serial)
            open_rows.remove(serial)
        elif what == "supersede" and serial not in superseded:
            superseded.add(serial)
            log.write_supersession(serial, 1 + which % 4)
        elif what == "count":
            count(reliability, model, log)
    intervals = [
        Interval(tuple(row), *rest) for row, *rest in zip(*(c.tolist() for c in log.intervals()[:4]), strict=True)
    ]
    slow = PlainModel(model.base.tolist(), [values.tolist() for values in model.effects])
    ends = [*SPANS[1:], np.inf]
    for group, found in enumerate(reliability.by_age):
        watched = sum(max(min(each.end, ends[group]) - max(each.start, SPANS[group]), 0.0) for each in intervals)
        assert found.watched_s == pytest.approx(watched)
        assert found.predicted == pytest.approx(sum(slow.expected(each, group) for each in intervals), rel=1e-6)
        assert found.returns == sum(each.returned and SPANS[group] <= each.end < ends[group] for each in intervals)
    assert sum(each.returns for each in reliability.by_age) == log.returns


@pytest.mark.parametrize("hazard", [lambda age: 0.02, lambda age: 0.3 / age, lambda age: 1e-5 * age])
def test_hazards_that_are_known_come_true_at_every_age(hazard: Callable[[float], float]) -> None:
    random = Random(1)
    intervals = [drawn(random, NOTHING_KNOWN, hazard, random.choice((30.0, 500.0, 10_000.0))) for _ in range(5_000)]
    reliability = Reliability()
    for _ in reliability.count(by_hand(hazard), as_arrays(intervals), 1e6):
        pass
    told = 0
    for group in reliability.by_age:
        assert abs(group.returns - group.predicted) < 4 * max(group.predicted, 1.0) ** 0.5
        told += group.returns > 100
    assert told >= 2
    assert sum(group.watched_s for group in reliability.by_age) == pytest.approx(
        sum(overlap(each, band) for each in intervals for band in range(len(BANDS)))
    )


def test_hazards_that_are_learned_from_the_past_predict_the_rest() -> None:
    """Two kinds of conversations, of which one returns in 30 s and the other in 300 s on the average."""
    random, log = Random(1), TurnLog()
    refits = Refits(log)
    means = (30.0, 300.0)
    rows: list[Features] = [tuple(kind if place == Feature.ENDING else 0 for place in Feature) for kind in (0, 1)]
    due = [(random.expovariate(1 / means[kind]), kind, log.write_turn(rows[kind], 0.0)) for kind in (0, 1) * 50]
    for number in range(8_000):
        due.sort()
        at, kind, serial = due.pop(0)
        log.write_return(serial, at)
        due.append((at + random.expovariate(1 / means[kind]), kind, log.write_turn(rows[kind], at)))
        refits.count_turn()
        if number == 2_000:
            begun = list(refits.reliability.by_age)
    for before, after in zip(begun[:3], refits.reliability.by_age, strict=False):
        returns, predicted = after.returns - before.returns, after.predicted - before.predicted
        assert returns > 300
        assert predicted == pytest.approx(returns, rel=4 / returns**0.5)
    soon, late = (refits.model.hazards(row) for row in rows)
    assert soon[5] == pytest.approx(1 / 30, rel=0.1)  # from 16 s on
    assert late[11] == pytest.approx(1 / 300, rel=0.4)  # from 128 s on
