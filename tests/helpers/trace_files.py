"""Writes small files in the schemas of traces, as those who publish them write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eval.traces import Request, Trace, TraceError, open_trace

__all__ = ["ids", "lines", "refusal", "said", "write_lines"]


def json_line(record: Any) -> bytes:
    """A record as one line; text and bytes are lines already."""
    if isinstance(record, bytes):
        return record
    return record.encode(errors="surrogatepass") if isinstance(record, str) else json.dumps(record).encode()


def lines(records: Sequence[Any]) -> bytes:
    """Records as JSON lines."""
    return b"".join(json_line(record) + b"\n" for record in records)


def write_lines(path: Path, *records: Any) -> str:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines(records))
    return str(path)


def refusal(source: str, **options: Any) -> str:
    """The one line that a trace is refused with."""
    with pytest.raises(TraceError) as error:
        open_trace(source, **options)
    text = str(error.value)
    assert text.strip()
    assert "\n" not in text
    return text


def said(trace: Trace, kind: str) -> str:
    """All notes of a kind."""
    return "; ".join(note.text for note in trace.notes if note.kind == kind)


def ids(request: Request) -> list[int]:
    """The units of a prompt."""
    return list(request.prompt.ids)
