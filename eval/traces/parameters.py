"""Parameters in a dataclass: written as ``key=value,…``, and every value in a stated range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from eval.traces.request import TraceError

LONGEST = 1_000_000
"""Tokens of a drawn prompt or answer; log-normals know no end."""

RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63),
    "sessions": (1, 1e6),
    "_count": (1, 1e5),
    "_sigma": (0, 5),
    "_lengths": (1, LONGEST),
    "_range": (1, LONGEST),
    "_median": (1, LONGEST),
    "_tokens": (1, LONGEST),
    "_probability": (0, 1),
    "_share": (0, 1),
    "_s": (1e-6, 1e9),
}
"""Allowed values by the end of a field's name; the first that fits counts."""

_WRONG_TYPE = re.compile(r"Expected `(int|float)\b[^`]*`, got .* at `\$\.(\w+)")  # of msgspec

_Parameters = TypeVar("_Parameters")


def check_ranges(parameters: Any, own: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Check every field of a dataclass of numbers.

    Args:
        parameters: the dataclass.
        own: allowed values of some fields, by their names; they go before RANGES. Others: up to 1e9, whole numbers from
            1 and others from 1e-9.

    Raises:
        TraceError: one line naming the field, the value and what is allowed.
    """
    allowed = {**(own or {}), **RANGES}
    for field in fields(parameters):
        value = getattr(parameters, field.name)
        if value is None or isinstance(value, str):
            continue
        exact = (own or {}).get(field.name)
        other = (1 if isinstance(value, int) else 1e-9, 1e9)
        low, high = exact or next((each for end, each in allowed.items() if field.name.endswith(end)), other)
        if field.name.endswith("_range") and not low <= value[0] <= value[1] <= high:
            raise TraceError(f"{field.name}: {value[0]}/{value[1]}, must be low/high from {low:g} to {high:.0f}")
        for each in value if isinstance(value, tuple) else (value,):
            if not low <= each <= high:
                raise TraceError(f"{field.name}: {each}, must be from {low:g} to {high:g}")


def parse(kind: type[_Parameters], text: str) -> _Parameters:
    """Parameters, a dataclass, out of ``key=value,…``; the values of a sample or a range are divided by slashes.

    Raises:
        TraceError: one line naming the key, the value and what is allowed.
    """
    source = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or name not in names:
            raise TraceError(f"{source}: {pair!r} is not key=value with a key of {', '.join(names)}")
        if name in values:
            raise TraceError(f"{source}: {pair!r}: {name} is given twice")
        if name.endswith("_range") and value.count("/") != 1:
            raise TraceError(f"{source}: {pair!r}: must be {name}=LOW/HIGH")
        values[name] = value.split("/") if name.endswith(("_lengths", "_range")) else value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        if wrong := _WRONG_TYPE.match(str(error)):
            wanted, name = wrong.groups()
            given, number = values[name], "whole number" if wanted == "int" else "number"
            pair = f"{name}={given if isinstance(given, str) else '/'.join(given)}"
            raise TraceError(
                f"{source}: {pair}: must be {f'a {number}' if isinstance(given, str) else f'{number}s'}"
            ) from None
        raise TraceError(f"{source}: {text}: {error}") from None


def written(value: Any) -> str:
    """A value as :func:`parse` reads it: ``200/3000``; of an empty sample, how one is written."""
    if isinstance(value, tuple):
        return "/".join(map(str, value)) or "none; a sample is A/B/C"
    return str(value)
