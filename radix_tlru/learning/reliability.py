"""Are the learned hazards reliable? Returns that were predicted, against those that came.

What is predicted for a silent conversation is the integral of its hazard over the time it was watched. For true hazards
the sum over all conversations is the number of returns to be seen, at every age. Each stretch of time is predicted by
the model in force when it began: by the past alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from radix_tlru.learning.age_bands import SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.turn_log import Intervals

__all__ = ["Reliability", "ReturnsByAge"]

_PARTS = 4  # slices in which returns are predicted

_RATIO = 1.5
"""Of returns that came to those that were predicted, or the other way round, beyond which predictions do not hold."""

_DEVIATIONS = 4.0
"""Of the number that was predicted, left to chance beside that. There are five spans of ages, and ten looks in 1,000
turns: 3 would be exceeded by chance alone every few thousand turns."""

_LEAST = 4.0
"""Returns whose deviation is left to chance at least: a few may come together, as parallel calls do."""


class ReturnsByAge(NamedTuple):
    """Of a span of ages: what was seen of conversations whose return was predicted."""

    watched_s: float  # silent, all of them together
    predicted: float  # returns, within that time
    returns: int


class Reliability:
    """Adds up what is predicted and what is seen, once for each model."""

    def __init__(self) -> None:
        self.by_age = [ReturnsByAge(0.0, 0.0, 0) for _ in SPANS]
        """Since the first model, by span of ages (``age_bands.SPANS``)."""
        self.holds = True
        """Whether as many came as were predicted, at all ages, since it was counted the time before."""
        self._until = 0.0  # s, up to which it is counted

    def count(self, model: HazardModel, intervals: Intervals, now: float) -> Iterator[None]:
        """Count up to ``now`` (s), by the model that was in force since the last time."""
        since, self._until = self._until, now
        lately = intervals.after(since)
        yield None
        edges = np.array([*SPANS, np.inf])
        low, high = edges[:-1, None], edges[1:, None]
        watched = np.maximum(np.minimum(lately.end, high) - np.maximum(lately.start, low), 0.0).sum(axis=1)
        yield None
        predicted = np.zeros(len(SPANS))
        for part in lately.parts(_PARTS):
            predicted += model.predicted_returns(part).sum(axis=1)
            yield None
        seen = np.searchsorted(edges, lately.end[lately.returned], side="right") - 1
        returns = np.bincount(seen, minlength=len(SPANS))
        chance = _DEVIATIONS * np.sqrt(np.maximum(predicted, _LEAST))
        self.holds = not ((returns > _RATIO * predicted + chance) | (predicted > _RATIO * returns + chance)).any()
        self.by_age = [
            ReturnsByAge(
                before.watched_s + float(time), before.predicted + float(expected), before.returns + int(count)
            )
            for before, time, expected, count in zip(self.by_age, watched, predicted, returns, strict=True)
        ]
        yield None
