"""Are the learned hazards reliable? Returns that were predicted, against those that came.

What is predicted for a silent conversation is the integral of its hazard over the time it was watched. For true hazards
the sum over all conversations is the number of returns to be seen, in every band of ages. Each conversation is
predicted by the hazards in force when it came into the band: by the past alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Reliability", "ReturnsByAge"]


class ReturnsByAge(NamedTuple):
    """Of a span of ages: what was seen of conversations whose return was predicted."""

    watched_s: float  # silent, all of them together
    predicted: float  # returns, within that time
    returns: int


class Reliability:
    """Adds up what is predicted and what is seen.

    Args:
        bands: ages at which bands begin, s.
    """

    def __init__(self, bands: Sequence[float]) -> None:
        self._bands = bands
        self._hazards: Mapping[tuple[int, ...], Sequence[float]] = {}
        # Of conversations that have left a band.
        self._watched, self._predicted, self._returns = [0.0] * len(bands), [0.0] * len(bands), [0] * len(bands)
        # Of those in it: how many, the sums of their hazards and of when they came in, and of the products of the two.
        self._there = [0] * len(bands)
        self._hazard, self._since = [0.0] * len(bands), [0.0] * len(bands)
        self._hazard_since = [0.0] * len(bands)

    def predict_by(self, hazards: Mapping[tuple[int, ...], Sequence[float]]) -> None:
        """Predict by other hazards from now on: by band (1 / s), of each class, whose parent is ``cls[:-1]``."""
        self._hazards = hazards

    def enter_band(self, cls: tuple[int, ...], stamp: float, band: int) -> float | None:
        """A conversation whose last turn was at ``stamp`` (s) comes into a band. Returns its hazard, if known."""
        while cls not in self._hazards:
            if not cls:
                return None
            cls = cls[:-1]
        hazard = self._hazards[cls][band]
        self._count(band, 1, hazard, stamp + self._bands[band])
        return hazard

    def leave_band(self, hazard: float | None, stamp: float, band: int, spent: float, returned: bool) -> None:
        """The same conversation leaves the band, after ``spent`` seconds in it."""
        if hazard is not None:
            self._count(band, -1, hazard, stamp + self._bands[band])
            self._watched[band] += spent
            self._predicted[band] += hazard * spent
            self._returns[band] += returned

    def _count(self, band: int, one: int, hazard: float, since: float) -> None:
        self._there[band] += one
        self._hazard[band] += one * hazard
        self._since[band] += one * since
        self._hazard_since[band] += one * hazard * since

    def by_age(self, now: float, starts: Sequence[float]) -> list[ReturnsByAge]:
        """Up to ``now`` (s), the bands added up from each of those ``starts`` (s, rising) to the next."""
        found = [ReturnsByAge(0.0, 0.0, 0) for _ in starts]
        for band, begin in enumerate(self._bands):
            span = bisect_right(starts, begin) - 1
            watched, predicted, returns = found[span]
            # Who is still there has been silent so far.
            watched += self._watched[band] + self._there[band] * now - self._since[band]
            predicted += self._predicted[band] + self._hazard[band] * now - self._hazard_since[band]
            found[span] = ReturnsByAge(watched, predicted, returns + self._returns[band])
        return found
