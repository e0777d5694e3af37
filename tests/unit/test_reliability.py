"""Whether what is foretold can be held against what came: counts are exact, and true hazards come true."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from radix_tlru.learning.hazards import Hazards

from radix_tlru.learning.age_bands import BANDS
from radix_tlru.learning.records import Watched
from radix_tlru.learning.reliability import Reliability

EVERYTHING = (0.0,)


def watched_for(hazards: Hazards, now: float) -> None:
    """Let the time pass until ``now``."""
    other = Watched((99,), now)
    hazards.start_watching(other)
    hazards.stop_watching(other)


def test_what_is_foretold_is_the_hazard_times_the_time_it_was_watched() -> None:
    hazards = Hazards()
    hazards.reliability.predict_by({(): [0.01 if start < 16 else 0.002 for start in BANDS]})
    back, silent = Watched((1,), 100.0), Watched((2,), 100.0)
    hazards.start_watching(back)
    hazards.start_watching(silent)
    hazards.count_return(back, 110.0)
    early, late = hazards.reliability.by_age(110.0, (0.0, 16.0))
    assert early == pytest.approx((20.0, 20 * 0.01, 1))  # both were silent for 10 s
    assert late == (0.0, 0.0, 0)
    watched_for(hazards, 120.0)
    early, late = hazards.reliability.by_age(120.0, (0.0, 16.0))
    assert early == pytest.approx((10.0 + 16.0 + 0.0, 26 * 0.01, 1))
    assert late == pytest.approx((4.0, 4 * 0.002, 0))


def test_nothing_is_foretold_of_whom_nothing_is_known_and_their_returns_count_for_nothing() -> None:
    hazards = Hazards()
    before = Watched((1,), 0.0)
    hazards.start_watching(before)
    hazards.count_return(before, 1.0)
    assert hazards.reliability.by_age(1.0, EVERYTHING) == [(0.0, 0.0, 0)]


def test_a_class_without_hazards_is_foretold_by_its_nearest_ancestor() -> None:
    reliability = Reliability(BANDS)
    assert reliability.enter_band((1, 2), 0.0, 0) is None
    reliability.predict_by({(): [0.5] * len(BANDS), (1,): [0.25] * len(BANDS)})
    assert [reliability.enter_band(cls, 0.0, 3) for cls in ((1, 2), (1,), (2, 2))] == [0.25, 0.25, 0.5]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 900), st.sampled_from(["turn", "forget", "learn"]))))
def test_whoever_comes_and_goes_all_time_and_every_return_is_counted(steps: list[tuple[int, float, str]]) -> None:
    hazards = Hazards()
    hazards.reliability.predict_by({(): [0.125] * len(BANDS)})
    known: dict[int, Watched] = {}
    now = spent = 0.0
    returns = 0
    for number, wait, what in steps:
        now += wait
        spent += wait * len(known)
        before = known.pop(number, None)
        if what == "forget" and before is not None:
            watched_for(hazards, now)
            hazards.stop_watching(before)
        elif what == "turn":
            if before is not None:
                hazards.count_return(before, now)
                returns += 1
            known[number] = Watched((number % 2, number % 3), now)
            hazards.start_watching(known[number])
        elif before is not None:
            known[number] = before
    ((watched, expected, seen),) = hazards.reliability.by_age(now, EVERYTHING)
    assert seen == returns
    assert watched == pytest.approx(spent, abs=1e-3)
    assert expected == pytest.approx(0.125 * spent, abs=1e-3)
    spans = hazards.reliability.by_age(now, (0.0, 45.0, 512.0))
    assert sum(span.watched_s for span in spans) == pytest.approx(watched, abs=1e-3)


def test_hazards_that_are_learned_from_the_past_foretell_the_rest() -> None:
    random, hazards = Random(1), Hazards()
    rates = (1 / 30, 1 / 90)  # 1 / s, of two kinds of conversations that return for ever
    due = [(random.expovariate(rates[kind]), kind, Watched((kind,), 0.0)) for kind in (0, 1) for _ in range(50)]
    for _, _, conversation in due:
        hazards.start_watching(conversation)
    for step in range(6_000):
        due.sort(key=lambda each: each[0])
        now, kind, conversation = due.pop(0)
        hazards.count_return(conversation, now)
        following = Watched((kind,), now)
        hazards.start_watching(following)
        due.append((now + random.expovariate(rates[kind]), kind, following))
        if step % 1_000 == 999:
            hazards.estimate()
    for span in hazards.reliability.by_age(hazards.now, (0.0, 24.0, 64.0)):
        assert span.returns > 1_000
        assert span.predicted == pytest.approx(span.returns, rel=3 / span.returns**0.5)
