"""LMCache's traces: calls of sessions with their texts.

Two forms: ``timestamp`` (µs since 1970, or since a start), ``input`` and ``output`` as texts, ``session_id``; and its
agentic traces (``lmcache-agentic-traces`` on the hub): ``input`` as messages, ``output_length``, ``pre_gap`` (s after
the answer before), ``model``. A text that begins with the one before it is taken for a whole prompt, else for a new
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from eval.traces.reading.bodies import messages_of
from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.chats import Message
from eval.traces.reading.files import Source
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, bad_field, decode
from eval.traces.reading.times import SINCE_1970, any_seconds, count_late, sorted_note
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Request, TraceError

_PER_SECOND = 1_000_000  # times are in microseconds


class _Row(msgspec.Struct):
    input: str | list[dict[str, Any]]
    session_id: Name
    timestamp: Number | str | None = None
    output: str | None = None
    output_length: Count | None = None
    pre_gap: Number | None = None  # s
    model: str | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    return "input" in record and "session_id" in record and bool(record.keys() & {"output", "output_length", "pre_gap"})


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log = CallLog(options, notes)
    last: dict[str, str] = {}  # input and output of each session's last call, where they are texts
    added = 0
    notes.add("real", f"calls of sessions; {counted(options)}")
    for start_s, record, row in _in_order(source, notes):
        try:
            known = last.get(str(row.session_id), "")
            log.add(_call(start_s, record, row, last))
            added += isinstance(row.input, str) and not row.input.startswith(known)
        except TraceError as error:
            notes.bad(error)
    if added:
        begin = "do not begin with the input and output before them"
        notes.add("assumed", f"{added:,} texts {begin}: each is taken for what its prompt adds to them")
    yield from log.requests()


def _in_order(source: Source, notes: Notes) -> Sequence[tuple[float | None, Record, _Row]]:
    """The rows, each with its time in s, in order of these if all have one: a text may go on from the one before."""
    found: list[tuple[float | None, Record, _Row]] = []
    sessions: set[Name] = set()
    timed: bool | None = None  # whether calls have times: drawn times and real ones may be years apart
    for record in source.records():
        try:
            row = decode(record, _Row)
            has_time = row.timestamp is not None
            timed = has_time if timed is None else timed
            if timed != has_time and not (timed and row.session_id in sessions and row.pre_gap is not None):
                raise bad_field(record, "timestamp", "some rows have one (µs) and some have none: all or none")
            start_s = None if row.timestamp is None else any_seconds(record, "timestamp", row.timestamp)
            found.append((start_s, record, row))
            sessions.add(row.session_id)
        except TraceError as error:
            notes.bad(error)
    numbers = [row.timestamp for _, _, row in found if isinstance(row.timestamp, int | float)]
    has_parts = any(number % 1 for number in numbers)  # of a second: nobody counts those of a microsecond
    if min(numbers, default=SINCE_1970) < SINCE_1970 and not has_parts:
        notes.add("assumed", "times are in µs since a start, as they are too small to be since 1970")
        found = [
            (row.timestamp / _PER_SECOND if isinstance(row.timestamp, int | float) else start_s, record, row)
            for start_s, record, row in found
        ]
    times_s = [start_s for start_s, _, _ in found if start_s is not None]
    if len(times_s) == len(found):
        notes.add("sorted", sorted_note(count_late(times_s), len(found)))
        found.sort(key=lambda each: each[0] or 0.0)
    return found


def _call(start_s: float | None, record: Record, row: _Row, last: dict[str, str]) -> TextCall:
    session, output = str(row.session_id), row.output or ""
    if isinstance(row.input, str):
        known = last.get(session, "")
        last[session] = row.input + output
        messages = [Message("user", row.input.removeprefix(known))]
    else:
        messages = messages_of(record, {"input": row.input})
    return TextCall(
        messages,
        answer=(Message("assistant", output),) if output else (),
        adds=isinstance(row.input, str),
        session=session,
        start_s=start_s,
        delay_s=row.pre_gap,
        output_tokens=row.output_length,
        model=row.model,
    )


LMCACHE = Reader(
    "lmcache",
    "JSONL of session_id, input (text or messages), output or output_length, timestamp (µs) or pre_gap (s)",
    _detects,
    _read,
)
