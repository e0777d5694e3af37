"""The model of hazards in the plainest Python there is: loops over intervals, bands and categories.

Written from the formulas in ``hazard_model``, to hold its arrays against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from radix_tlru.learning.age_bands import BANDS, MIDDLES, SPAN_OF, SPANS
from radix_tlru.learning.turn_features import SIZES, Features
from radix_tlru.learning.turn_log import Intervals

RECENCY, EFFECT_PRIOR, BASE_PRIOR, SWEEPS, FEW = 0.3, 8.0, 2.0, 2, 0.25


class TieError(ValueError):
    """A category is expected to have exactly as many returns as are too few: rounding decides whether it counts."""


Effects = list[list[list[float]]]
"""Log factors by feature, category and span of ages."""


class Interval(NamedTuple):
    features: Features
    start: float
    end: float
    returned: bool


class PlainModel(NamedTuple):
    base: list[float]  # log factors of the bands
    effects: Effects

    def hazard(self, features: Features, band: int) -> float:
        span = int(SPAN_OF[band])
        effect = sum(values[category][span] for values, category in zip(self.effects, features, strict=True))
        return RECENCY / float(MIDDLES[band]) * math.exp(self.base[band] + effect)

    def expected(self, interval: Interval, span: int) -> float:
        """Returns within the interval, at ages of a span."""
        bands = (band for band in range(len(BANDS)) if SPAN_OF[band] == span)
        return sum(self.hazard(interval.features, band) * overlap(interval, band) for band in bands)


def no_model() -> PlainModel:
    return PlainModel([0.0] * len(BANDS), [[[0.0] * len(SPANS) for _ in range(size)] for size in SIZES])


def overlap(interval: Interval, band: int) -> float:
    """Seconds that an interval spends in a band."""
    end = BANDS[band + 1] if band + 1 < len(BANDS) else math.inf
    return max(min(interval.end, end) - max(interval.start, BANDS[band]), 0.0)


def band_of(age: float) -> int:
    return max(band for band, start in enumerate(BANDS) if start <= age)


def fitted(model: PlainModel, intervals: Sequence[Interval]) -> PlainModel:
    """The model that follows: each part in turn is what was seen over what all others predict."""
    base, effects = list(model.base), [[list(row) for row in values] for values in model.effects]
    for _ in range(SWEEPS):
        base = _base(PlainModel([0.0] * len(BANDS), effects), intervals)
        for position in range(len(SIZES)):
            effects[position] = _effect(PlainModel(base, effects), intervals, position)
    return PlainModel(base, effects)


def _base(effects_alone: PlainModel, intervals: Sequence[Interval]) -> list[float]:
    seen, expected = [0.0] * len(BANDS), [0.0] * len(BANDS)
    for each in intervals:
        for band in range(len(BANDS)):
            expected[band] += effects_alone.hazard(each.features, band) * overlap(each, band)
        if each.returned:
            seen[band_of(each.end)] += 1
    before = math.log((sum(seen) + BASE_PRIOR) / (sum(expected) + BASE_PRIOR))
    base = []
    for band in range(len(BANDS)):
        before = math.log((seen[band] + BASE_PRIOR) / (expected[band] + BASE_PRIOR / math.exp(before)))
        base.append(before)
    return base


def _effect(model: PlainModel, intervals: Sequence[Interval], position: int) -> list[list[float]]:
    size, own = SIZES[position], model.effects[position]
    found = [[0.0] * len(SPANS) for _ in range(size)]
    for span in range(len(SPANS)):
        seen, expected = [0.0] * size, [0.0] * size
        for each in intervals:
            category = each.features[position]
            expected[category] += model.expected(each, span) / math.exp(own[category][span])
            if each.returned and SPAN_OF[band_of(each.end)] == span:
                seen[category] += 1
        for category, effect in enumerate(_shrunk(seen, expected)):
            found[category][span] = effect
    return found


def _shrunk(seen: Sequence[float], expected: Sequence[float]) -> list[float]:
    """The effect of each category: seen over expected, of mean 1, less the share that chance explains."""
    effects = [
        math.log((returns + EFFECT_PRIOR) / (chance + EFFECT_PRIOR))
        for returns, chance in zip(seen, expected, strict=True)
    ]
    total = max(sum(expected), 1e-9)
    mean = math.log(
        max(sum(chance * math.exp(each) for chance, each in zip(expected, effects, strict=True)), 1e-9) / total
    )
    spread, told = 0.0, 0
    for returns, chance in zip(seen, expected, strict=True):
        by_chance = chance * sum(seen) / total
        if abs(by_chance - FEW) < 1e-9:
            raise TieError
        if by_chance > FEW:
            spread += (returns - by_chance) ** 2 / by_chance
            told += 1
    believed = max(1.0 - max(told - 1, 0) / max(spread, 1e-9), 0.0)
    return [(each - mean) * believed for each in effects]


# ---- intervals to fit to ----


def as_arrays(intervals: Sequence[Interval]) -> Intervals:
    features, start, end, returned = zip(*intervals, strict=True)
    return Intervals(
        np.array(features, np.uint8),
        np.array(start),
        np.array(end),
        np.array(returned),
        np.zeros(len(intervals)),
    )


def drawn(random: Random, features: Features, hazard: Callable[[float], float], watched_s: float) -> Interval:
    """Silence from age 0 on, until a return at a hazard by age, or until nobody watches any more.

    The hazard is taken to be constant within a band.
    """
    age = 0.0
    while age < watched_s:
        band = band_of(age)
        end = min(BANDS[band + 1] if band + 1 < len(BANDS) else math.inf, watched_s)
        wait = random.expovariate(hazard(float(MIDDLES[band])))
        if age + wait < end:
            return Interval(features, 0.0, age + wait, True)
        age = end
    return Interval(features, 0.0, watched_s, False)


def random_features(random: Random) -> Features:
    return tuple(random.randrange(size) for size in SIZES)


def random_intervals(random: Random, count: int) -> Iterator[Interval]:
    """Of any age, some that begin late, some that have returned, some of no length."""
    for _ in range(count):
        start = random.choice((0.0, 0.0, random.uniform(0.0, 10.0) ** 4))
        end = start + random.choice((0.0, random.uniform(0.0, 12.0) ** 4, random.expovariate(1 / 60)))
        yield Interval(random_features(random), start, end, random.random() < 0.6)
