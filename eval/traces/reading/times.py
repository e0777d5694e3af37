"""Times as files write them, in seconds: a number in any unit since 1970 or since a start, or ISO text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from eval.traces.reading.notes import Notes
from eval.traces.reading.records import Record, bad_field

TOKEN_S = 0.02
"""Seconds that a token of an answer is assumed to take where no end of an answer was recorded: 50 tokens a second."""

# Since 1970 in seconds a moment of this century has 10 digits, in ms 13, in µs 16, in ns 19.
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))

_NAMES = {1: "s", 1_000: "ms", 1_000_000: "µs", 1_000_000_000: "ns"}  # of units, by how many a second has
_THIS_AGE_S = (1e9, 2e9)  # seconds since 1970 of the years 2001 to 2033

SINCE_1970 = _THIS_AGE_S[0]
"""A number below it is no time of this century since 1970, in whichever unit."""


def any_seconds(record: Record, field: str, time: float | str | datetime) -> float:
    """Seconds since 1970 or since the start of a trace; the unit of a number is told by its size.

    Raises:
        TraceError: a text is neither a number nor an ISO time.
    """
    if isinstance(time, datetime):
        return _since_1970(time)
    if isinstance(time, str):
        text = time
        try:
            time = float(text)
        except ValueError:
            return iso_seconds(record, field, text)
    if not 0 <= time < 1e20:
        raise bad_field(record, field, f"{time} is no time")
    return next((time / per_second for least, per_second in _UNITS if time >= least), float(time))


def iso_seconds(record: Record, field: str, time: str) -> float:
    """Seconds since 1970 of an ISO time, UTC where it names no zone.

    Raises:
        TraceError: the text is none.
    """
    try:
        return _since_1970(datetime.fromisoformat(time.removesuffix(" UTC")))
    except ValueError:
        raise bad_field(record, field, f"{time[:40]!r} is no time, such as 2025-11-25T10:00:00Z") from None


def _since_1970(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def count_late(times_s: Sequence[float]) -> int:
    """How many times are before the one above them in the file."""
    return sum(after < before for before, after in pairwise(times_s))


def sorted_note(late: int, rows: int) -> str:
    """What is noted of rows that were out of order; nothing if none were."""
    return f"{late:,} of {rows:,} rows came before the row above them: put in order of arrival" if late else ""


def per_second_of(begins: float, notes: Notes, usual: int = 1_000) -> int:
    """Units of time a second: as usual in a format, unless the first time of a trace is one since 1970 in another.

    Of the first one alone: a trace of months in milliseconds since its start has times as large as seconds since 1970.

    Args:
        begins: that time; infinite if there is none.
        notes: say so if the unit is another.
        usual: 1,000 where a format has its times in ms.
    """
    if begins < math.inf:
        since_1970_s = any_seconds(Record("", None), "timestamp", begins)
        unit = round(begins / since_1970_s) if since_1970_s else 1
        if _THIS_AGE_S[0] <= since_1970_s < _THIS_AGE_S[1] and unit != usual:
            told = f"times are in {_NAMES[unit]} since 1970, as their size tells"
            notes.add("assumed", f"{told}; in this format they are in {_NAMES[usual]}")
            return unit
    return usual


def number_of(record: Record, field: str, time: float | str) -> float:
    """A time in the unit of its file: a number, also as a text; of an ISO text ms since 1970.

    Raises:
        TraceError: a text is neither.
    """
    if isinstance(time, str):
        try:
            number = float(time)
        except ValueError:
            return 1_000 * iso_seconds(record, field, time)
        if not 0 <= number <= 2**63:
            raise bad_field(record, field, f"{time[:40]!r}, must be a number, 0 to 2**63")
        return number
    return time
