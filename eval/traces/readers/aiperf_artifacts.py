"""What aiperf leaves behind: ``inputs.json`` (what it sent) and ``profile_export.jsonl`` (when, and how long).

Source: ai-dynamo/aiperf, ``InputsFile`` and ``MetricRecordInfo``. The folder of a run has both: texts of one, times of
the other, joined by conversation and turn. Alone, ``inputs.json`` has no times, and the export has no texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from eval.traces.reading.api import call_of, is_call
from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, holds_history, rebuilt
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Name, Record, bad_field, decode, fields_of
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Request, TraceError


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int | None = None
    conversation_id: Name | None = None
    turn_index: int = 0
    benchmark_phase: str | None = None
    was_cancelled: bool = False


class _Export(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, Any] = {}


class _Session(msgspec.Struct):
    session_id: Name
    payloads: list[dict[str, Any]]


class _Inputs(msgspec.Struct):
    data: list[_Session]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request as it was measured."""

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
    sent: dict[tuple[str, int], _Sent] = {}
    for record in source.records():
        try:
            fields = fields_of(record)
            if "payloads" in fields:
                inputs.append((record, decode(record, _Session)))
            elif "data" in fields:
                inputs += [(record, session) for session in decode(record, _Inputs).data]
            elif "metrics" in fields:
                _add(record, decode(record, _Export), sent, len(sent))
            else:
                notes.left_out(f"{record.where}: a summary: give the folder of the run, or its profile_export.jsonl")
        except TraceError as error:
            notes.bad(error)
    yield from _of_texts(inputs, sent, options, notes) if inputs else _of_lengths(sent, notes)


def _add(record: Record, row: _Export, sent: dict[tuple[str, int], _Sent], number: int) -> None:
    meta = row.metadata
    if meta.benchmark_phase == "warmup" or meta.was_cancelled:
        return
    tokens = _metric(row, "input_sequence_length")
    if tokens is None:
        raise bad_field(record, "metrics.input_sequence_length", "missing: the tokens of the input")
    conversation = f"#{number}" if meta.conversation_id is None else str(meta.conversation_id)
    start_s = meta.request_start_ns / 1e9
    end_s = None if meta.request_end_ns is None else meta.request_end_ns / 1e9
    output = _metric(row, "output_sequence_length")
    key = conversation, meta.turn_index
    while key in sent:  # a conversation that was played again
        key = f"{key[0]}#", key[1]
    sent[key] = _Sent(start_s, end_s, tokens, output)


def _metric(row: _Export, name: str) -> int | None:
    value = row.metrics.get(name)
    value = value.get("value") if isinstance(value, Mapping) else value
    return round(value) if isinstance(value, int | float) and 0 <= value <= 2**53 else None


def _of_texts(
    inputs: list[tuple[Record, _Session]], sent: Mapping[tuple[str, int], _Sent], options: Options, notes: Notes
) -> Iterator[Request]:
    log = CallLog(options, notes)
    notes.add("real", f"prompts as sent{', times as measured' if sent else ''}; {counted(options)}")
    for record, row in inputs:
        for turn, payload in enumerate(row.payloads):
            try:
                if not is_call(payload):
                    raise bad_field(record, "payloads", "a payload has neither messages nor a prompt")
                call = call_of(record, payload)
                if not call.messages:
                    raise bad_field(record, "payloads", "a payload has no messages, and its prompt is no text")
            except TraceError as error:
                notes.bad(error)
                continue
            log.add(_measured(call, str(row.session_id), sent.get((str(row.session_id), turn))))
    yield from log.requests()


def _measured(call: TextCall, session: str, sent: _Sent | None) -> TextCall:
    return TextCall(
        call.messages,
        session=session,
        model=call.model,
        start_s=sent.start_s if sent else None,
        end_s=sent.end_s if sent else None,
        output_tokens=sent.output_tokens if sent else None,
    )


def _of_lengths(sent: Mapping[tuple[str, int], _Sent], notes: Notes) -> Iterator[Request]:
    sessions: dict[str, list[Call]] = {}
    for (conversation, _), each in sorted(sent.items(), key=lambda item: item[1].start_s):
        answer_s = None if each.end_s is None else max(each.end_s - each.start_s, 0.0)
        call = Call(each.start_s, each.input_tokens, each.output_tokens or 0, answer_s=answer_s)
        sessions.setdefault(conversation, []).append(call)
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
