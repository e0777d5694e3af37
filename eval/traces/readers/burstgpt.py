"""BurstGPT: CSV of lengths and times of two months of an Azure service; in later files with sessions.

Source: HPMLL/BurstGPT. ``Timestamp`` and ``Elapsed time`` (of the whole answer) are in seconds. A row with 0 response
tokens failed. Which tokens prompts share is not in it: contexts are rebuilt from sessions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec

from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, holds_history, rebuilt
from eval.traces.reading.names import Logs
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Number, decode
from eval.traces.reading.times import count_late, per_second_of, sorted_note
from eval.traces.request import Request, TraceError

_NO_SESSION = ("", "nan", "none", "null", "-1", "<na>", "n/a", "na", "-")  # as tables are written by pandas and others


class _Row(msgspec.Struct):
    timestamp: Number = msgspec.field(name="Timestamp")
    request_tokens: Count = msgspec.field(name="Request tokens")
    response_tokens: Count = msgspec.field(name="Response tokens")
    model: str | None = msgspec.field(default=None, name="Model")
    log_type: str | None = msgspec.field(default=None, name="Log Type")
    session: Any = msgspec.field(default=None, name="Session ID")
    elapsed: Any = msgspec.field(default=None, name="Elapsed time")


def _detects(record: Mapping[str, Any]) -> bool:
    return "Timestamp" in record and "Request tokens" in record


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    del options
    sessions: dict[str, list[Call]] = {}
    units, failed, nameless = count(), 0, 0
    # Releases count their sessions from 0 each; a release that goes on with the clock goes on with the sessions.
    logs = Logs(source, lambda record: decode(record, _Row, strict=False).timestamp, "sessions")
    notes.add("real", lambda: f"times (in seconds), lengths, {'sessions, ' * bool(sessions)}models; not the texts")
    per_second = per_second_of(logs.begins, notes, 1)
    words: dict[str, str] = {}
    times_s = array("d")
    notes.add("sorted", lambda: sorted_note(count_late(times_s), len(times_s)))
    notes.add("assumed", logs.said)
    for record in logs.records():
        try:
            row = decode(record, _Row, strict=False)
        except TraceError as error:
            notes.bad(error)
            continue
        failed += not row.response_tokens
        times_s.append(row.timestamp)
        call = Call(
            row.timestamp / per_second,
            row.request_tokens,
            row.response_tokens,
            model=words.setdefault(row.model, row.model) if row.model else None,
            category=words.setdefault(row.log_type, row.log_type) if row.log_type else None,
            answer_s=_elapsed(row.elapsed),
        )
        session = "" if row.session is None else str(row.session).strip()
        name = logs.name(None if session.lower() in _NO_SESSION else session, row.timestamp)
        if name is None:
            nameless += 1
            yield from rebuilt(None, [call], units, True)
        else:
            sessions.setdefault(name, []).append(call)
    if nameless:
        notes.add("rebuilt", f"{nameless:,} rows name no session: nothing in them can be reused")
    if failed:
        notes.add("real", f"{failed:,} rows have no answer: they failed")
    yield from _of_sessions(sessions, units, notes)


def _of_sessions(sessions: Mapping[str, list[Call]], units: count[int], notes: Notes) -> Iterator[Request]:
    if not sessions:
        return
    for calls in sessions.values():
        calls.sort(key=lambda call: call.arrival_s)
    whole = holds_history(list(sessions.values()))
    how = "a prompt is the context before it and what is left" if whole else "request tokens are a new message alone"
    notes.add("rebuilt", f"contexts of {len(sessions):,} sessions: {how}")
    for name, calls in sessions.items():
        yield from rebuilt(name, calls, units, whole)


def _elapsed(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < 1e9 else None


BURSTGPT = Reader(
    "burstgpt",
    "CSV of Timestamp (s), Request tokens, Response tokens, with or without Session ID and Elapsed time",
    _detects,
    _read,
    texts=False,
)
