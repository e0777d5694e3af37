"""One log, one clock: its times count from 1970 or from a start, or they are drawn; together they say nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from eval.traces.reading.notes import Notes
from eval.traces.reading.times import SINCE_1970
from eval.traces.request import Request, TraceError

_DRAWN, _FROM_START, _FROM_1970 = range(3)  # clocks: the last one that a log has is its own


@dataclass(frozen=True, slots=True)
class Piece:
    """A conversation of a log, or a part of one, at times of its own."""

    rows: Sequence[str]  # where each is, for errors
    told_s: Sequence[float]  # starts of calls as the data tell; none: all are drawn
    requests: Sequence[Request]
    drawn: bool = False  # some of its times are, to be noted


def is_since_1970(time_s: float) -> bool:
    """Whether a time can be one of this century, and not one since the start of a log."""
    return time_s >= SINCE_1970


def on_one_clock(pieces: Iterable[Piece], notes: Notes, said: Callable[[str], str]) -> Iterator[Request]:
    """The requests of a log whose times can be compared.

    Where some pieces tell times and some do not, those that do not are bad records: drawn times count from 0, and the
    log would last 55 years. So are those that count from a start among those that count from 1970.

    Args:
        pieces: in the order of the log.
        notes: gets what is left out, and how many conversations have times that were drawn.
        said: what was drawn, for the notes, as of ``Stamper``.

    Raises:
        TraceError: some pieces are bad, and bad ones are not skipped; it names the first row of them.
    """
    found = list(pieces)
    best = max((clock for piece in found for clock in _clocks(piece)), default=_DRAWN)
    kept = [piece for piece in found if _clocks(piece) == {best}]
    for piece in found:
        why = "has no time, and other rows have one"
        if piece.told_s:
            why = "its time counts from a start, and those of other rows from 1970"
        for row in piece.rows if _clocks(piece) != {best} else ():
            notes.bad(TraceError(f"{row}: {why}: all or none"))
    drawn = sum(piece.drawn for piece in kept)
    if drawn:
        notes.add("drawn", said(f"times of {drawn:,} conversations"))
    for piece in kept:
        yield from piece.requests


def _clocks(piece: Piece) -> set[int]:
    return {_FROM_1970 if is_since_1970(each) else _FROM_START for each in piece.told_s} or {_DRAWN}
