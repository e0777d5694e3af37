"""When the hazards are estimated anew: a slice at each turn, so that no turn takes long.

That is after a quarter more turns, 500 at most. Where the traffic changes it is sooner: every 100 turns what the model
in force predicted is held against what came.

Turns are counted. A fit begins at a certain turn, does a certain part at each turn after it, and its model comes into
force at a certain turn. So ranks that are told of the same turns have the same model at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.reliability import Reliability
from radix_tlru.learning.turn_log import TurnLog

__all__ = ["Refits"]

_FIRST = 64  # turns before the first fit
_GROWTH = 4  # the next fit begins after 1 / _GROWTH more turns, within the next two bounds
_FEWEST = 32  # turns from one fit to the next, at least
_MOST = 500  # turns from one fit to the next, at most
_CHECKED = 100  # turns from one look at whether predictions hold to the next
_SMALL = 2_000  # turns up to which a slice is so short that a turn can do four
_KINDS = 256  # kinds of turns whose index is computed before a model comes into force, at most
_FOR_KINDS = 8  # turns that a kind needs for that; the index of a rarer one is computed when a decision asks for it
_INDEXES = 8  # kinds whose index a slice computes: a decision that asks for many at once would wait


class Refits:
    """Fits the model of a log again and again.

    Args:
        log: of turns. It is read, not written.
    """

    def __init__(self, log: TurnLog) -> None:
        self._log = log
        self.model = HazardModel()
        """The model in force."""
        self.reliability = Reliability()
        """Returns predicted by the models that were in force, against those seen."""
        self._begin_at = self._check_at = _FIRST
        self._fit: Iterator[HazardModel | None] | None = None

    def restore(self, model: HazardModel) -> None:
        """Begin with the model of a former run, whose turns are in the log."""
        self.model = model
        if self._log.written:
            self._begin_at = _next_fit(self._log.written)
            self._plan_check(self._log.written)

    @property
    def under_way(self) -> bool:
        """Whether the next turn that is counted does a part of a fit or of a check, or begins one."""
        return self._fit is not None or self._log.written >= min(self._begin_at, self._check_at)

    def count_turn(self) -> bool:
        """A turn was written to the log. Returns whether another model is in force."""
        if not self.under_way:
            return False
        turns = self._log.written
        if self._fit is None:
            self._fit = self._slices()
        for _ in range(4 if turns < _SMALL else 1):
            found = next(self._fit, self.model)
            if found is not None:
                is_new, self.model, self._fit = found is not self.model, found, None
                return is_new
        return False

    def _plan_check(self, turns: int) -> None:
        """The next check is 100 turns later, or with the next fit if that is less than 200 later: none delays it."""
        later = turns + _CHECKED
        self._check_at = later if self._begin_at - later >= _CHECKED else self._begin_at

    def _slices(self) -> Iterator[HazardModel | None]:
        """A check, and a fit if the time has come or predictions do not hold: the last that is yielded is its model."""
        turns, intervals = self._log.written, self._log.intervals()
        yield None
        yield from self.reliability.count(self.model, intervals, self._log.now)
        is_due = turns >= self._begin_at or not self.reliability.holds
        if is_due:
            self._begin_at = _next_fit(turns)
        self._plan_check(turns)
        if not is_due:
            return
        model = self.model
        for found in model.fit(intervals):
            if found is None:
                yield None
            else:
                model = found
        most = min(_KINDS, turns // _FOR_KINDS)
        kinds = iter(intervals.kinds(most))
        for _ in range(0, most, _INDEXES):
            yield None
            for features in islice(kinds, _INDEXES):
                model.index(features)
        yield model


def _next_fit(turns: int) -> int:
    """The turn at which the fit after this one begins."""
    return turns + min(max(turns // _GROWTH, _FEWEST), _MOST)
