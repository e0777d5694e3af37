"""Which candidates would have been worse than lru in anything of late? Those are not put in force.

A candidate is admitted if, over the last 2,000 turns that the shadows served, it is not worse than lru by more than 1 %
in any of

- tokens prefilled: the mean, and with it the hit ratio;
- turns beyond lru's own p25, p50, p90, p95 and p99 of uncached tokens, which bounds these percentiles;
- turns over ξ;

To each difference a margin is added: half a standard error of the paired difference from lru, and none while the
candidate is in force. Only 20 of 2,000 turns are beyond p99, and chance alone moves their number. So the candidate in
force has to be worse there by one standard error.

Nor is a candidate admitted that has been worse of late, whatever it won before: of the last 250 turns more prefill more
than under lru than prefill less, by 2½ standard errors, and so does their sum, each by more than 1 %. The load has
changed then, or what was kept at first is paid for now.

Of those admitted the one with the least tail excess latency (TEL) takes over, if its TEL is lower than that of the one
in force by 1 % of lru's. To take the place of lru it is enough to prefill less, or to find more cached, by 1 %. But it
has to prefill less in more turns than it prefills more, by 2½ standard errors (a sign test, which a few long prompts do
not decide). There are 37 looks at the first 2,000 turns: at one of them about one in twenty candidates that are only as
good as lru seems that much better. So lru stays while nothing has been won, and while that cannot be told from chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.records import Verdict

__all__ = ["NUMBERED_REASONS", "REASONS", "Guard"]

_WINDOW = 2_000  # turns of the shadows that are judged, the newest
_EVERY = 50  # turns between two looks at them
_FIRST = 200  # turns before the first look
_TOLERANCE = 0.01  # share by which a candidate may be worse than lru in any figure
_ERRORS = 0.5  # margin, in standard errors
_RARE_ERRORS = 1.0  # standard errors by which a candidate in force has to be worse in p99 to be refused
_GAIN = 0.01  # share by which a candidate must be better than the one in force to replace it
_CLEAR_ERRORS = 2.5  # standard errors by which more turns must prefill less, to take the place of lru; or more, of late
_LATE = 250  # turns, the newest, in which that must not be: five looks
_PERCENTILES = (25, 50, 90, 95, 99)  # requests below p25 mostly find all cached; trimming lengthens those first

_FIGURES = ("mean", "over ξ", *(f"p{percentile}" for percentile in _PERCENTILES))
"""In which a candidate may be worse than lru, in the order in which they are looked at."""

_CHANCE = "chance"
"""Said of a candidate that prefills less than lru, and is worse in nothing, but not by as much as chance can do."""

_LATELY = "of late"
"""Said of a candidate that is worse in nothing over all turns that are judged, and was worse in the last of them."""

REASONS = (*_FIGURES, _CHANCE, _LATELY)
"""Why a candidate may not be in force."""

NUMBERED_REASONS = "; ".join(f"{number}: {reason}" for number, reason in enumerate(("none", *REASONS)))
"""How a number stands for a reason, where only numbers can be told."""


class Guard:
    """Says which candidate should be in force.

    Args:
        candidates: names, the preferred first among equals. The last is lru, and is in force until another takes
            over.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        self._names = list(candidates)
        self.preferred = self._names[-1]
        """Name of the candidate that should be in force."""
        self.refused: dict[str, str] = {}
        """Why not, at the last look, by name: the first figure in which a candidate was worse than lru, or chance."""
        self._uncached = np.zeros((len(self._names), _WINDOW), np.int64)  # a ring, by candidate
        self._prompt_len = np.zeros(_WINDOW, np.int64)
        self._seen = 0
        np.percentile(np.zeros(1), _PERCENTILES)  # numpy loads parts of it at the first use, which takes ms

    def count_turn(self, prompt_len: int, uncached: Sequence[int], threshold: int) -> None:
        """A turn was served by the shadows: its uncached tokens under each candidate. ξ and lengths are tokens."""
        place = self._seen % _WINDOW
        self._uncached[:, place], self._prompt_len[place] = uncached, prompt_len
        self._seen += 1
        if self._seen >= _FIRST and self._seen % _EVERY == 0:
            self._look(threshold)

    def snapshot(self) -> Verdict:
        """What it says, and of which turns, for another run to begin with."""
        newest = np.arange(max(self._seen - _WINDOW, 0), self._seen) % _WINDOW
        judged = np.vstack([self._prompt_len[newest], self._uncached[:, newest]])
        return Verdict(tuple(self._names), self.preferred, judged)

    def restore(self, verdict: Verdict) -> None:
        """Begin where another run ended, if it had the same candidates."""
        if verdict.candidates != tuple(self._names):
            return
        judged = verdict.judged[:, -_WINDOW:]
        self._seen = judged.shape[1]
        self._prompt_len[: self._seen], self._uncached[:, : self._seen] = judged[0], judged[1:]
        self.preferred = verdict.preferred

    def _look(self, threshold: int) -> None:
        turns = min(self._seen, _WINDOW)
        uncached, prompt_len = self._uncached[:, :turns], self._prompt_len[:turns]
        lru, newest = uncached[-1], np.arange(self._seen - min(turns, _LATE), self._seen) % _WINDOW
        now, last = self._names.index(self.preferred), len(self._names) - 1
        worse = [
            _worse_in(own, lru, prompt_len, threshold, is_in_force=number == now)
            or _worse_lately(own[newest], lru[newest], prompt_len[newest])
            for number, own in enumerate(uncached[:-1])
        ]
        self.refused = {name: figure for name, figure in zip(self._names, worse, strict=False) if figure is not None}
        admitted = [number for number, figure in enumerate(worse) if figure is None]
        if now not in admitted:
            now = last
        if now == last:
            less = [number for number in admitted if uncached[number].sum() < lru.sum()]
            admitted = [number for number in less if _is_clear(uncached[number], lru)]
            self.refused |= {self._names[number]: _CHANCE for number in less if number not in admitted}
        if admitted:
            excess = np.maximum(uncached - threshold, 0).sum(axis=1)
            best = min(admitted, key=lambda number: (excess[number], number))
            has_less_tel = excess[now] - excess[best] > _GAIN * excess[-1]
            prefills_less = (lru - uncached[best]).sum() > _GAIN * _lesser_sum(lru, prompt_len)
            if has_less_tel or (now == last and prefills_less):
                now = best
        self.preferred = self._names[now]


