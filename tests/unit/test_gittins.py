"""The Gittins index against its definition: the best over all horizons, found by trying them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.learning.age_bands import AGES, BANDS
from radix_tlru.learning.gittins import by_age_steps, gittins

LAST = len(BANDS) - 1

hazard_curves = st.lists(st.floats(1e-6, 10.0), min_size=len(BANDS), max_size=len(BANDS))


def promised(curve: list[float], band: int, horizon_s: float) -> float:
    """P(returns within the horizon) / E[time held until then], for a conversation that has just come into the band."""
    expected, held, left = 0.0, 0.0, horizon_s  # the integral of the hazard; of who is silent; s
    for hazard, start, end in zip(curve[band:], BANDS[band:], [*BANDS[band + 1 :], math.inf], strict=True):
        time = min(left, end - start)
        held += math.exp(-expected) * -math.expm1(-hazard * time) / hazard
        expected, left = expected + hazard * time, left - time
        if not left:
            break
    return -math.expm1(-expected) / held


def horizons(band: int) -> list[float]:
    """The times to the end of this band and of each one after it."""
    return [*(end - BANDS[band] for end in BANDS[band + 1 :]), math.inf]


def curve_of(hazards: list[float]) -> list[float]:
    return gittins(np.array(hazards))


@given(hazard_curves)
def test_the_index_is_the_best_that_any_horizon_promises(curve: list[float]) -> None:
    index = curve_of(curve)
    for band in range(len(BANDS)):
        best = max(promised(curve, band, horizon) for horizon in horizons(band))
        assert index[band] == pytest.approx(best, rel=1e-6)


@given(hazard_curves, st.integers(0, LAST), st.floats(0.01, 1e6))
def test_no_horizon_within_a_band_promises_more(curve: list[float], band: int, horizon_s: float) -> None:
    assert promised(curve, band, horizon_s) <= curve_of(curve)[band] * (1 + 1e-6)


@given(st.floats(1e-7, 10.0))
def test_a_constant_hazard_is_its_own_index(hazard: float) -> None:
    assert curve_of([hazard] * len(BANDS)) == pytest.approx([hazard] * len(BANDS), rel=1e-6)


@given(hazard_curves)
def test_where_hazards_fall_nothing_is_gained_by_looking_ahead(curve: list[float]) -> None:
    falling = sorted(curve, reverse=True)
    assert curve_of(falling) == pytest.approx(falling, rel=1e-6)


@given(hazard_curves, st.lists(st.floats(1.0, 9.0), min_size=len(BANDS), max_size=len(BANDS)))
def test_higher_hazards_have_no_lower_index(curve: list[float], factors: list[float]) -> None:
    higher = [hazard * factor for hazard, factor in zip(curve, factors, strict=True)]
    for lower_index, higher_index in zip(curve_of(curve), curve_of(higher), strict=True):
        assert higher_index >= lower_index * (1 - 1e-6)


@given(hazard_curves)
def test_the_index_is_between_the_hazard_of_the_moment_and_the_highest_to_come(curve: list[float]) -> None:
    for band, index in enumerate(curve_of(curve)):
        assert curve[band] * (1 - 1e-6) <= index <= max(curve[band:]) * (1 + 1e-6)


@given(hazard_curves, st.integers(0, LAST), st.floats(0.01, 100.0))
def test_what_is_past_does_not_matter(curve: list[float], band: int, factor: float) -> None:
    other = [*(hazard * factor for hazard in curve[:band]), *curve[band:]]
    assert curve_of(other)[band:] == curve_of(curve)[band:]


def test_a_fresh_conversation_is_worth_what_it_will_soon_be_worth() -> None:
    # Nobody returns in the first 45 s. Then one of a hundred returns in each second, for 45 s.
    curve = [0.01 if 45 <= start < 90 else 1e-9 for start in BANDS]
    index = curve_of(curve)
    reading = BANDS.index(32.0), BANDS.index(4.0 * 2**3.5)
    # Held for the 45 s of reading and for what is left of the next: 1 - e^-0.45 of them return.
    width = BANDS[BANDS.index(64.0) + 1] - BANDS[reading[1]]
    returns = -math.expm1(-0.01 * width)
    assert index[0] == pytest.approx(returns / (BANDS[reading[1]] + returns / 0.01), rel=1e-4)
    assert index[0] < index[reading[0]] < index[reading[1]] == pytest.approx(0.01)
    assert index[BANDS.index(128.0)] < 1e-8


@given(st.floats(1e-30, 1e-12))
def test_however_unlikely_a_return_is_now_what_is_promised_later_counts(hazard: float) -> None:
    curve = [0.01 if 45 <= start < 90 else hazard for start in BANDS]
    best = max(promised(curve, 0, horizon) for horizon in horizons(0))
    assert curve_of(curve)[0] == pytest.approx(best, rel=1e-6)


# ---- between the bands ----


def test_there_is_a_step_of_age_for_each_price() -> None:
    assert len(by_age_steps([1.0] * len(BANDS))) == len(AGES) - 1
    assert AGES[0] == 0.0
    assert AGES[-1] == math.inf
    assert [later / earlier for earlier, later in pairwise(AGES[1:-1])] == pytest.approx([2**0.25] * (len(AGES) - 3))


@given(hazard_curves)
def test_a_step_is_between_the_band_that_it_is_in_and_the_nearest_other(index: list[float]) -> None:
    steps = by_age_steps(index)
    for step, found in enumerate(steps):
        band = next(band for band in range(LAST, -1, -1) if BANDS[band] <= AGES[step] * (1 + 1e-9))
        own = index[band]
        is_second_half = AGES[step] > BANDS[band] * 1.1
        other = index[min(band + 1, LAST)] if is_second_half else index[max(band - 1, 0)]
        assert min(own, other) * (1 - 1e-9) <= found <= max(own, other) * (1 + 1e-9)
        # A quarter of the way to the other one, in logarithms. The first band has nothing before it.
        expected = 0.75 * math.log(own) + 0.25 * math.log(other) if band else math.log(own)
        assert math.log(found) == pytest.approx(expected, abs=1e-6)


@given(hazard_curves)
def test_an_index_that_falls_falls_from_step_to_step(index: list[float]) -> None:
    steps = by_age_steps(sorted(index, reverse=True))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(steps))
