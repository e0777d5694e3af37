"""The log of turns against a list of all that was written to it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radix_tlru.learning import turn_log
from radix_tlru.learning.turn_features import NOTHING_KNOWN, SIZES, Feature, Features
from radix_tlru.learning.turn_log import Intervals, TurnLog

RINGS = 4  # rows of a small ring


class Stretch(NamedTuple):
    features: Features
    start: float
    end: float
    returned: bool
    stamp: float


@dataclass
class Row:
    features: Features
    stamp: float
    end: float = math.inf
    returned: bool = False
    superseded: float = math.inf
    how: int = 0


class PlainLog:
    """The same without a ring: every turn is a row of its own."""

    def __init__(self, most: int) -> None:
        self.rows: list[Row] = []
        self.now, self.most = 0.0, most

    def row(self, serial: int) -> Row | None:
        """The row, if it is one of the last and open."""
        known = max(len(self.rows) - self.most, 0) <= serial < len(self.rows)
        return self.rows[serial] if known and self.rows[serial].end == math.inf else None

    def stretches(self) -> list[Stretch]:
        found = []
        for row in self.rows[-self.most :]:
            until = min(row.end, self.now)
            if row.superseded >= until:
                found.append(Stretch(row.features, 0.0, until - row.stamp, row.returned, row.stamp))
                continue
            changed = row.superseded - row.stamp
            left = (*row.features[: Feature.SUPERSEDED], row.how)
            found.append(Stretch(row.features, 0.0, changed, False, row.stamp))
            found.append(Stretch(left, changed, until - row.stamp, row.returned, row.stamp))
        return sorted(found)


def stretches_of(intervals: Intervals) -> list[Stretch]:
    rows = zip(*(column.tolist() for column in intervals), strict=True)
    return sorted(Stretch(tuple(features), *rest) for features, *rest in rows)


features = st.tuples(*(st.integers(0, size - 1) for size in SIZES[:-1]), st.just(0))
eighths = st.integers(0, 400).map(lambda number: number / 8)  # s, so that sums are exact
steps = st.lists(
    st.tuples(
        eighths,
        st.sampled_from(["turn", "turn", "return", "end", "supersede"]),
        st.integers(0, 30),
        features,
        st.integers(1, 4),
    ),
    max_size=40,
)


def written(steps_taken: list[tuple[float, str, int, Features, int]], ring: int = 8_192) -> tuple[TurnLog, PlainLog]:
    """Both logs, after what was done: how long after the step before, what, to which of the last turns."""
    log, plain, at = TurnLog(), PlainLog(ring), 0.0
    for wait, what, back, row, how in steps_taken:
        at += wait
        serial = len(plain.rows) - 1 - back
        found = plain.row(serial)
        if what == "turn":
            plain.now = at
            plain.rows.append(Row(row, at))
            assert log.write_turn(row, at) == len(plain.rows) - 1
        elif what == "return":
            plain.now = at
            log.write_return(serial, at)
            if found is not None:
                found.end, found.returned = at, True
        elif what == "end":
            log.write_end(serial)
            if found is not None:
                found.end = plain.now
        else:
            log.write_supersession(serial, how)
            if found is not None:
                found.superseded, found.how = plain.now, how
    return log, plain


@pytest.fixture(params=[RINGS, 8_192], ids=["a small ring", "a ring with room for all"])
def ring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of every log."""
    rows: int = request.param
    monkeypatch.setattr(turn_log, "_ROWS", rows)
    return rows


def test_a_log_has_the_silence_of_each_of_the_last_turns(ring: int) -> None:
    @example([(0.0, what, 0, NOTHING_KNOWN, 1) for what in ("turn", "supersede", "return")])
    @given(steps)
    def holds(steps_taken: list[tuple[float, str, int, Features, int]]) -> None:
        log, plain = written(steps_taken, ring)
        assert log.now == plain.now
        assert log.written == len(plain.rows)
        assert log.returns == sum(what == "return" for _, what, *_ in steps_taken)
        assert stretches_of(log.intervals()) == plain.stretches()

    holds()


@given(steps, eighths)
def test_what_was_after_a_time_is_the_rest_of_the_stretches(
    steps_taken: list[tuple[float, str, int, Features, int]], time: float
) -> None:
    log, plain = written(steps_taken)
    rest = [each._replace(start=max(each.start, time - each.stamp)) for each in plain.stretches()]
    expected = [each for each in rest if each.start < each.end or (each.returned and each.stamp + each.end > time)]
    assert stretches_of(log.intervals().after(time)) == sorted(expected)


