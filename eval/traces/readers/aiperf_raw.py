"""aiperf's raw export, ``profile_export_raw.jsonl``: every request with its payload, its times and its answer.

Source: ai-dynamo/aiperf (``--export-level raw``), ``RawRecordInfo``. ``responses`` are the events of a stream, or one
text. Nothing is measured in it: lengths are those of the texts, unless the server sent a ``usage``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from eval.traces.readers.aiperf_artifacts import Metadata, Run
from eval.traces.reading.api import call_of, is_call
from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.files import Source
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Record, bad_field, decode, json_value
from eval.traces.reading.streams import whole_response
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Request, TraceError


class _Packet(msgspec.Struct):
    name: str
    value: str | None = None


class _Response(msgspec.Struct):
    packets: list[_Packet] = []  # of an event of a stream
    text: str | None = None  # of an answer that was not streamed


class _Row(msgspec.Struct):
    metadata: Metadata
    payload: dict[str, Any] | None = None
    responses: list[_Response] = []
    error: Any = None


def _detects(record: Mapping[str, Any]) -> bool:
    return record.keys() >= {"metadata", "payload", "responses"} and isinstance(record["metadata"], Mapping)


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log, run = CallLog(options, notes), Run()
    answered = False
    notes.add("real", f"prompts and answers as sent, times as measured; {counted(options)}")
    notes.add("left out", run.left_out)
    notes.add("assumed", run.said)
    for record in source.records():
        try:
            row = decode(record, _Row)
            if run.answered(record, row.metadata, row.error):
                log.add(_call(record, row, run))
                answered = True
        except TraceError as error:
            notes.bad(error)
    if run.left_out() and not answered:
        raise TraceError(f"trace {source.name}: {run.left_out()}")
    yield from log.requests()


def _call(record: Record, row: _Row, run: Run) -> TextCall:
    """The call of a row.

    Raises:
        TraceError: its payload has no prompt that can be read.
    """
    if row.payload is None or not is_call(row.payload):
        raise bad_field(record, "payload", "neither messages nor a prompt")
    call = call_of(record, {"body": row.payload, "response": _answer(row.responses)})
    if not call.messages:
        raise bad_field(record, "payload", "no messages, and the prompt is no text")
    meta = row.metadata
    return replace(call, session=run.name(meta), start_s=meta.start_s, end_s=meta.end_s)


def _answer(responses: list[_Response]) -> Any:
    """The response that the events make, or the only text."""
    events = [json_value(packet.value or "") for each in responses for packet in each.packets if packet.name == "data"]
    texts = [json_value(each.text) for each in responses if each.text]
    return whole_response(events) if events else next(iter(texts), None)


AIPERF_RAW = Reader(
    "aiperf-raw",
    "profile_export_raw.jsonl of aiperf: prompts, answers and times of every request",
    _detects,
    _read,
)
