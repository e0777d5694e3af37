"""Why a record is refused: the field, the value that is there, and what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_SHOWN = 40  # characters of a value
_TIME = "2025-11-25T10:00:00Z"


def said_of(error: msgspec.ValidationError, content: Any, kind: Any) -> str:
    """msgspec's "reason - at `$.field`" with the field first, then the value, or the values that are allowed.

    Args:
        error: of msgspec.
        content: of the record, as it was decoded or converted.
        kind: the schema.
    """
    reason, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`")
    if reason.startswith("Invalid enum value"):
        reason = f"{reason}, must be one of {', '.join(_enum(kind))}"
    elif reason.startswith("Invalid RFC3339"):
        reason += f"{_value(reason, _at(content, field))}, must be a time such as {_TIME}"
    elif reason.startswith("Expected"):
        reason += _value(reason, _at(content, field))
    return f"{field.lstrip('.')}: {reason}" if field else reason


def not_finite(content: Any) -> str:
    """The first field that is NaN or infinite, which is no JSON and is written by Python; nothing if there is none."""
    try:
        found = json.loads(content)
    except (ValueError, TypeError, RecursionError):
        return ""
    for place, value in _leaves(found):
        if isinstance(value, float) and not math.isfinite(value):
            said = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return f"{place.lstrip('.')}: {said}, must be a number, or null where it may be missing"
    return ""


def _value(reason: str, value: Any) -> str:
    if value is None or isinstance(value, list | Mapping):
        return ""
    if ", got" in reason:
        return f" {str(value)[:_SHOWN]!r}" if isinstance(value, str) else f" {value}"
    return f", got {str(value)[:_SHOWN]}"


def _at(content: Any, place: str) -> Any:
    """The value at a place such as ``.requests[0].t``; None if there is none."""
    try:
        found = msgspec.json.decode(content) if isinstance(content, bytes) else content
        for name, number in _STEP.findall(place):
            found = found[name] if name else found[int(number)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return found


def _enum(kind: Any) -> list[str]:
    """The values of the enums of a schema."""
    return sorted({str(value) for place, value in _leaves(msgspec.json.schema(kind)) if ".enum[" in place})


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = ((f".{name}", each) for name, each in value.items())
    elif isinstance(value, list):
        inner = ((f"[{number}]", each) for number, each in enumerate(value))
    else:
        yield place, value
    for step, each in inner:
        yield from _leaves(each, place + step)