@given(steps, st.lists(eighths, max_size=4))
def test_what_was_up_to_and_after_a_time_adds_up_to_all(
    steps_taken: list[tuple[float, str, int, Features, int]], times: list[float]
) -> None:
    log, _ = written(steps_taken)
    everything = log.intervals()
    silent = float((everything.end - everything.start).sum())
    for time in sorted(times):
        later = everything.after(time)
        before = sum(max(min(each.end, time - each.stamp) - each.start, 0.0) for each in stretches_of(everything))
        assert before + float((later.end - later.start).sum()) == silent
        assert (later.start >= time - later.stamp).all()


ROW: Features = (0,) * len(SIZES)


def test_a_turn_is_silent_until_now_then_until_it_returned() -> None:
    log = TurnLog()
    first = log.write_turn(ROW, 10.0)
    log.write_turn(ROW, 40.0)
    assert [each[1:] for each in stretches_of(log.intervals())] == [(0.0, 0.0, False, 40.0), (0.0, 30.0, False, 10.0)]
    log.write_return(first, 50.0)
    log.write_turn(ROW, 90.0)
    assert Stretch(ROW, 0.0, 40.0, True, 10.0) in stretches_of(log.intervals())
    assert Stretch(ROW, 0.0, 50.0, False, 40.0) in stretches_of(log.intervals())


def test_a_turn_that_was_superseded_is_two_stretches_of_which_the_second_knows() -> None:
    log = TurnLog()
    first = log.write_turn(ROW, 10.0)
    log.write_turn(ROW, 30.0)
    log.write_supersession(first, 3)
    log.write_return(first, 75.0)
    before, after = sorted(each for each in stretches_of(log.intervals()) if each.stamp == 10.0)
    assert before == Stretch(ROW, 0.0, 20.0, False, 10.0)
    assert after == Stretch((*ROW[:-1], 3), 20.0, 65.0, True, 10.0)


def test_time_that_runs_backwards_is_time_that_stands_still() -> None:
    log = TurnLog()
    first = log.write_turn(ROW, 100.0)
    second = log.write_turn(ROW, 40.0)
    log.write_return(first, 70.0)
    log.write_return(second, 130.0)
    assert [each[1:] for each in stretches_of(log.intervals())] == [(0.0, 0.0, True, 100.0), (0.0, 30.0, True, 100.0)]


def test_rows_that_have_left_the_ring_are_written_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_log, "_ROWS", RINGS)
    log = TurnLog()
    serials = [log.write_turn(ROW, float(number)) for number in range(RINGS + 1)]
    before = stretches_of(log.intervals())
    log.write_return(serials[0], 4.0)  # the row of the last turn is where that of the first was
    log.write_supersession(serials[0], 1)
    log.write_end(serials[0])
    log.write_end(-1)  # of what nobody watches
    assert stretches_of(log.intervals()) == before
    assert log.returns == 1


def test_a_log_that_begins_with_the_turns_of_another_has_the_same_silences(ring: int) -> None:
    """In a run whose stamps are all later, and from which on those that nobody had seen return are watched no more."""

    @given(steps, eighths.map(lambda wait: 1_000.0 + wait))
    def holds(steps_taken: list[tuple[float, str, int, Features, int]], first: float) -> None:
        log, plain = written(steps_taken, ring)
        again = TurnLog()
        again.restore(log.snapshot())
        assert again.written == min(log.written, ring)
        again.write_return(again.written + 5, first)  # of a turn that is not there: time goes on
        for serial in range(again.written):
            again.write_return(serial, first)
        silences = [each._replace(stamp=each.stamp - plain.now) for each in plain.stretches()]
        assert stretches_of(again.intervals()) == sorted(silences)
        assert stretches_of(again.intervals().after(0.0)) == []

    holds()


@given(st.lists(st.tuples(*[st.integers(0, size - 1) for size in (3, 2)]), max_size=40), st.integers(0, 8))
def test_kinds_are_what_occurs_most_often(pairs: list[tuple[int, int]], most: int) -> None:
    log = TurnLog()
    rest = (0,) * (len(SIZES) - 2)
    for pair in pairs:
        log.write_turn((*pair, *rest), 0.0)
    counts = Counter((*pair, *rest) for pair in pairs)
    assert log.intervals().kinds(most) == sorted(counts, key=lambda kind: (-counts[kind], kind))[:most]


@given(st.integers(0, 30), st.integers(1, 5))
def test_parts_are_the_whole_row_by_row(turns: int, count: int) -> None:
    log = TurnLog()
    for number in range(turns):
        log.write_turn((0,) * len(SIZES), float(number))
    whole = log.intervals()
    parts = list(whole.parts(count))
    assert len(parts) == count
    assert np.concatenate([part.stamp for part in parts]).tolist() == whole.stamp.tolist()
    assert all(len(part.end) == len(part.features) == len(part.stamp) for part in parts)
