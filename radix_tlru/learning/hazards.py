"""When conversations return, learned online: hazards by class and age, and what they make a conversation worth.

A conversation of age a (the time since its last turn) returns in the next moment dt with probability h(a) dt. The
hazard h is taken to be constant within a band of ages and is estimated for each class of conversations by

    returns seen in the band / time spent in the band (by all that were there, whether or not they returned),

which is the maximum-likelihood estimate of a piecewise exponential model and takes conversations that have not
returned yet for what they are: silent so far. A class that has seen little is drawn towards its parent: the classes are
tuples of buckets, and the parent of ``(3, 1)`` is ``(3,)``, whose parent is ``()``, all conversations. How a class
differs from its parent is taken to change smoothly with age, so each band is judged with its neighbours. Of a band that
nobody was in yet it is believed that silence goes on as it began: from the band before, hazards fall as 1 / age.

What decides is not the hazard of the moment but the index of :func:`gittins`. Chat users read before they answer, so a
fresh conversation has a low hazard that will soon be high.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from radix_tlru.learning.reliability import Forecast

__all__ = ["BANDS", "Class", "Hazards", "Unasked", "Watched", "band_of", "gittins", "runs"]

Class = tuple[int, ...]
"""What a conversation has in common with others, from the coarse to the fine."""

# Ages at which bands begin, s: doubling while nobody has read the answer yet, then two to a doubling.
_STARTS = (0.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 45.0, 64.0, 90.0, 128.0, 180.0, 256.0, 360.0, 512.0, 720.0)
BANDS = (*_STARTS, 1024.0, 1440.0, 2048.0, 4096.0, 8192.0, 16384.0)
"""Ages at which bands begin, s; the last one never ends."""

_WIDTHS = (*(end - start for start, end in pairwise(BANDS)), math.inf)
_RECENCY = tuple(1.0 / max(end, 1.0) for end in (*BANDS[1:], 2 * BANDS[-1]))  # λ = 1 / age, 1 / s
_NEIGHBOUR = 0.5  # what is seen in a band counts so much in the next, and its square in the one after
_ALIKE, _LONGEST_RUN = 1.1, 4  # how much the index of two bands may differ that are taken for one; bands in a row
_MOST_WATCHED = 100_000  # conversations; beyond, the longest silent are no longer watched


def band_of(age_s: float) -> int:
    """The band of an age (s); of a negative one, the first."""
    return max(bisect_right(BANDS, age_s) - 1, 0)


def gittins(hazards: Sequence[float]) -> list[float]:
    """What a conversation is worth in each band, 1 / s: the best it promises for the time that its space is held.

    ``sup over h of P(returns within h) / E[time held until it returns or h has passed]`` (the Gittins index of the job
    of waiting for it), with h at the ends of bands, for a conversation that has just come into the band.

    >>> gittins([0.01] * len(BANDS))[3] == gittins([0.01] * len(BANDS))[10]  # a constant hazard is its own index
    True
    """
    alive, held = [1.0], [0.0]  # at the start of each band: P(silent so far) and E[time held until then]
    for hazard, width in zip(hazards[:-1], _WIDTHS[:-1], strict=True):
        survival = math.exp(-hazard * width)
        held.append(held[-1] + alive[-1] * (1.0 - survival) / hazard)
        alive.append(alive[-1] * survival)
    index = []
    for band, hazard in enumerate(hazards):
        best = hazard
        silent, spent = alive[band], held[band]
        for later in range(band + 1, len(hazards)):
            if held[later] > spent:
                best = max(best, (silent - alive[later]) / (held[later] - spent))
        index.append(best)
    return index


def runs(index: Sequence[float]) -> list[tuple[int, int, int]]:
    """Of each band, the first of those that can be taken for one with it, the one after the last, and the first later.

    These are bands in a row whose index is, to a tenth, that of their first; few of them, as what is known while a
    conversation is in them changes. The last of the three is the first band behind them of less index.

    >>> runs([0.02] * 5 + [0.01] * (len(BANDS) - 5))[:6]
    [(0, 4, 5), (0, 4, 5), (0, 4, 5), (0, 4, 5), (4, 5, 5), (5, 9, 22)]
    """
    found: list[tuple[int, int, int]] = []
    while len(found) < len(index):
        first, end = len(found), len(found) + 1
        least, most = index[first] / _ALIKE, index[first] * _ALIKE
        while end < min(first + _LONGEST_RUN, len(index)) and least <= index[end] <= most:
            end += 1
        falls = next((band for band in range(end, len(index)) if index[band] < index[first]), len(index))
        found += [(first, end, falls)] * (end - first)
    return found


def _nearby(counts: Sequence[float]) -> list[float]:
    """Of each band, with what its neighbours on both sides count for it."""
    below = list(accumulate(counts, lambda before, count: _NEIGHBOUR * before + count))
    above = list(accumulate(reversed(counts), lambda before, count: _NEIGHBOUR * before + count))[::-1]
    return [low + high - count for low, high, count in zip(below, above, counts, strict=True)]


@dataclass(eq=False, slots=True)
class Watched:
    """A conversation that may return."""

    cls: Class
    stamp: float  # of its last turn, s
    band: int = field(default=-1, init=False)  # that it is counted in; -1 while nobody watches
    counts: _Counts | None = field(default=None, init=False)
    hazard: float | None = field(default=None, init=False)  # in that band, as it was foretold


class _Counts:
    """Of one class, by band."""

    __slots__ = ("at_risk", "exposure", "returns", "stamps")

    def __init__(self) -> None:
        self.returns = [0.0] * len(BANDS)
        self.exposure = [0.0] * len(BANDS)  # s, by those that have left the band
        self.at_risk = [0] * len(BANDS)  # conversations that are in the band
        self.stamps = [0.0] * len(BANDS)  # the sum of their stamps, s


class Hazards:
    """Counts returns and silence by class and age. Memory: the conversations watched, at most 100,000.

    Args:
        half_life: observations after which what was seen counts half.
        strength: returns that must have been seen to be believed as much as what is believed without them: in a band,
            of all conversations; of a class, as to its level; of a class, in and about a band.
    """

    def __init__(self, half_life: float = 20_000, strength: tuple[float, float, float] = (1.0, 8.0, 3.0)) -> None:
        self._half_life, self._strength = half_life, strength
        self._counts: dict[Class, _Counts] = {}
        self._bands: tuple[deque[Watched], ...] = tuple(deque() for _ in BANDS)
        self.now = 0.0
        """The newest stamp seen, s."""
        self.returns = 0
        """Returns seen so far."""
        self.forecast = Forecast(BANDS)
        """What each estimate foretells, until the next."""
        self._seen = 0
        self._decayed = 0

    def watch(self, conversation: Watched) -> None:
        """A turn was taken: from its stamp on the conversation may return."""
        self._advance(conversation.stamp)
        conversation.stamp = self.now  # time does not run backwards
        counts = self._counts.get(conversation.cls)
        if counts is None:
            counts = self._counts[conversation.cls] = _Counts()
        conversation.counts = counts
        self._enter(conversation, 0)
        self._seen += 1
        while sum(map(len, self._bands)) > _MOST_WATCHED:
            self._drop_oldest()

    def returned(self, conversation: Watched, stamp: float) -> None:
        """The conversation took its next turn at ``stamp`` (s)."""
        self._advance(stamp)
        self._stop(conversation, returned=True)

    def forget(self, conversation: Watched) -> None:
        """It cannot be told any more whether the conversation returns; its silence so far counts."""
        self._stop(conversation, returned=False)

    def estimate(self) -> dict[Class, list[float]]:
        """Hazards by band (1 / s) of each class seen and of its ancestors."""
        self._decay()
        returns: dict[Class, list[float]] = {(): [0.0] * len(BANDS)}
        exposure: dict[Class, list[float]] = {(): [0.0] * len(BANDS)}
        for cls, counts in self._counts.items():
            for band, start in enumerate(BANDS):
                pending = counts.at_risk[band] * (self.now - start) - counts.stamps[band]
                for depth in range(len(cls) + 1):
                    ancestor = cls[:depth]
                    if ancestor not in returns:
                        returns[ancestor], exposure[ancestor] = [0.0] * len(BANDS), [0.0] * len(BANDS)
                    returns[ancestor][band] += counts.returns[band]
                    exposure[ancestor][band] += counts.exposure[band] + pending
        hazards: dict[Class, list[float]] = {}
        for cls in sorted(returns, key=len):
            seen, spent = returns[cls], exposure[cls]
            hazards[cls] = self._of_class(seen, spent, hazards[cls[:-1]]) if cls else self._of_all(seen, spent)
        self.forecast.use(hazards)
        return hazards

    def _of_all(self, seen: Sequence[float], spent: Sequence[float]) -> list[float]:
        strength = self._strength[0]
        hazards: list[float] = []
        believed = _RECENCY[0]
        for band, (returns, exposure) in enumerate(zip(seen, spent, strict=True)):
            if band:
                believed = hazards[-1] * _RECENCY[band] / _RECENCY[band - 1]
            hazards.append((returns + strength) / (exposure + strength / believed))
        return hazards

    def _of_class(self, seen: Sequence[float], spent: Sequence[float], parent: Sequence[float]) -> list[float]:
        """The parent's, times what the class saw about each band as against what the parent would have foretold."""
        _, level, shape = self._strength
        foretold = [exposure * hazard for exposure, hazard in zip(spent, parent, strict=True)]
        overall = (sum(seen) + level) / (sum(foretold) + level)
        return [
            hazard * (returns + shape * overall) / (expected + shape)
            for hazard, returns, expected in zip(parent, _nearby(seen), _nearby(foretold), strict=True)
        ]

    def _advance(self, stamp: float) -> None:
        """Let time pass: conversations that have been silent long enough enter their next band."""
        if stamp <= self.now:
            return
        self.now = stamp
        for band in range(len(BANDS) - 1):
            waiting, born = self._bands[band], stamp - BANDS[band + 1]
            while waiting and waiting[0].stamp <= born:
                conversation = waiting.popleft()
                if conversation.band == band:
                    self._leave(conversation, _WIDTHS[band])
                    self._enter(conversation, band + 1)

    def _enter(self, conversation: Watched, band: int) -> None:
        counts = conversation.counts
        assert counts is not None
        conversation.band = band
        counts.at_risk[band] += 1
        counts.stamps[band] += conversation.stamp
        conversation.hazard = self.forecast.enter(conversation.cls, conversation.stamp, band)
        self._bands[band].append(conversation)

    def _leave(self, conversation: Watched, spent: float, returned: bool = False) -> None:
        counts, band = conversation.counts, conversation.band
        assert counts is not None
        conversation.band = -1
        counts.at_risk[band] -= 1
        counts.stamps[band] -= conversation.stamp
        counts.exposure[band] += spent
        self.forecast.leave(conversation.hazard, conversation.stamp, band, spent, returned)

    def _stop(self, conversation: Watched, returned: bool) -> None:
        band = conversation.band
        if band < 0:
            return
        self._leave(conversation, self.now - conversation.stamp - BANDS[band], returned)
        if returned:
            assert conversation.counts is not None
            conversation.counts.returns[band] += 1
            self.returns += 1

    def _drop_oldest(self) -> None:
        oldest = next(waiting for waiting in reversed(self._bands) if waiting)
        self.forget(oldest.popleft())

    def _decay(self) -> None:
        factor = 0.5 ** ((self._seen - self._decayed) / self._half_life)
        self._decayed = self._seen
        for counts in self._counts.values():
            counts.returns = [value * factor for value in counts.returns]
            counts.exposure = [value * factor for value in counts.exposure]


class Unasked(Hazards):
    """Of a policy that does not ask who returns: counts that somebody did, and nothing else."""

    def watch(self, conversation: Watched) -> None:
        self.now = conversation.stamp = max(self.now, conversation.stamp)

    def returned(self, conversation: Watched, stamp: float) -> None:
        self.now = max(self.now, stamp)
        self.returns += 1

    def forget(self, conversation: Watched) -> None:
        pass
