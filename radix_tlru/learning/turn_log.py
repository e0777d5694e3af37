"""The last turns and what became of them: what hazards are learned from. A row costs a microsecond to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.turn_features import SIZES, Feature, Features

__all__ = ["TURN", "Intervals", "TurnLog"]

_ROWS = 8_192
"""Turns remembered. Half of them: noisier rates; twice as many: what was true an hour ago is believed longer."""

_NEVER = np.inf

TURN = np.dtype(
    [
        ("features", "u1", (len(SIZES),)),
        ("stamp", "<f8"),
        ("end", "<f8"),
        ("returned", "?"),
        ("superseded", "<f8"),
        ("supersession", "u1"),
    ]
)
"""A turn as it is saved. Times are s before the newest stamp of its run, so none is above 0. A turn whose return was
still watched for ends at 0."""


class Intervals(NamedTuple):
    """Stretches of silence, one or two of each turn: until it was superseded, and from then on. Ages in s."""

    features: NDArray[np.uint8]  # (rows, features)
    start: NDArray[np.float64]  # age at which the stretch begins
    end: NDArray[np.float64]  # age at which it ends
    returned: NDArray[np.bool_]  # whether it ended because the conversation returned
    stamp: NDArray[np.float64]  # when the conversation was of age 0

    def kinds(self, most: int) -> list[Features]:
        """The features that occur most often; of those that occur as often, in their order."""
        rows = np.ravel_multi_index(tuple(self.features.T), SIZES)
        found, counts = np.unique(rows, return_counts=True)
        often = found[np.argsort(-counts, kind="stable")[:most]]
        return list(zip(*(category.tolist() for category in np.unravel_index(often, SIZES)), strict=True))

    def parts(self, count: int) -> Iterator[Intervals]:
        """The same in so many parts."""
        columns = [np.array_split(column, count) for column in self]
        return (Intervals(*part) for part in zip(*columns, strict=True))

    def after(self, time: float) -> Intervals:
        """What of the stretches was after a time (s)."""
        start = np.maximum(self.start, time - self.stamp)
        rows = np.flatnonzero((start < self.end) | (self.returned & (self.stamp + self.end > time)))
        return Intervals(self.features[rows], start[rows], self.end[rows], self.returned[rows], self.stamp[rows])


class TurnLog:
    """A ring of the last turns. Rows are named by serial numbers, of which the last 8,192 are there."""

    def __init__(self) -> None:
        self.written = 0
        """Turns so far: the serial number of the next row."""
        self.returns = 0
        """Returns so far."""
        self.now = 0.0
        """The newest stamp seen, s."""
        self._features = np.zeros((_ROWS, len(SIZES)), np.uint8)
        self._stamp = np.zeros(_ROWS)
        self._end = np.full(_ROWS, _NEVER)  # when it returned, or nobody watched any more
        self._returned = np.zeros(_ROWS, np.bool_)
        self._superseded = np.full(_ROWS, _NEVER)  # when
        self._supersession = np.zeros(_ROWS, np.uint8)  # how

    def write_turn(self, features: Features, stamp: float) -> int:
        """A turn was served at ``stamp`` (s): from then on its conversation may return. Returns the serial number."""
        self.now = max(self.now, stamp)
        row = self.written % _ROWS
        self._features[row] = features
        self._stamp[row] = self.now  # time does not run backwards
        self._end[row], self._returned[row] = _NEVER, False
        self._superseded[row], self._supersession[row] = _NEVER, 0
        self.written += 1
        return self.written - 1

    def write_return(self, serial: int, stamp: float) -> None:
        """The conversation took its next turn at ``stamp`` (s)."""
        self.now = max(self.now, stamp)
        self.returns += 1
        self._close(serial, returned=True)

    def write_end(self, serial: int) -> None:
        """Nobody will see any more whether the conversation returns. Its silence so far counts."""
        self._close(serial, returned=False)

    def write_supersession(self, serial: int, how: int) -> None:
        """A later turn left the path of this one before its end."""
        row = serial % _ROWS
        if self._has(serial) and self._end[row] == _NEVER:
            self._superseded[row], self._supersession[row] = self.now, how

    def intervals(self) -> Intervals:
        """Every turn that is remembered, silent until it returned or until now."""
        rows = min(self.written, _ROWS)
        stamp, superseded = self._stamp[:rows], self._superseded[:rows]
        until = np.minimum(self._end[:rows], self.now)
        changed = np.flatnonzero(superseded < until)
        before_end = np.minimum(until, superseded)
        returned = self._returned[:rows].copy()
        returned[changed] = False
        features = self._features[changed].copy()
        features[:, Feature.SUPERSEDED] = self._supersession[changed]
        return Intervals(
            np.concatenate([self._features[:rows], features]),
            np.concatenate([np.zeros(rows), superseded[changed] - stamp[changed]]),
            np.concatenate([before_end - stamp, until[changed] - stamp[changed]]),
            np.concatenate([returned, self._returned[changed]]),
            np.concatenate([stamp, stamp[changed]]),
        )

    def snapshot(self) -> NDArray[np.void]:
        """A copy of every turn that is remembered, the oldest first: an array of ``TURN``."""
        rows = np.arange(max(self.written - _ROWS, 0), self.written) % _ROWS
        turns = np.empty(len(rows), TURN)
        turns["features"], turns["returned"] = self._features[rows], self._returned[rows]
        turns["stamp"] = self._stamp[rows] - self.now
        turns["end"] = np.minimum(self._end[rows], self.now) - self.now
        turns["superseded"] = self._superseded[rows] - self.now
        turns["supersession"] = self._supersession[rows]
        return turns

    def restore(self, turns: NDArray[np.void]) -> None:
        """Begin with the turns of a former run: all of them are over before the first stamp of this one."""
        assert not self.written, "a log that has turns of its own goes on with them"
        turns = turns[-_ROWS:]
        self.written = rows = len(turns)
        self._features[:rows], self._returned[:rows] = turns["features"], turns["returned"]
        self._stamp[:rows], self._end[:rows] = turns["stamp"], turns["end"]
        self._superseded[:rows], self._supersession[:rows] = turns["superseded"], turns["supersession"]

    def _has(self, serial: int) -> bool:
        return serial >= max(self.written - _ROWS, 0)

    def _close(self, serial: int, returned: bool) -> None:
        row = serial % _ROWS
        if self._has(serial) and self._end[row] == _NEVER:
            self._end[row], self._returned[row] = self.now, returned
