"""Returns that were foretold, against those that came: whether the learned hazards can be believed.

What is foretold of a conversation while it is silent is the integral of its hazard over the time it was watched. For
hazards that are true the sum over all conversations is the number of returns to be seen, in every band of ages. Each
conversation is foretold by the hazards in force when it came into the band: by the past alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Calibration", "Forecast"]


class Calibration(NamedTuple):
    """Of a span of ages: what was seen of conversations that something was foretold of."""

    watched_s: float  # silent, all of them together
    expected: float  # returns, within that time
    returns: int


class Forecast:
    """Adds up what is foretold and what comes.

    Args:
        bands: ages at which bands begin, s.
    """

    def __init__(self, bands: Sequence[float]) -> None:
        self._bands = bands
        self._hazards: Mapping[tuple[int, ...], Sequence[float]] = {}
        # Of those that have left a band.
        self._watched, self._expected, self._returns = [0.0] * len(bands), [0.0] * len(bands), [0] * len(bands)
        # Of those that are in it: how many, the sum of their hazards, and each weighted by when they came into it.
        self._there = [0] * len(bands)
        self._hazard, self._since = [0.0] * len(bands), [0.0] * len(bands)
        self._hazard_since = [0.0] * len(bands)

    def use(self, hazards: Mapping[tuple[int, ...], Sequence[float]]) -> None:
        """Foretell by other hazards from now on: by band (1 / s), of each class, whose parent is ``cls[:-1]``."""
        self._hazards = hazards

    def enter(self, cls: tuple[int, ...], stamp: float, band: int) -> float | None:
        """A conversation that was last heard of at ``stamp`` (s) comes into a band; returns its hazard, if known."""
        while cls not in self._hazards:
            if not cls:
                return None
            cls = cls[:-1]
        hazard = self._hazards[cls][band]
        self._count(band, 1, hazard, stamp + self._bands[band])
        return hazard

    def leave(self, hazard: float | None, stamp: float, band: int, spent: float, returned: bool) -> None:
        """The same leaves the band, after ``spent`` seconds in it."""
        if hazard is not None:
            self._count(band, -1, hazard, stamp + self._bands[band])
            self._watched[band] += spent
            self._expected[band] += hazard * spent
            self._returns[band] += returned

    def _count(self, band: int, one: int, hazard: float, since: float) -> None:
        self._there[band] += one
        self._hazard[band] += one * hazard
        self._since[band] += one * since
        self._hazard_since[band] += one * hazard * since

    def calibration(self, now: float, starts: Sequence[float]) -> list[Calibration]:
        """Up to ``now`` (s), the bands taken together from each of those ``starts`` (s, rising) to the next."""
        found = [Calibration(0.0, 0.0, 0) for _ in starts]
        for band, begin in enumerate(self._bands):
            span = bisect_right(starts, begin) - 1
            watched, expected, returns = found[span]
            # Who is still there has been silent so far.
            watched += self._watched[band] + self._there[band] * now - self._since[band]
            expected += self._expected[band] + self._hazard[band] * now - self._hazard_since[band]
            found[span] = Calibration(watched, expected, returns + self._returns[band])
        return found
