"""LMCache's traces: calls of sessions with their texts.

Two forms: ``timestamp`` (µs since 1970, or since a start), ``input`` and ``output`` as texts, ``session_id``; and its
agentic traces (``lmcache-agentic-traces`` on the hub): ``input`` as messages, ``output_length``, ``pre_gap`` (s after
the answer before), ``model``. A text that begins with the one before it, and has its answer behind that, is taken for a
whole prompt, else for a new message; so are messages that begin otherwise than the session and hold no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    sessions = _Sessions()
    notes.add("real", f"calls of sessions; {counted(options)}")
    for start_s, record, row in _in_order(source, notes):
        try:
            log.add(sessions.call(start_s, record, row))
        except TraceError as error:
            notes.bad(error)
    if sessions.added:
        begin = "do not begin with the input and output before them"
        notes.add("assumed", f"{sessions.added:,} texts {begin}: each is taken for what its prompt adds to them")
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


@dataclass(frozen=True, slots=True)
class _Last:
    """The last call of a session, as the next one may repeat it."""

    prompt: Sequence[Message]
    answer: Sequence[Message]
    text: str  # of the input; empty where it is messages

    @property
    def output(self) -> str:
        """The text of the answer."""
        return self.answer[0].text if self.answer else ""


class _Sessions:
    """Which part of an input is new to its session.

    Attributes:
        added: inputs that do not begin with what was said before them.
    """

    def __init__(self) -> None:
        self.added = 0
        self._last: dict[str, _Last] = {}

    def call(self, start_s: float | None, record: Record, row: _Row) -> TextCall:
        """The call of the next row."""
        session, last = str(row.session_id), self._last.get(str(row.session_id))
        text = row.input if isinstance(row.input, str) else ""
        if isinstance(row.input, str):
            messages, adds = self._of_text(last, row.input)
        else:
            messages = messages_of(record, {"input": row.input})
            adds = last is not None and row.output is not None and _are_new(messages, last)
            self.added += adds
        answer = (Message("assistant", row.output),) if row.output else ()
        prompt = [*last.prompt, *last.answer, *messages] if last and adds else messages
        self._last[session] = _Last(prompt, answer, text)
        return TextCall(
            messages,
            answer=answer,
            adds=adds,
            session=session,
            start_s=start_s,
            delay_s=row.pre_gap,
            output_tokens=row.output_length,
            model=row.model,
            where=record.where,
        )

    def _of_text(self, last: _Last | None, text: str) -> tuple[list[Message], bool]:
        """Messages of a text, and whether they are added to the history."""
        if last is None:
            return [Message("user", text)], False
        said = last.text + last.output
        if text.startswith(said):
            return [Message("user", text.removeprefix(said))], True
        rest, output = text.removeprefix(last.text), last.output.strip()
        if rest != text and output and output in rest:  # behind a chat template, or without the blanks around it
            return [*last.prompt, Message("user", rest)], False
        self.added += 1
        return [Message("user", text)], True


def _are_new(messages: Sequence[Message], last: _Last) -> bool:
    """Whether messages are those of a turn alone: a prompt that is whole begins as the session, or has answers."""
    roles = {each.role for each in messages}
    return bool(messages) and roles.isdisjoint(("system", "assistant")) and messages[0] != last.prompt[0]


LMCACHE = Reader(
    "lmcache",
    "JSONL of session_id, input (text or messages), output or output_length, timestamp (µs) or pre_gap (s)",
    _detects,
    _read,
)
