"""One record of a file or data set, and its schema: errors name the file, the line and the field."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from eval.traces.reading.refusals import not_finite, said_of
from eval.traces.request import TraceError

T = TypeVar("T")

_DIGITS = re.compile("[0-9]{1,20}")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of tokens, or of milliseconds."""

Size = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""Tokens of a block."""

Number = Annotated[float, msgspec.Meta(ge=0, le=2**63)]
"""A time in any unit, or a duration; not negative."""

Name = str | int
"""Of a conversation, session or agent: text or a number."""


class Record(NamedTuple):
    """One row, with the place that an error is to name."""

    where: str  # "trace.jsonl:12", "trace.json: record 12"
    content: Any  # bytes of JSON, or what they or the row of a table stand for
    file: str = ""  # of a folder: the file's path within it, without its suffixes


class Fields(Mapping[str, Any]):
    """The fields of a record, decoded one by one when they are looked at; whole records may be large."""

    def __init__(self, raw: Mapping[str, msgspec.Raw]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        return json_value(bytes(self._raw[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __contains__(self, name: object) -> bool:
        return name in self._raw


def decode(record: Record, kind: type[T], *, strict: bool = True) -> T:
    """The record in its schema; fields that the schema does not name are not looked at.

    Args:
        record: as read.
        kind: the schema.
        strict: a number is no text; rows of CSV, where all is text, are read with False.

    Raises:
        TraceError: one line with file, line and field.
    """
    content, is_json = record.content, isinstance(record.content, bytes)
    try:
        try:
            return _from_json(content, kind) if is_json else msgspec.convert(content, kind, strict=strict)
        except msgspec.ValidationError:
            plain = _plain(content)
            if plain is None:
                raise
            content = plain
        with contextlib.suppress(msgspec.ValidationError):
            return _from_plain(without_nulls(content), kind, is_json)
        return _from_plain(content, kind, is_json)
    except msgspec.ValidationError as error:
        raise TraceError(f"{record.where}: {said_of(error, content, kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{record.where}: {not_finite(record.content) or f'not JSON: {error}'}") from None


def _from_json(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Half a surrogate pair in a text is no reason to refuse a row, nor is an Infinity that nobody looks at.
        try:
            return msgspec.json.decode(as_bytes(json.loads(content, parse_constant=_nothing)), type=kind)
        except msgspec.ValidationError:
            if not_finite(content):
                raise error from None
            raise
        except (ValueError, RecursionError):
            raise error from None


def _from_plain(content: Any, kind: type[T], is_json: bool) -> T:
    """In JSON a number is no text, in a table it may be."""
    if is_json:
        return msgspec.json.decode(as_bytes(content), type=kind)
    return msgspec.convert(content, kind, strict=False)


def _nothing(constant: str) -> None:
    """What NaN and Infinity, which Python writes and JSON has not, are read as."""


def _plain(content: Any) -> Any:
    """A record with the values that others stand for: 5 for the 5.0 of pandas; in a table, a list for its JSON."""
    if isinstance(content, Mapping):
        return {name: _cell(value) if isinstance(value, str) else value for name, value in content.items()}
    try:
        return json.loads(content, parse_float=_whole)
    except (ValueError, TypeError, RecursionError):
        return None


def _whole(number: str) -> float:
    value = float(number)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def without_nulls(value: Any) -> Any:
    """Without the fields that are null: one that may be missing is missing."""
    if isinstance(value, Mapping):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _cell(text: str) -> Any:
    """The value of a field of a table, which may hold a list as JSON, or nothing."""
    found = json_value(text) if text.startswith(("[", "{")) else None
    return (text or None) if found is None else found


def fields_of(record: Record) -> Mapping[str, Any]:
    """The fields of a record whose schema is not known yet.

    A list stands for the messages of a conversation: they are its only field.

    Raises:
        TraceError: it is not JSON in UTF-8, or neither an object nor a list.
    """
    if not isinstance(record.content, bytes):
        return decode(record, dict[str, Any])
    if record.content.startswith(b"["):
        return {"messages": decode(record, list[Any])}
    try:
        record.content.decode()  # msgspec.Raw is not looked at, and a field that cannot be read would count as missing
    except UnicodeDecodeError as error:
        raise TraceError(f"{record.where}: not UTF-8: {error}") from None
    return Fields(decode(record, dict[str, msgspec.Raw]))


def as_count(value: Any) -> int | None:
    """A number of tokens, or of milliseconds; None if it is no such number."""
    return value if isinstance(value, int) and 0 <= value <= 2**53 else None


def count_in(record: Record, field: str, value: Any) -> int | None:
    """A number of tokens that need not be there, also as a text; None where the value is no number.

    Raises:
        TraceError: the number is no number of tokens, such as a negative one.
    """
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if as_count(whole) is None:
        raise bad_field(record, field, f"{value!r}, must be a number of tokens, 0 to 2**53")
    return int(whole)


def as_bytes(value: Any) -> bytes:
    """JSON that any reader takes: half a surrogate pair becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def bad_field(record: Record, field: str, reason: str) -> TraceError:
    """The error of a value that the schema allows, and that is wrong here."""
    return TraceError(f"{record.where}: {field}: {reason}")


def json_value(text: str | bytes) -> Any:
    """The value that a text is as JSON; None where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
