"""How soon does a conversation return, by what is known of its last turn: an additive model of log hazards.

A conversation of age a (the time since its last turn) returns in the next moment dt with probability h(a) dt. In each
band of ages the hazard is constant, and

    log h(band, x) = log(0.3 / age) + base(band) + Σ_j effect_j(x_j, span of the band)

with x the categories of a turn (``turn_features``). The model is a piecewise exponential one with additive effects, a
Poisson regression on returns and silence; conversations that have not returned yet count as silent so far. It is fitted
by backfitting: each effect in turn is set to the returns it saw over the returns that all the others predict.

What little evidence cannot tell is not believed. Each effect has a gamma prior of mean 1, and is shrunk by the share of
its spread that chance explains (James and Stein 1961). The base of a band that nobody has reached follows the band
before. So before anything is seen the order is that of recency, exactly lru's.

``fit`` works in slices of less than a millisecond, so that a scheduler's thread can fit a little at each turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.age_bands import BANDS, MIDDLES, SPAN_OF, SPANS
from radix_tlru.learning.gittins import by_age_steps, gittins
from radix_tlru.learning.turn_features import SIZES, Features
from radix_tlru.learning.turn_log import Intervals

__all__ = ["HazardModel"]

_RECENCY = 0.3
"""Hazard times age before anything was seen. It scales all rates alike and matters beside prefixes alone."""

_EFFECT_PRIOR = 8.0
"""Returns that weigh as much as the prior of an effect. Half or twice: one point of the gap to the optimum."""

_BASE_PRIOR = 2.0
"""Returns that weigh as much as the neighbouring band does in the base."""

_SWEEPS = 2
"""Times that every effect is set anew in a fit. The next fit begins where this one ended."""

_TOO_FEW = 0.25
"""Expected returns below which a category says nothing about the spread of an effect."""

_EDGES = np.array(BANDS)
_ALL_EDGES = np.append(_EDGES, 1e9)  # s, beyond any age
_SPANS = len(SPANS)

Array = NDArray[np.float64]


class _Ages(NamedTuple):
    """Of each row an age, s, and the band that it is in."""

    times: Array
    bands: NDArray[np.intp]

    def of(self, rows: NDArray[np.intp]) -> _Ages:
        return _Ages(self.times[rows], self.bands[rows])


class HazardModel:
    """Base and effects. A model does not change; ``fit`` makes the next one."""

    def __init__(self, base: Array | None = None, effects: tuple[Array, ...] | None = None) -> None:
        self.base = np.zeros(len(BANDS)) if base is None else base
        """Log factor of each band."""
        self.effects = tuple(np.zeros((size, _SPANS)) for size in SIZES) if effects is None else effects
        """Log factors of each feature, by category and span of ages."""
        self._band_hazards = _RECENCY / MIDDLES * np.exp(self.base)
        self.indexes: dict[Features, list[float]] = {}
        """What :meth:`index` said, of those that were asked for."""

    def hazards(self, features: Features) -> Array:
        """By band, 1 / s."""
        effect = np.zeros(_SPANS)
        for values, category in zip(self.effects, features, strict=True):
            effect += values[category]
        hazards: Array = self._band_hazards * np.exp(effect)[SPAN_OF]
        return hazards

    def index(self, features: Features) -> list[float]:
        """The Gittins index at each of ``age_bands.AGES``, 1 / s."""
        found = self.indexes.get(features)
        if found is None:
            found = self.indexes[features] = by_age_steps(gittins(self.hazards(features)))
        return found

    def predicted_returns(self, intervals: Intervals) -> Array:
        """Returns that are expected in each interval, by span of ages: shape (spans, rows)."""
        expected: Array = np.exp(self._effects_of(intervals.features))
        expected *= _returns_by_span(self._band_hazards, _ages(intervals.start), _ages(intervals.end))
        return expected

    def _effects_of(self, features: NDArray[np.uint8]) -> Array:
        """By span and row: rows are many, and numpy is fast along the last axis."""
        total = np.zeros((_SPANS, len(features)))
        for position, values in enumerate(self.effects):
            total += _by_row(values, features[:, position])
        return total

    def fit(self, intervals: Intervals) -> Iterator[HazardModel | None]:
        """The next model, which sees these intervals and begins with this one: the last of what is yielded."""
        features, start, end = intervals.features, _ages(intervals.start), _ages(intervals.end)
        late = np.flatnonzero(intervals.start)  # intervals that begin at an age above 0
        yield None
        bands = end.bands[intervals.returned]
        seen_in_band = np.bincount(bands, minlength=len(BANDS)).astype(float)
        returned = features[intervals.returned]
        yield None
        base, effects = self.base, list(self.effects)
        logs = self._effects_of(features)
        for _ in range(_SWEEPS):
            yield None
            expected = np.exp(logs)
            yield None
            spent = _spent_before(end, expected)
            yield None
            spent -= _spent_before(start.of(late), np.take(expected, late, axis=1))
            # What intervals and bands have in common, in each band by the weights of its span.
            exposure = np.diff(spent, axis=1)[SPAN_OF, np.arange(len(BANDS))]
            base = _fit_base(seen_in_band, exposure * _RECENCY / MIDDLES)
            yield None
            expected *= _returns_by_span(_RECENCY / MIDDLES * np.exp(base), start, end)
            for position, size in enumerate(SIZES):
                yield None
                before, categories = effects[position], features[:, position]
                seen = _count(returned[:, position], SPAN_OF[bands], size)
                without = _sum(categories, expected, size) * np.exp(-before)
                effects[position] = _shrink(seen, without)
                step = effects[position] - before
                logs += _by_row(step, categories)
                expected *= _by_row(np.exp(step), categories)
        yield None
        yield HazardModel(base, tuple(effects))


def _fit_base(seen: Array, expected: Array) -> Array:
    """Log factors of the bands, each drawn towards the one before; the first towards that of all."""
    before = np.log((seen.sum() + _BASE_PRIOR) / (expected.sum() + _BASE_PRIOR))
    base = np.empty(len(BANDS))
    for band in range(len(BANDS)):
        before = base[band] = np.log((seen[band] + _BASE_PRIOR) / (expected[band] + _BASE_PRIOR * np.exp(-before)))
    return base


def _shrink(seen: Array, expected: Array) -> Array:
    """Log factors by category and span: seen over expected, centred, less what could be chance."""
    effect = np.log((seen + _EFFECT_PRIOR) / (expected + _EFFECT_PRIOR))
    total = np.maximum(expected.sum(axis=0), 1e-9)
    effect -= np.log(np.maximum((expected * np.exp(effect)).sum(axis=0), 1e-9) / total)
    by_chance = expected * (seen.sum(axis=0) / total)
    counts = by_chance > _TOO_FEW
    spread = np.where(counts, (seen - by_chance) ** 2 / np.maximum(by_chance, _TOO_FEW), 0.0).sum(axis=0)
    freedom = np.maximum(counts.sum(axis=0) - 1, 0)
    shrunk: Array = effect * np.maximum(1.0 - freedom / np.maximum(spread, 1e-9), 0.0)
    return shrunk


def _ages(times: Array) -> _Ages:
    return _Ages(times, np.maximum(np.searchsorted(_EDGES, times, side="right") - 1, 0))


def _spent_before(ages: _Ages, weights: Array) -> Array:
    """Σ over rows of weight · min(age, edge), for each span and edge of a band."""
    size, times = len(_ALL_EDGES), ages.times
    over = np.cumsum([np.bincount(ages.bands + 1, of_span * times, size) for of_span in weights], axis=1)
    under = np.cumsum([np.bincount(ages.bands + 1, of_span, size) for of_span in weights], axis=1)
    spent: Array = over + (under[:, -1:] - under) * _ALL_EDGES
    return spent


def _returns_by_span(band_hazards: Array, start: _Ages, end: _Ages) -> Array:
    """The integral of the hazards over each interval: by span of ages and row."""
    integral = np.append(0.0, np.cumsum(band_hazards * np.diff(_ALL_EDGES)))
    begins = integral[[int(np.argmax(span == SPAN_OF)) for span in range(_SPANS)]]
    bounds = np.append(begins, integral[-1])[:, None]
    since, until = (
        integral[ages.bands] + (ages.times - _EDGES[ages.bands]) * band_hazards[ages.bands] for ages in (start, end)
    )
    low, high = bounds[:-1], bounds[1:]
    expected: Array = np.clip(until, low, high) - np.clip(since, low, high)
    return expected


def _by_row(values: Array, categories: NDArray[np.uint8]) -> Array:
    """Values by category and span, to the rows that are of these categories: by span and row."""
    found: Array = np.take(values.T, categories, axis=1)
    return found


def _count(categories: NDArray[np.uint8], spans: NDArray[np.intp], size: int) -> Array:
    counts = np.bincount(categories.astype(np.intp) * _SPANS + spans, minlength=size * _SPANS)
    return counts.reshape(size, _SPANS).astype(float)


def _sum(categories: NDArray[np.uint8], values: Array, size: int) -> Array:
    return np.stack([np.bincount(categories, of_span, size) for of_span in values], axis=1)
