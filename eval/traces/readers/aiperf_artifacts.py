"""What aiperf leaves behind: ``inputs.json`` (what it sent) and ``profile_export.jsonl`` (when, and how long).

Source: ai-dynamo/aiperf, ``InputsFile`` and ``MetricRecordInfo``. The folder of a run has both: texts of one, times of
the other, joined by conversation and turn. Alone, ``inputs.json`` has no times, and the export has no texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import msgspec

from eval.traces.reading.api import call_of, is_call
from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.content import whole_text
from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, holds_history, rebuilt
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Name, Record, bad_field, count_in, decode, fields_of
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Request, TraceError

_SHOWN = 80  # characters of an error


class Metadata(msgspec.Struct):
    """Of a request, as aiperf's exports have it beside what was measured, or sent."""

    request_start_ns: int
    request_end_ns: int | None = None
    conversation_id: Name | None = None
    x_correlation_id: Name | None = None
    turn_index: int = 0
    benchmark_phase: str | None = None
    was_cancelled: bool = False

    @property
    def session(self) -> str | None:
        """The session that it belongs to, if that is told."""
        return None if self.conversation_id is None else str(self.conversation_id)

    @property
    def start_s(self) -> float:
        """When it was sent, s since 1970."""
        return self.request_start_ns / 1e9

    @property
    def end_s(self) -> float | None:
        """When its answer ended, s since 1970."""
        return None if self.request_end_ns is None else self.request_end_ns / 1e9


class _Export(msgspec.Struct):
    metadata: Metadata
    metrics: dict[str, Any] = {}
    error: Any = None


class _Session(msgspec.Struct):
    session_id: Name
    payloads: list[dict[str, Any]]


class _Inputs(msgspec.Struct):
    data: list[_Session]


class _Place(NamedTuple):
    """Where a payload is in inputs.json."""

    session: str
    turn: int

    def said(self) -> str:
        """As errors and notes name it."""
        return f"session {self.session}: payloads[{self.turn}]"


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request as it was measured."""

    record: Record
    session: str | None  # in inputs.json
    turn: int
    name: str  # of the conversation: a session may be sent many times
    start_s: float
    end_s: float | None
    input_tokens: int
    output_tokens: int | None


def _detects(record: Mapping[str, Any]) -> bool:
    if "aiperf_version" in record:
        return True
    if "metadata" in record and "metrics" in record:
        return isinstance(record["metadata"], Mapping) and "request_start_ns" in record["metadata"]
    data = record.get("data")
    return isinstance(data, list) and bool(data) and isinstance(data[0], Mapping) and "payloads" in data[0]


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    inputs: list[tuple[Record, _Session]] = []
    run = _Measured()
    notes.add("left out", run.left_out)
    notes.add("assumed", run.said)
    for record in source.records():
        try:
            fields = fields_of(record)
            if "payloads" in fields:
                inputs.append((record, decode(record, _Session)))
            elif "data" in fields:
                inputs += [(record, session) for session in decode(record, _Inputs).data]
            elif "metrics" in fields:
                run.add(record, decode(record, _Export))
            else:
                notes.left_out(f"{record.where}: a summary: give the folder of the run, or its profile_export.jsonl")
        except TraceError as error:
            notes.bad(error)
    if run.rows and not run.sent and run.left_out():
        raise TraceError(f"trace {source.name}: {run.left_out()}")
    run.sent.sort(key=lambda each: each.start_s)
    yield from _of_texts(inputs, run, options, notes) if inputs else _of_lengths(run.sent, notes)


class Run:
    """The requests of an export that were answered.

    A session is sent as often as the run asks for: each time has a correlation id of its own. Where none is told, a
    turn that was sent before begins another time.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._names = UniqueNames()
        self._plays: dict[tuple[str, Name | None, int], str] = {}  # names by session, correlation id and time
        self._turns: Counter[tuple[str, Name | None, int]] = Counter()
        self._without_answer: Counter[str] = Counter()
        self._error = ""  # of the first request that failed

    def answered(self, record: Record, meta: Metadata, error: Any) -> bool:
        """Whether the next request was answered; one that was not is counted."""
        self.rows += 1
        why = "of the warm-up" if meta.benchmark_phase == "warmup" else "cancelled" if meta.was_cancelled else ""
        if not why and error is not None:
            why = "failed"
            self._error = self._error or f"{record.where}: {whole_text(error)[:_SHOWN]}"
        if why:
            self._without_answer[why] += 1
        return not why

    def name(self, meta: Metadata) -> str:
        """The conversation of the last request."""
        correlation = meta.x_correlation_id
        base = meta.session or (f"#{self.rows}" if correlation is None else str(correlation))
        turn = base, correlation, meta.turn_index
        self._turns[turn] += 1
        play = base, correlation, self._turns[turn]
        if play not in self._plays:
            self._plays[play] = self._names.of(base)
        return self._plays[play]

    def left_out(self) -> str:
        """What is noted of requests without an answer; nothing if there are none."""
        counts = ", ".join(f"{times:,} {why}" for why, times in self._without_answer.items())
        first = f"; the first that failed: {self._error}" if self._error else ""
        return f"of {self.rows:,} requests: {counts}{first}" if counts else ""

    def said(self) -> str:
        """What is noted of sessions that were sent again."""
        again = self._names.repeated
        return f"{again:,} times a session was sent again: conversations of their own" if again else ""


