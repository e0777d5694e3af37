"""What a client may say of its own conversation: fields, types, bounds.

=========================  ============================================  ===========================================
hint                       says                                          puts into the formula
=========================  ============================================  ===========================================
``conversation_ends``      nobody will come back (End-Aware, paper 5.3)  return rate 0: its tail goes first
``next_prompt_tokens``     length of the next prompt (Length-Aware)      P(Q > ·) a step at that length
``returns_in_s``           an agent waits for a tool that long           return rate 1 / time left
``retention``              ranges of tokens with a priority, for a time  return rate times a factor, 0 to 4
=========================  ============================================  ===========================================

Ranges are those of TensorRT-LLM's KvCacheRetentionConfig: priorities from 0 to 100, where 35 changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from radix_tlru.config import one_line

__all__ = ["HIGHEST", "LONGEST_S", "NEUTRAL", "Hints", "HintsError", "Range"]

NEUTRAL = 35
"""Priority of tokens without a hint, as in TensorRT-LLM."""

HIGHEST = 100
"""The highest priority."""

LONGEST_S = 3600.0
"""The longest duration (s) that a hint may name."""

_MOST_RANGES = 16
_MOST_TOKENS = 1 << 20


class HintsError(ValueError):
    """A hint that cannot be read; the message is one line naming the field, its value and what is allowed."""

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        shown = json.dumps(value, default=repr)
        where = f"tlru.{field}" if field else "tlru"
        super().__init__(one_line(f"{where} {shown if len(shown) <= 80 else shown[:77] + '...'}: must be {allowed}"))


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
            raise HintsError("", given, f"an object with any of {', '.join(cls.__slots__)}")
        for field in given:
            if field not in cls.__slots__:
                raise HintsError(str(field), given[field], f"left out; known are {', '.join(cls.__slots__)}")
        ends, tokens, seconds, ranges = (given.get(field) for field in cls.__slots__)
        if ends is not None and not isinstance(ends, bool):
            raise HintsError("conversation_ends", ends, "true or false")
        if tokens is not None:
            _check_whole("next_prompt_tokens", tokens, _MOST_TOKENS)
        if seconds is not None:
            _check_seconds("returns_in_s", seconds)
        if ends and seconds is not None:
            raise HintsError("returns_in_s", seconds, "left out of a conversation that ends")
        if ranges is not None and (not isinstance(ranges, list) or len(ranges) > _MOST_RANGES):
            raise HintsError("retention", ranges, f"a list of up to {_MOST_RANGES} ranges")
        return cls(bool(ends), tokens, seconds, tuple(_range(number, each) for number, each in enumerate(ranges or ())))

    def dumps(self) -> str:
        """As one string, which :meth:`loads` reads."""
        return json.dumps([self.conversation_ends, self.next_prompt_tokens, self.returns_in_s, self.retention])

    @classmethod
    def loads(cls, text: str) -> Hints:
        """From what :meth:`dumps` wrote."""
        ends, tokens, seconds, ranges = json.loads(text)
        return cls(ends, tokens, seconds, tuple(Range(*each) for each in ranges))

    @property
    def claim_s(self) -> float:
        """For how long (s) the hints make tokens dearer than they would be; 0: they do not."""
        held = [each.duration_s for each in self.retention if each.priority > NEUTRAL]
        if self.returns_in_s is not None:
            held.append(2 * self.returns_in_s)
        return min(max(held, default=0.0), LONGEST_S)

    def without_claims(self) -> Hints:
        """The part of the hints that makes no token dearer."""
        kept = tuple(each for each in self.retention if each.priority <= NEUTRAL)
        return Hints(self.conversation_ends, self.next_prompt_tokens, None, kept)


def _range(number: int, given: Any) -> Range:
    field = f"retention[{number}]"
    if not isinstance(given, Mapping) or not set(given) <= set(Range._fields):
        raise HintsError(field, given, f"an object with {', '.join(Range._fields)}")
    start, end, priority = given.get("start", 0), given.get("end"), given.get("priority")
    _check_whole(f"{field}.start", start, _MOST_TOKENS)
    if end is not None and (not _is_whole(end) or not start < end <= _MOST_TOKENS):
        raise HintsError(f"{field}.end", end, f"a whole number of tokens above start, up to {_MOST_TOKENS}, or null")
    if not _is_whole(priority) or not 0 <= priority <= HIGHEST:
        raise HintsError(f"{field}.priority", priority, f"a whole number from 0 to {HIGHEST}")
    duration = given.get("duration_s", LONGEST_S)
    _check_seconds(f"{field}.duration_s", duration)
    return Range(start, end, priority, float(duration))


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_whole(field: str, value: Any, most: int) -> None:
    if not _is_whole(value) or not 0 <= value <= most:
        raise HintsError(field, value, f"a whole number of tokens from 0 to {most}")


def _check_seconds(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
        raise HintsError(field, value, f"a number of seconds above 0, up to {LONGEST_S:g}")
