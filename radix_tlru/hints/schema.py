"""What a client may say of its own conversation: fields, types, bounds.

=========================  ============================================  ===========================================
hint                       says                                          puts into the formula
=========================  ============================================  ===========================================
``conversation_ends``      nobody will come back (End-Aware, paper 5.3)  return rate 0: its tail goes first
``next_prompt_tokens``     length of the next prompt (Length-Aware)      P(Q > ·) a step at that length
``returns_in_s``           an agent waits for a tool that long           return rate raised to 1 / time left
``retention``              ranges of tokens with a priority, for a time  return rate times a factor, 0 to 4
=========================  ============================================  ===========================================

Ranges are those of TensorRT-LLM's KvCacheRetentionConfig: priorities from 0 to 100, where 35 changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from radix_tlru.config import one_line, shown

__all__ = [
    "HIGHEST",
    "LONGEST_S",
    "MOST_RANGES",
    "MOST_TOKENS",
    "NEUTRAL",
    "Hints",
    "HintsError",
    "Range",
    "check_ranges",
    "check_tokens",
    "is_whole",
    "read_priority",
    "read_range",
    "read_span",
]

NEUTRAL = 35
"""Priority of tokens without a hint, as in TensorRT-LLM."""

HIGHEST = 100
"""The highest priority."""

LONGEST_S = 3600.0
"""The longest duration (s) that a hint may name."""

MOST_RANGES = 16
"""Ranges that a request may name."""

MOST_TOKENS = 1 << 20
"""The longest context (tokens) that a hint may speak of."""


class HintsError(ValueError):
    """A hint that cannot be read; the message is one line naming the field, its value and what is allowed."""

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        super().__init__(one_line(f"{field} {shown(value)}: must be {allowed}"))


class Range(NamedTuple):
    """Tokens [start, end) of a context and how they are to be kept."""

    start: int
    end: int | None  # None: to the end
    priority: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request says of its conversation."""

    conversation_ends: bool = False
    next_prompt_tokens: int | None = None
    returns_in_s: float | None = None
    retention: tuple[Range, ...] = ()

    @classmethod
    def parse(cls, given: Any) -> Hints:
        """From JSON as a client sends it.

        Raises:
            HintsError: a field is unknown, of the wrong type, out of bounds, or contradicts another.
        """
        if not isinstance(given, Mapping):
            raise HintsError("tlru", given, f"an object with any of {', '.join(cls.__slots__)}")
        for field in given:
            if field not in cls.__slots__:
                raise HintsError(f"tlru.{field}", given[field], f"left out; known are {', '.join(cls.__slots__)}")
        ends, tokens, seconds, ranges = (given.get(field) for field in cls.__slots__)
        if ends is not None and not isinstance(ends, bool):
            raise HintsError("tlru.conversation_ends", ends, "true or false")
        if tokens is not None:
            check_tokens("tlru.next_prompt_tokens", tokens)
        if seconds is not None:
            _check_seconds("tlru.returns_in_s", seconds)
        if ends and seconds is not None:
            raise HintsError("tlru.returns_in_s", seconds, "left out of a conversation that ends")
        if ranges is not None:
            check_ranges("tlru.retention", ranges)
        read = (read_range(f"tlru.retention[{number}]", each) for number, each in enumerate(ranges or ()))
        return cls(bool(ends), tokens, seconds, tuple(read))

    def dumps(self) -> str:
        """As one string, which :meth:`loads` reads."""
        return json.dumps([self.conversation_ends, self.next_prompt_tokens, self.returns_in_s, self.retention])

    @classmethod
    def loads(cls, text: str) -> Hints:
        """From what :meth:`dumps` wrote."""
        ends, tokens, seconds, ranges = json.loads(text)
        return cls(ends, tokens, seconds, tuple(Range(*each) for each in ranges))

    @property
    def awaited_s(self) -> float:
        """For how long (s) a stated return is waited for: late by as long as it was to take, it is not coming."""
        return 0.0 if self.returns_in_s is None else min(2 * self.returns_in_s, LONGEST_S)

    @property
    def claim_s(self) -> float:
        """For how long (s) the hints make tokens dearer than they would be; 0: they do not."""
        held = [each.duration_s for each in self.retention if each.priority > NEUTRAL]
        return max([self.awaited_s, *held])

    def without_claims(self) -> Hints:
        """The same with every claim neutral: its tokens cost what they would if nothing was said of them.

        If a claim were left out, the next range would speak of its tokens, and might have them go first.
        """
        kept = tuple(each._replace(priority=min(each.priority, NEUTRAL)) for each in self.retention)
        if self.returns_in_s is not None:
            kept = (Range(0, None, NEUTRAL, self.awaited_s), *kept)
        return Hints(self.conversation_ends, self.next_prompt_tokens, None, kept)


def check_ranges(field: str, given: Any) -> None:
    """Raise HintsError unless ``given`` is a list of no more ranges than a request may name."""
    if not isinstance(given, list) or len(given) > MOST_RANGES:
        raise HintsError(field, given, f"a list of up to {MOST_RANGES} ranges")


def read_range(field: str, given: Any) -> Range:
    """A range out of JSON: ``start``, ``end``, ``priority``, ``duration_s``.

    Raises:
        HintsError: a field of it is unknown, of the wrong type or out of bounds.
    """
    if not isinstance(given, Mapping) or not set(given) <= set(Range._fields):
        raise HintsError(field, given, f"an object with {', '.join(Range._fields)}")
    start, end = read_span(field, given, "start", "end")
    priority = read_priority(f"{field}.priority", given.get("priority"))
    duration = given.get("duration_s", LONGEST_S)
    _check_seconds(f"{field}.duration_s", duration)
    return Range(start, end, priority, float(duration))


def read_span(field: str, given: Mapping[str, Any], first: str, last: str) -> tuple[int, int | None]:
    """The tokens [start, end) of a range out of JSON, by the names that it has for them; None: to the end.

    Raises:
        HintsError: one of them is no whole number, or out of bounds.
    """
    start, end = given.get(first, 0), given.get(last)
    check_tokens(f"{field}.{first}", start)
    if end is not None and (not is_whole(end) or not start < end <= MOST_TOKENS):
        allowed = f"a whole number of tokens above {first}, up to {MOST_TOKENS}, or null"
        raise HintsError(f"{field}.{last}", end, allowed)
    return start, end


def read_priority(field: str, given: Any) -> int:
    """A priority out of JSON.

    Raises:
        HintsError: it is no whole number from 0 to ``HIGHEST``.
    """
    if not is_whole(given) or not 0 <= given <= HIGHEST:
        raise HintsError(field, given, f"a whole number from 0 to {HIGHEST}")
    return given


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_tokens(field: str, value: Any) -> None:
    """Raise HintsError unless ``value`` is a whole number of tokens from 0 to ``MOST_TOKENS``."""
    if not is_whole(value) or not 0 <= value <= MOST_TOKENS:
        raise HintsError(field, value, f"a whole number of tokens from 0 to {MOST_TOKENS}")


def _check_seconds(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
        raise HintsError(field, value, f"a number of seconds above 0, up to {LONGEST_S:g}")
