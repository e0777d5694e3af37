"""Azure's LLM inference traces: CSV of a time and two lengths for each request.

Source: Azure/AzurePublicDataset (2023 and 2024: code, conversations; 2025: multimodal, with ``NumImages``). There are
neither texts nor conversations in it: nothing can be reused. ``ContextTokens`` is the whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import Any

import msgspec

from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, rebuilt
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, bad_field, decode
from eval.traces.reading.times import any_seconds
from eval.traces.request import Request, TraceError


class _Row(msgspec.Struct):
    timestamp: Any = msgspec.field(name="TIMESTAMP")  # text with 7 digits behind the second; of Parquet a datetime
    context_tokens: Count = msgspec.field(name="ContextTokens")
    generated_tokens: Count = msgspec.field(name="GeneratedTokens")


def _detects(record: Mapping[str, Any]) -> bool:
    return record.keys() >= {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    del options
    units = count()
    notes.add("real", "times, lengths; not the texts")
    notes.add("rebuilt", "neither prompts nor conversations are in the file: nothing in them can be reused")
    for record in source.records():
        try:
            row = decode(record, _Row, strict=False)
            if not isinstance(row.timestamp, str | datetime):
                raise bad_field(record, "TIMESTAMP", f"{row.timestamp!r}, must be a time")
            call = Call(any_seconds(record, "TIMESTAMP", row.timestamp), row.context_tokens, row.generated_tokens)
        except TraceError as error:
            notes.bad(error)
            continue
        yield from rebuilt(None, [call], units, True)


AZURE = Reader(
    "azure",
    "CSV of TIMESTAMP, ContextTokens, GeneratedTokens (Azure's LLM inference traces): lengths alone",
    _detects,
    _read,
    texts=False,
    in_order=True,
)
