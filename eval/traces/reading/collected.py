"""Lines of a server's log as a collector keeps them: in a field of JSON, and the long ones in parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from eval.traces.reading.records import Record, fields_of
from eval.traces.request import TraceError

_FIELDS = ("line", "log", "message", "MESSAGE", "textPayload")
"""In which a line is: ours, of Docker and Fluent Bit, of Vector and CloudWatch, of journald, of Google Cloud."""

_CRI = re.compile(r"^\S+ (stdout|stderr) ([PF]) ")
"""What containerd and CRI-O write before a line, and before each part of it: the last one is F."""

_PART = 16 << 10
"""Bytes of a part, where Docker cuts a line."""


class _Piece(NamedTuple):
    """A line, or a part of one."""

    text: str
    stream: str
    is_last: bool


def line_of(fields: Mapping[str, Any]) -> str | None:
    """The line of a log that a record holds, or the beginning of it; None where it is another record."""
    return next((line for name in _FIELDS if isinstance(line := fields.get(name), str)), None)


def whole_lines(records: Iterable[Record]) -> Iterator[Record]:
    """Records whose one field, ``line``, is a whole line; those that hold none, as they are.

    A line whose last part is missing was not written yet.
    """
    begun: dict[str, tuple[Record, list[str]]] = {}  # by stream
    for record in records:
        piece = _piece(record)
        if piece is None:
            yield record
            continue
        first, parts = begun.setdefault(piece.stream, (record, []))
        parts.append(piece.text)
        if piece.is_last:
            del begun[piece.stream]
            yield first._replace(content={"line": "".join(parts)})


def _piece(record: Record) -> _Piece | None:
    try:
        fields = fields_of(record)
    except TraceError:  # whoever reads it says so
        return None
    line = line_of(fields)
    if line is None:
        return None
    if marked := _CRI.match(line):
        return _Piece(line[marked.end() :], marked[1], marked[2] == "F")
    is_cut = "log" in fields and not line.endswith("\n") and len(line.encode(errors="replace")) == _PART
    return _Piece(line.rstrip("\r\n"), str(fields.get("stream")), not is_cut)
