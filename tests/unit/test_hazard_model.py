"""The model of hazards: against loops over everything, and against hazards that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from radix_tlru.learning.age_bands import BANDS, MIDDLES, SPANS
from radix_tlru.learning.gittins import gittins
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.records import Supersession
from radix_tlru.learning.turn_features import NOTHING_KNOWN, SIZES, Feature, Features
from radix_tlru.learning.turn_log import TurnLog
from tests.helpers.examples import examples
from tests.helpers.plain_hazards import (
    Interval,
    PlainModel,
    TieError,
    as_arrays,
    drawn,
    fitted,
    no_model,
    overlap,
    random_features,
    random_intervals,
)


def fit(intervals: Sequence[Interval], model: HazardModel | None = None, times: int = 1) -> HazardModel:
    found = model or HazardModel()
    for _ in range(times):
        *_, last = found.fit(as_arrays(intervals))
        assert last is not None
        found = last
    return found


def plain(model: HazardModel) -> PlainModel:
    return PlainModel(model.base.tolist(), [values.tolist() for values in model.effects])


# ---- as the formulas say ----


@settings(max_examples=examples(50))
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_a_fit_is_what_loops_over_all_intervals_and_bands_find(seed: int, count: int) -> None:
    random = Random(seed)
    model, expected = HazardModel(), no_model()
    for _ in range(2):  # the second fit begins where the first ended
        intervals = [*random_intervals(random, count)]
        try:
            model, expected = fit(intervals, model), fitted(expected, intervals)
        except TieError:
            reject()
        assert model.base == pytest.approx(np.array(expected.base), abs=1e-6)
        for found, slow in zip(model.effects, expected.effects, strict=True):
            assert found == pytest.approx(np.array(slow), abs=1e-6)


@given(st.integers(0, 10**6))
def test_hazards_and_predicted_returns_are_those_of_the_formula(seed: int) -> None:
    random = Random(seed)
    intervals = [*random_intervals(random, 30)]
    model = fit(intervals)
    others = [*random_intervals(random, 10)]
    predicted = model.predicted_returns(as_arrays(others))
    for each, row in zip(others, predicted.T, strict=True):
        hazards = [plain(model).hazard(each.features, band) for band in range(len(BANDS))]
        assert model.hazards(each.features) == pytest.approx(np.array(hazards))
        assert row == pytest.approx([plain(model).expected(each, span) for span in range(len(SPANS))], abs=1e-9)


def test_a_fit_is_done_in_slices_the_last_of_which_is_the_model() -> None:
    intervals = as_arrays([*random_intervals(Random(0), 50)])
    before = HazardModel()
    *slices, last = before.fit(intervals)
    assert slices == [None] * len(slices)
    assert len(slices) > 2 * len(SIZES), "one for each effect, in each of two sweeps"
    assert isinstance(last, HazardModel)
    assert not before.base.any(), "a model does not change"
    assert not any(values.any() for values in before.effects)


def test_two_that_fit_to_the_same_agree_to_the_last_bit() -> None:
    intervals = [*random_intervals(Random(7), 500)]
    one, other = fit(intervals, times=3), fit(intervals, times=3)
    assert one.base.tobytes() == other.base.tobytes()
    for values, others in zip(one.effects, other.effects, strict=True):
        assert values.tobytes() == others.tobytes()


# ---- before anything is seen ----


def test_before_anything_is_seen_the_index_falls_with_age_whatever_is_known() -> None:
    model, random = HazardModel(), Random(0)
    for features in (NOTHING_KNOWN, random_features(random), random_features(random)):
        hazards = model.hazards(features)
        assert hazards == pytest.approx(0.3 / MIDDLES)
        index = gittins(hazards)
        assert all(later < earlier for earlier, later in pairwise(index))


def test_silence_alone_leaves_an_index_that_falls() -> None:
    silent = [Interval(random_features(Random(number)), 0.0, 40.0 + number, False) for number in range(200)]
    model = fit(silent)
    assert max(abs(values).max() for values in model.effects) < 0.01, "nobody came back, so nobody did so sooner"
    index = gittins(model.hazards(NOTHING_KNOWN))
    assert all(later < earlier for earlier, later in pairwise(index))


def test_a_band_that_nobody_has_reached_follows_the_one_before() -> None:
    model = fit([Interval(NOTHING_KNOWN, 0.0, 20.0, number % 2 == 0) for number in range(400)])
    reached = max(band for band, start in enumerate(BANDS) if start <= 20.0)
    assert model.base[reached + 1 :] == pytest.approx([model.base[reached]] * (len(BANDS) - reached - 1))
    assert model.base[reached] > 4.0 + model.base[reached - 1], "half of them came back, and nobody before"


# ---- hazards that are known ----


def of_category(position: int, factor: float, count: int = 4_000, seed: int = 1) -> list[Interval]:
    """Returns at 0.3 / age, and ``factor`` times as soon of those whose category of a feature is 1."""
    random, found = Random(seed), []
    for _ in range(count):
        row = list(random_features(random))
        row[position] = random.randrange(2)
        times = factor if row[position] else 1.0
        watched_s = random.choice((30.0, 300.0, 3_000.0))
        found.append(drawn(random, tuple(row), lambda age, times=times: times * 0.3 / age, watched_s))
    return found


@pytest.mark.parametrize("position", [Feature.ENDING, Feature.WAIT, Feature.SUPERSEDED])
@pytest.mark.parametrize("factor", [8.0, 1 / 8])
def test_a_strong_effect_is_found(position: Feature, factor: float) -> None:
    model = fit(of_category(position, factor), times=3)
    effect = model.effects[position][1, 0] - model.effects[position][0, 0]
    assert effect == pytest.approx(np.log(factor), abs=0.25)
    # And it is not ascribed to another feature.
    assert all(abs(values[:, 0]).max() < 0.25 for number, values in enumerate(model.effects) if number != position)


@pytest.mark.parametrize("seed", range(4))
def test_features_without_an_effect_are_shrunk_to_nearly_nothing(seed: int) -> None:
    model = fit(of_category(Feature.ENDING, 1.0, seed=seed), times=3)
    sizes = np.concatenate([abs(values).ravel() for values in model.effects])
    assert np.mean(sizes == 0.0) > 0.4, "whole features, to exactly nothing"
    assert np.mean(sizes) < 0.03
    seen = [abs(values[:, 0]).max() for values in model.effects]  # in the group that has seen the most
    assert max(seen) < 0.2


def test_an_effect_is_believed_the_more_the_more_returns_there_were() -> None:
    effects = []
    for count in (10, 40, 4_000):
        found = (fit(of_category(Feature.ENDING, 8.0, count, seed)).effects[Feature.ENDING] for seed in range(5))
        effects.append(np.mean([effect[1, 0] - effect[0, 0] for effect in found]))
    few, some, many = effects
    assert 0.0 < few < 0.3 * np.log(8.0) < some < 0.7 * np.log(8.0) < many < 1.1 * np.log(8.0)


@pytest.mark.parametrize("hazard", [lambda age: 0.01, lambda age: 0.3 / age, lambda age: 1e-5 * age**0.5])
def test_the_hazard_by_age_is_that_of_the_returns(hazard: Callable[[float], float]) -> None:
    random = Random(3)
    intervals = [drawn(random, NOTHING_KNOWN, hazard, 2_000.0) for _ in range(4_000)]
    model = fit(intervals)
    told = 0
    for band, found in enumerate(model.hazards(NOTHING_KNOWN)):
        returns = hazard(float(MIDDLES[band])) * sum(overlap(each, band) for each in intervals)
        if returns > 100:
            assert found == pytest.approx(hazard(float(MIDDLES[band])), rel=4 / returns**0.5)
            told += 1
    assert told >= 4


def test_an_effect_may_differ_between_groups_of_ages() -> None:
    """Of those whose category is 1 nobody returns within 22 s, and ten times as many as others do later."""
    random, intervals = Random(5), []
    for number in range(4_000):
        row = (*NOTHING_KNOWN[:1], number % 2, *NOTHING_KNOWN[2:])

        def hazard(age: float, late: int = number % 2) -> float:
            return 0.003 * ((1e-3 if age < SPANS[1] else 10.0) if late else 1.0)

        intervals.append(drawn(random, row, hazard, 128.0))
    effects = fit(intervals, times=2).effects[Feature.TURN]
    early, late = effects[1] - effects[0], effects[0] - effects[1]
    assert early[0] < -2.0
    assert late[1] < -1.8
    assert abs(effects[:, 3:]).max() == 0.0, "nobody was watched for so long"


# ---- supersession ----


def test_what_was_superseded_is_judged_by_what_it_does_from_then_on() -> None:
    """Conversations return within a minute on the average. Every second one is superseded, and never does."""
    log, random, serials = TurnLog(), Random(2), dict[int, int]()
    events = []
    for number in range(3_000):
        begin, wait = 10.0 * number, random.expovariate(1 / 60)
        is_superseded = number % 2 == 1 and wait > 20.0
        events += [(begin, "turn", number), (begin + (20.0 if is_superseded else wait), "what follows", number)]
    for at, what, number in sorted(events):
        if what == "turn":
            serials[number] = log.write_turn(NOTHING_KNOWN, at)
        elif number % 2 and at == 10.0 * number + 20.0:
            log.write_supersession(serials[number], Supersession.LATE)
        else:
            log.write_return(serials[number], at)
    model = HazardModel()
    for _ in range(3):
        *_, last = model.fit(log.intervals())
        assert last is not None
        model = last
    superseded: Features = (*NOTHING_KNOWN[:-1], Supersession.LATE)
    for band in (7, 9):  # 32 s and 64 s
        assert model.hazards(NOTHING_KNOWN)[band] == pytest.approx(1 / 60, rel=0.2)
        assert model.hazards(superseded)[band] < 0.05 / 60