class _Measured(Run):
    """Those of ``profile_export.jsonl``."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[_Sent] = []

    def add(self, record: Record, row: _Export) -> None:
        """The next request.

        Raises:
            TraceError: it was answered, and has no length.
        """
        meta = row.metadata
        if not self.answered(record, meta, row.error):
            return
        tokens = _metric(record, row, "input_sequence_length")
        if tokens is None:
            raise bad_field(record, "metrics.input_sequence_length", "missing: the tokens of the input")
        output = _metric(record, row, "output_sequence_length")
        name = self.name(meta)
        self.sent.append(_Sent(record, meta.session, meta.turn_index, name, meta.start_s, meta.end_s, tokens, output))


def _metric(record: Record, row: _Export, name: str) -> int | None:
    value = row.metrics.get(name)
    value = value.get("value") if isinstance(value, Mapping) else value
    if isinstance(value, float) and math.isfinite(value):
        value = round(value)
    return count_in(record, f"metrics.{name}", value)


def _of_texts(
    inputs: Sequence[tuple[Record, _Session]], run: _Measured, options: Options, notes: Notes
) -> Iterator[Request]:
    log = CallLog(options, notes)
    notes.add("real", f"prompts as sent{', times as measured' if run.rows else ''}; {counted(options)}")
    payloads = _payloads(inputs, notes)
    calls: dict[_Place, TextCall] = {}
    sent: list[tuple[_Place, _Sent | None]] = [(place, None) for place in payloads]
    if run.rows:
        sent = [(_Place(each.session or "", each.turn), each) for each in run.sent]
    for place, one in sent:
        try:
            if place not in calls:
                calls[place] = _call(place, payloads, one)
            log.add(_measured(calls[place], place.session, one))
        except TraceError as error:
            notes.bad(error)
    if run.rows and (unsent := [place for place in payloads if place not in calls]):
        why = f"were not answered: the run ended early, or they failed; the first: {unsent[0].said()}"
        notes.add("left out", f"{len(unsent):,} of {len(payloads):,} payloads of inputs.json {why}")
    yield from log.requests()


def _payloads(inputs: Sequence[tuple[Record, _Session]], notes: Notes) -> dict[_Place, tuple[Record, dict[str, Any]]]:
    found: dict[_Place, tuple[Record, dict[str, Any]]] = {}
    for record, session in inputs:
        if _Place(str(session.session_id), 0) in found:
            notes.bad(bad_field(record, "session_id", f"{session.session_id!r} is that of an earlier session, too"))
            continue
        for turn, payload in enumerate(session.payloads):
            place = _Place(str(session.session_id), turn)
            found[place] = record._replace(where=f"{record.where}: {place.said()}"), payload
    return found


def _call(place: _Place, payloads: Mapping[_Place, tuple[Record, dict[str, Any]]], sent: _Sent | None) -> TextCall:
    """The call of a payload.

    Raises:
        TraceError: there is none of that session and turn, or it has no prompt that can be read.
    """
    if place not in payloads and sent is not None:
        what = "null" if sent.session is None else f"{sent.session!r}, turn_index {sent.turn}"
        raise bad_field(sent.record, "metadata.conversation_id", f"{what}: inputs.json has no such payload")
    record, payload = payloads[place]
    if not is_call(payload):
        raise TraceError(f"{record.where}: neither messages nor a prompt")
    call = call_of(record, payload)
    if not call.messages:
        raise TraceError(f"{record.where}: no messages, and the prompt is no text")
    return call


def _measured(call: TextCall, session: str, sent: _Sent | None) -> TextCall:
    return TextCall(
        call.messages,
        session=sent.name if sent else session,
        model=call.model,
        start_s=sent.start_s if sent else None,
        end_s=sent.end_s if sent else None,
        output_tokens=sent.output_tokens if sent else None,
    )


def _of_lengths(sent: Sequence[_Sent], notes: Notes) -> Iterator[Request]:
    sessions: dict[str, list[Call]] = {}
    for each in sent:
        answer_s = None if each.end_s is None else max(each.end_s - each.start_s, 0.0)
        call = Call(each.start_s, each.input_tokens, each.output_tokens or 0, answer_s=answer_s)
        sessions.setdefault(each.name, []).append(call)
    whole = holds_history(list(sessions.values()))
    notes.add("real", "times, lengths, conversations; not the texts: they are in inputs.json of the same folder")
    notes.add("rebuilt", f"contexts of {len(sessions):,} conversations, from the lengths of their turns")
    units = count()
    for name, calls in sessions.items():
        yield from rebuilt(name, calls, units, whole)


AIPERF_ARTIFACTS = Reader(
    "aiperf-artifacts",
    "the folder of a run of aiperf, or its inputs.json or profile_export.jsonl",
    _detects,
    _read,
)
