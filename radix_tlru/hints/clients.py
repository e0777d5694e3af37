"""Hints as clients already send them: our own object, and the fields of SGLang, TensorRT-LLM and Dynamo.

=============================  ==========================================  ==========================================
field of a request             defined by                                  becomes
=============================  ==========================================  ==========================================
``tlru``                       ``radix_tlru.hints.schema``                 :class:`~radix_tlru.hints.schema.Hints`
``priority``                   SGLang; only with ``--tlru-priority``       a priority of the whole context
``retention_seconds``          SGLang, pull request 27970                  for how long that priority holds
``retention``                  SGLang, RFC 36208                           ranges
``kv_cache_retention_config``  TensorRT-LLM's KvCacheRetentionConfig       ranges of the prompt, one for the answer
``nvext.agent_hints``          NVIDIA Dynamo                               ``priority``, as above; with
                                                                           ``--tlru-prefill-ahead`` also
                                                                           ``speculative_prefill``
=============================  ==========================================  ==========================================

A proxy may pass none of these fields on. Then a header has them (``HEADERS``), written as in a body.

Durations are bounded to an hour. So is 0 or no duration, by which other systems mean "as long as possible". A value
that the system it comes from does not allow is refused, by the name of the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from radix_tlru.hints.schema import (
    HIGHEST,
    LONGEST_S,
    NEUTRAL,
    Hints,
    HintsError,
    Range,
    check_ranges,
    check_tokens,
    is_whole,
    read_priority,
    read_range,
    read_span,
)

__all__ = ["FIELDS", "HEADERS", "Request", "asks_for_prefill", "read_header", "read_hints", "scaled_priority"]

FIELDS = ("tlru", "retention_seconds", "retention", "kv_cache_retention_config", "nvext")
"""Fields of a request that hold hints, but for ``priority``, which SGLang reads itself."""

HEADERS = ("x-tlru", "x-request-id-tlru")
"""Names of the header, of which the second is one that SGLang's router (0.3.2) passes on."""

_TENSORRT = "kv_cache_retention_config"
_RANGES, _ANSWER_PRIORITY, _ANSWER_MS = _TENSORRT_FIELDS = (
    "token_range_retention_configs",
    "decode_retention_priority",
    "decode_duration_ms",
)
_TENSORRT_IGNORED = ("transfer_mode", "directory")  # where TensorRT-LLM writes blocks to
_TENSORRT_RANGE = ("token_start", "token_end", "priority", "duration_ms")

_LARGEST_MS = 1e12  # of a duration that is bounded rather than refused: 31 years


class Request(NamedTuple):
    """What SGLang knows of a request."""

    prompt_len: int = 0  # tokens
    priority: int | None = None  # that the client gave, as SGLang read it


def read_hints(given: Mapping[str, Any], request: Request, highest: int | None = None) -> Hints | None:
    """The hints of a request; None if it has none.

    Args:
        given: those of ``FIELDS`` that the client sent.
        highest: the plain priority that counts as the highest (``--tlru-priority``); None: plain priorities say nothing
            of retention.

    Raises:
        HintsError: a field is unknown, of the wrong type, out of bounds, or contradicts another.
    """
    hints = Hints.parse(given["tlru"]) if "tlru" in given else Hints()
    ranges = {
        "tlru.retention": hints.retention,
        "retention": _read_ranges(given["retention"]) if "retention" in given else (),
        _TENSORRT: _read_tensorrt(given[_TENSORRT], request.prompt_len) if _TENSORRT in given else (),
    }
    sources = [source for source, found in ranges.items() if found]
    if len(sources) > 1:
        raise HintsError(sources[1], given.get(sources[1]), f"left out beside {sources[0]}")
    stated = _read_agent_hints(given["nvext"]) if "nvext" in given else None
    priority = request.priority if request.priority is not None else stated
    whole = _whole_context(given, priority, highest)
    found = replace(hints, retention=(*(each for found in ranges.values() for each in found), *whole))
    return found if "tlru" in given or found.retention else None