def _lesser_sum(uncached: NDArray[np.int64], prompt_len: NDArray[np.int64]) -> np.int64:
    """Tokens that were prefilled or tokens that were found cached, whichever are fewer."""
    prefilled: np.int64 = uncached.sum()
    return min(prefilled, prompt_len.sum() - prefilled)


def _worse_in(
    own: NDArray[np.int64], lru: NDArray[np.int64], prompt_len: NDArray[np.int64], threshold: int, is_in_force: bool
) -> str | None:
    """The first figure in which uncached tokens of turns are worse than lru's, with the margin added.

    A candidate in force has the benefit of the doubt, any other has to show that it is not worse.
    """
    usual_errors, rare_errors = (0.0, -_RARE_ERRORS) if is_in_force else (_ERRORS, _ERRORS)
    worse = own - lru
    allowed = _TOLERANCE * _lesser_sum(lru, prompt_len)
    if worse.sum() + usual_errors * _standard_error(worse) > allowed:
        return _FIGURES[0]
    over = own > threshold, lru > threshold
    if not _is_bounded(*over, _TOLERANCE * over[1].sum(), usual_errors):
        return _FIGURES[1]
    for figure, bound in zip(_FIGURES[2:], np.percentile(lru, _PERCENTILES), strict=True):
        errors = rare_errors if figure == _FIGURES[-1] else usual_errors
        if not _is_bounded(own > (1.0 + _TOLERANCE) * bound, lru > bound, 0.0, errors):
            return figure
    return None


def _worse_lately(own: NDArray[np.int64], lru: NDArray[np.int64], prompt_len: NDArray[np.int64]) -> str | None:
    """Whether more of these turns prefill more than under lru than prefill less, beyond chance, and more in all."""
    is_more = (own - lru).sum() > _TOLERANCE * _lesser_sum(lru, prompt_len)
    more, less = own > (1.0 + _TOLERANCE) * lru, own < lru
    return _LATELY if is_more and not _is_bounded(more, less, 0.0, -_CLEAR_ERRORS) else None


def _is_clear(own: NDArray[np.int64], lru: NDArray[np.int64]) -> bool:
    """Whether more turns prefill less than under lru than prefill more, beyond what chance can do."""
    return not _is_bounded(own < lru, own > lru, 0.0, -_CLEAR_ERRORS)


def _standard_error(differences: NDArray[np.int64]) -> float:
    """Of their sum, if nothing is won or lost on average."""
    return float(np.sqrt((differences.astype(float) ** 2).sum()))


def _is_bounded(own: NDArray[np.bool_], lru: NDArray[np.bool_], allowed: float, errors: float) -> bool:
    """Whether turns in ``own`` exceed those in ``lru`` by at most ``allowed``, ``errors`` standard errors added."""
    return bool(own.sum() - int(lru.sum()) + errors * np.sqrt((own != lru).sum()) <= allowed)
