"""When conversations return, learned online: hazards by class and age.

A conversation of age a (the time since its last turn) returns in the next moment dt with probability h(a) dt. The
hazard h is taken to be constant within a band of ages. It is estimated for each class of conversations by

    returns seen in the band / time spent in the band (by all that were there, whether or not they returned).

This is the maximum-likelihood estimate of a piecewise exponential model. It takes conversations that have not returned
yet for what they are: silent so far.

A class that has seen little is drawn towards its parent. Classes are tuples of buckets: the parent of ``(3, 1)`` is
``(3,)``, whose parent is ``()``, all conversations. How a class differs from its parent is taken to change smoothly
with age, so each band is judged with its neighbours. A band that nobody was in yet follows the one before, as 1 / age.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from radix_tlru.learning.age_bands import BANDS, WIDTHS
from radix_tlru.learning.records import Class, Watched
from radix_tlru.learning.reliability import Reliability

__all__ = ["Hazards", "ReturnCount"]

_RECENCY = tuple(1.0 / max(end, 1.0) for end in (*BANDS[1:], 2 * BANDS[-1]))  # λ = 1 / age, 1 / s
_NEIGHBOUR = 0.5  # what is seen in a band counts so much in the next, and its square in the one after
_MOST_WATCHED = 100_000  # conversations; beyond, the longest silent are no longer watched


def _nearby(counts: Sequence[float]) -> list[float]:
    """Of each band, with what its neighbours on both sides add to it."""
    below = list(accumulate(counts, lambda before, count: _NEIGHBOUR * before + count))
    above = list(accumulate(reversed(counts), lambda before, count: _NEIGHBOUR * before + count))[::-1]
    return [low + high - count for low, high, count in zip(below, above, counts, strict=True)]


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
        strength: returns that weigh as much as the prior does: in a band of all conversations; for the level of a
            class; for the shape of a class, in a band and its neighbours.
    """

    def __init__(self, half_life: float = 20_000, strength: tuple[float, float, float] = (1.0, 8.0, 3.0)) -> None:
        self._half_life, self._strength = half_life, strength
        self._counts: dict[Class, _Counts] = {}
        self._bands: tuple[deque[Watched], ...] = tuple(deque() for _ in BANDS)
        self.now = 0.0
        """The newest stamp seen, s."""
        self.returns = 0
        """Returns seen so far."""
        self.reliability = Reliability(BANDS)
        """Returns predicted by each estimate, against those seen."""
        self._seen = 0
        self._decayed = 0

    def start_watching(self, conversation: Watched) -> None:
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

    def count_return(self, conversation: Watched, stamp: float) -> None:
        """The conversation took its next turn at ``stamp`` (s)."""
        self._advance(stamp)
        self._stop(conversation, returned=True)

    def stop_watching(self, conversation: Watched) -> None:
        """Nobody will see any more whether the conversation returns. Its silence so far counts."""
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
        self.reliability.predict_by(hazards)
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
        """The parent's, times what the class saw about each band as against what the parent would have predicted."""
        _, level, shape = self._strength
        predicted = [exposure * hazard for exposure, hazard in zip(spent, parent, strict=True)]
        overall = (sum(seen) + level) / (sum(predicted) + level)
        return [
            hazard * (returns + shape * overall) / (expected + shape)
            for hazard, returns, expected in zip(parent, _nearby(seen), _nearby(predicted), strict=True)
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
                    self._leave(conversation, WIDTHS[band])
                    self._enter(conversation, band + 1)

    def _enter(self, conversation: Watched, band: int) -> None:
        counts = conversation.counts
        assert counts is not None
        conversation.band = band
        counts.at_risk[band] += 1
        counts.stamps[band] += conversation.stamp
        conversation.hazard = self.reliability.enter_band(conversation.cls, conversation.stamp, band)
        self._bands[band].append(conversation)

    def _leave(self, conversation: Watched, spent: float, returned: bool = False) -> None:
        counts, band = conversation.counts, conversation.band
        assert counts is not None
        conversation.band = -1
        counts.at_risk[band] -= 1
        counts.stamps[band] -= conversation.stamp
        counts.exposure[band] += spent
        self.reliability.leave_band(conversation.hazard, conversation.stamp, band, spent, returned)

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
        self.stop_watching(oldest.popleft())

    def _decay(self) -> None:
        factor = 0.5 ** ((self._seen - self._decayed) / self._half_life)
        self._decayed = self._seen
        for counts in self._counts.values():
            counts.returns = [value * factor for value in counts.returns]
            counts.exposure = [value * factor for value in counts.exposure]


class ReturnCount(Hazards):
    """For a policy that does not ask who returns: counts returns, and nothing else."""

    def start_watching(self, conversation: Watched) -> None:
        self.now = conversation.stamp = max(self.now, conversation.stamp)

    def count_return(self, conversation: Watched, stamp: float) -> None:
        self.now = max(self.now, stamp)
        self.returns += 1

    def stop_watching(self, conversation: Watched) -> None:
        pass