def read_header(text: str) -> dict[str, Any]:
    """The fields in a header, to be given to :func:`read_hints`: as JSON, since the values of most are no plain text.

    Raises:
        HintsError: it is no JSON object, or has a field that is not among ``FIELDS``.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise HintsError("text", text, f"a JSON object with any of {', '.join(FIELDS)}")
    for field in given:
        if field not in FIELDS:
            raise HintsError(field, given[field], f"left out; known are {', '.join(FIELDS)}")
    return {field: value for field, value in given.items() if value is not None}


def asks_for_prefill(given: Mapping[str, Any]) -> bool:
    """Whether a client wants its next prompt prefilled ahead; ``given``: hints that :func:`read_hints` has read."""
    hints = given.get("nvext", {}).get("agent_hints") or {}
    return hints.get("speculative_prefill") is True


def scaled_priority(priority: int, highest: int) -> int:
    """A plain priority as one from 0 to 100: ``highest`` or more is 100, 0 is 35 (nothing said), its negative is 0."""
    part = max(-highest, min(priority, highest)) / highest
    return round(NEUTRAL + part * (HIGHEST - NEUTRAL if part > 0 else NEUTRAL))


def _whole_context(given: Mapping[str, Any], priority: int | None, highest: int | None) -> tuple[Range, ...]:
    """What is said of all of a context; ranges that say more come before it."""
    seconds = _read_seconds(given["retention_seconds"]) if given.get("retention_seconds") is not None else None
    scaled = NEUTRAL if priority is None or highest is None else scaled_priority(priority, highest)
    if seconds is not None and (priority is None or highest is None):
        scaled = HIGHEST  # to be kept for a time, and nothing here says by which priority
    return () if scaled == NEUTRAL else (Range(0, None, scaled, LONGEST_S if seconds is None else seconds),)


def _read_seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        raise HintsError("retention_seconds", given, "a number of seconds, 0 or more")
    return float(min(given, LONGEST_S)) if given else LONGEST_S


def _read_ranges(given: Any) -> tuple[Range, ...]:
    """Ranges in the words of TensorRT-LLM, on which the RFC is modelled, or in ours."""
    check_ranges("retention", given)
    return tuple(
        _read_tensorrt_range(f"retention[{number}]", each)
        if isinstance(each, Mapping) and {"token_start", "token_end", "duration_ms"} & set(each)
        else read_range(f"retention[{number}]", each)
        for number, each in enumerate(given)
    )


def _read_tensorrt(given: Any, prompt_len: int) -> tuple[Range, ...]:
    """Ranges of the prompt, and then what was said of the answer."""
    known = (*_TENSORRT_FIELDS, *_TENSORRT_IGNORED)
    if not isinstance(given, Mapping):
        raise HintsError(_TENSORRT, given, f"an object with any of {', '.join(_TENSORRT_FIELDS)}")
    for field in given:
        if field not in known:
            raise HintsError(f"{_TENSORRT}.{field}", given[field], f"left out; known are {', '.join(known)}")
    configs = [] if given.get(_RANGES) is None else given[_RANGES]
    where = f"{_TENSORRT}.{_RANGES}"
    check_ranges(where, configs)
    read = (_read_tensorrt_range(f"{where}[{number}]", each) for number, each in enumerate(configs))
    # There a range without an end goes to the end of the prompt, and none goes beyond it.
    ranges = [each._replace(end=prompt_len if each.end is None else min(each.end, prompt_len)) for each in read]
    ranges = [each for each in ranges if each.end is not None and each.start < each.end]
    held_s = _read_ms(f"{_TENSORRT}.{_ANSWER_MS}", given.get(_ANSWER_MS))
    if given.get(_ANSWER_PRIORITY) is not None:
        answer = read_priority(f"{_TENSORRT}.{_ANSWER_PRIORITY}", given[_ANSWER_PRIORITY])
        ranges.append(Range(prompt_len, None, answer, held_s))
    return tuple(ranges)


def _read_tensorrt_range(field: str, given: Any) -> Range:
    if not isinstance(given, Mapping) or not set(given) <= set(_TENSORRT_RANGE):
        raise HintsError(field, given, f"an object with {', '.join(_TENSORRT_RANGE)}")
    start, end = read_span(field, given, "token_start", "token_end")
    priority = read_priority(f"{field}.priority", given.get("priority"))
    return Range(start, end, priority, _read_ms(f"{field}.duration_ms", given.get("duration_ms")))


def _read_ms(field: str, value: Any) -> float:
    """A duration in ms as one in s; as long as one can be where none is given."""
    if value is None:
        return LONGEST_S
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_MS:
        raise HintsError(field, value, "a number of milliseconds above 0, or null")
    return min(value / 1_000, LONGEST_S)


def _read_agent_hints(given: Any) -> int | None:
    """The priority among Dynamo's hints.

    The others are checked. How long the answer is (``osl``) is known when its leaf can be evicted; for
    ``speculative_prefill`` see :func:`asks_for_prefill`. Fields that are not named here are its router's.
    """
    if not isinstance(given, Mapping):
        raise HintsError("nvext", given, "an object")
    hints = given.get("agent_hints")
    if hints is None:
        return None
    where = "nvext.agent_hints"
    if not isinstance(hints, Mapping):
        raise HintsError(where, hints, "an object with any of priority, osl, speculative_prefill")
    priority, length, speculative = (hints.get(field) for field in ("priority", "osl", "speculative_prefill"))
    if priority is not None and not is_whole(priority):
        raise HintsError(f"{where}.priority", priority, "a whole number")
    if length is not None:
        check_tokens(f"{where}.osl", length)
    if speculative is not None and not isinstance(speculative, bool):
        raise HintsError(f"{where}.speculative_prefill", speculative, "true or false")
    return priority
