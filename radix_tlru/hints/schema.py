"""What a client may say of its own conversation, and what that changes: a model's beliefs, within bounds.

=========================  ============================================  ===========================================
hint                       says                                          puts into the formula
=========================  ============================================  ===========================================
``conversation_ends``      nobody will come back (End-Aware, paper 5.3)  return rate 0: its tail goes first
``next_prompt_tokens``     length of the next prompt (Length-Aware)      P(Q > ·) a step at that length
``returns_in_s``           an agent waits for a tool that long           return rate 1 / time left
``retention``              ranges of tokens with a priority, for a time  return rate by a factor, 0 to 4
=========================  ============================================  ===========================================

Ranges are those of TensorRT-LLM's KvCacheRetentionConfig: priorities from 0 to 100, of which 35 is that of no hint.

A hint is about the tokens that its conversation does not share, and none can pin memory: no token gets more than four
times as dear as it would be, no claim holds for longer than an hour, and the contexts with claims that make them dearer
may fill a quarter of the pool; what would go beyond is not believed. A longer next prompt is no such claim: at most it
makes what was safe to take as dear as the rest of its path, as LRU has it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeGuard

from radix_tlru.config import one_line
from radix_tlru.policy.models import Group, Leaf, Policy, PromptModel, ReturnModel, Wrapped

__all__ = ["Claims", "Hinted", "HintedPrompt", "Hints", "HintsError", "Range", "hinted"]

NEUTRAL = 35
"""Priority of tokens that nothing was said of, as in TensorRT-LLM."""

HIGHEST = 100
"""The highest priority."""

MOST = 4.0
"""How many times as dear a hint may make a token."""

LONGEST_S = 3600.0
"""For how long a claim may hold."""

SHARE = 1 / 4
"""Of the pool, that contexts with claims that make them dearer may fill."""

_MOST_RANGES = 16
_SLACK = 64
_MOST_TOKENS = 1 << 20


class HintsError(ValueError):
    """A hint that is none; the message is one line naming the field, its value and what is allowed."""

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
    def parse(cls, said: Any) -> Hints:
        """From JSON as a client sends it.

        Raises:
            HintsError: a field is unknown, of the wrong type, out of bounds, or contradicts another.
        """
        if not isinstance(said, Mapping):
            raise HintsError("", said, f"an object with any of {', '.join(cls.__slots__)}")
        for field in said:
            if field not in cls.__slots__:
                raise HintsError(str(field), said[field], f"left out; known are {', '.join(cls.__slots__)}")
        ends, tokens, seconds, ranges = (said.get(field) for field in cls.__slots__)
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
    def claims_until_s(self) -> float:
        """For how long (s) it makes tokens dearer than they would be; 0: it does not."""
        held = [each.duration_s for each in self.retention if each.priority > NEUTRAL]
        if self.returns_in_s is not None:
            held.append(2 * self.returns_in_s)
        return min(max(held, default=0.0), LONGEST_S)

    def without_claims(self) -> Hints:
        """What of it makes no token dearer."""
        kept = tuple(each for each in self.retention if each.priority <= NEUTRAL)
        return Hints(self.conversation_ends, self.next_prompt_tokens, None, kept)


def _range(number: int, said: Any) -> Range:
    field = f"retention[{number}]"
    if not isinstance(said, Mapping) or not set(said) <= set(Range._fields):
        raise HintsError(field, said, f"an object with {', '.join(Range._fields)}")
    start, end, priority = said.get("start", 0), said.get("end"), said.get("priority")
    _check_whole(f"{field}.start", start, _MOST_TOKENS)
    if end is not None and (not _is_whole(end) or not start < end <= _MOST_TOKENS):
        raise HintsError(f"{field}.end", end, f"a whole number of tokens above start, up to {_MOST_TOKENS}, or null")
    if not _is_whole(priority) or not 0 <= priority <= HIGHEST:
        raise HintsError(f"{field}.priority", priority, f"a whole number from 0 to {HIGHEST}")
    duration = said.get("duration_s", LONGEST_S)
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


class Claims:
    """Which hints are believed: those that make tokens dearer only while they fit into their share of the pool.

    A conversation has one claim, that of its last turn.

    Args:
        capacity: of the pool, tokens.
    """

    def __init__(self, capacity: int) -> None:
        self._room = int(capacity * SHARE)
        self._held: dict[int, tuple[float, int]] = {}  # (until, tokens) by conversation
        self._ends: list[tuple[float, int]] = []  # (until, conversation) of those, and of some that are no more: a heap
        self.refused = 0
        """Claims that did not fit in."""

    def admit(self, hints: Hints | None, tokens: int, now: float, conversation: int) -> Hints | None:
        """What is believed of hints, or of none, of a conversation with a context of ``tokens``, at ``now`` (s)."""
        while self._ends and self._ends[0][0] <= now:
            until, ended = heappop(self._ends)
            if ended in self._held and self._held[ended][0] <= until:
                self._room += self._held.pop(ended)[1]
        if conversation in self._held:
            self._room += self._held.pop(conversation)[1]
        if hints is None or not hints.claims_until_s:
            return hints
        if tokens > self._room:
            self.refused += 1
            return hints.without_claims()
        until = now + hints.claims_until_s
        self._room -= tokens
        self._held[conversation] = until, tokens
        if len(self._ends) > 2 * len(self._held) + _SLACK:
            self._ends = [(until, each) for each, (until, _) in self._held.items()]
            heapify(self._ends)
        else:
            heappush(self._ends, (until, conversation))
        return hints

    def forget(self) -> None:
        """Every claim ends."""
        self._room += sum(tokens for _, tokens in self._held.values())
        self._held.clear()
        self._ends.clear()


# Kinds of leaves within a group of the model that is hinted at: nothing said; a priority; a return that is due. And
# those who are over, whoever they were: of them the longest unused goes first.
_PLAIN, _PRIORITY, _DUE, _OVER = 0, 1, 102, 127
_LEFT_S = tuple(2.0**band for band in range(13))  # time left at which a band of returns that are due begins
_KINDS = 128


class Hinted(Wrapped):
    """A return model that takes hints. ``leaf.known`` is a Conversation; time is its stamps, in s."""

    def __init__(self, returns: ReturnModel) -> None:
        super().__init__(returns)
        self._now = 0.0  # in the time of the model
        self._first: tuple[float, float] | None = None  # stamp (s) and time of the model, of the first leaf seen
        self._pace = 1.0  # of the model's time by the s

    def stamp(self, leaf: Leaf) -> float:
        time = self._returns.stamp(leaf)
        self._now = max(self._now, time)
        if leaf.known is None:
            return 0.0
        stamp: float = leaf.known.stamp
        if self._first is None:
            self._first = stamp, time
        elif stamp > self._first[0] and time > self._first[1]:
            self._pace = (time - self._first[1]) / (stamp - self._first[0])
        return stamp

    def group(self, leaf: Leaf, now: float) -> Group:
        kind, until = _kind(leaf, now)
        if kind == _OVER:
            return Group(_OVER, until)
        group = self._returns.group(leaf, self._now)
        return Group(group.number * _KINDS + kind, min(group.until, until))

    def rate(self, group: int, key: float, now: float) -> float:
        number, kind = divmod(group, _KINDS)
        if kind == _OVER:
            return 0.0
        rate = self._returns.rate(number, key, self._now)
        if kind == _PLAIN:
            return rate
        if kind < _DUE:
            return rate * factor(kind - _PRIORITY)
        return min(max(rate, 1.0 / (_LEFT_S[kind - _DUE] * self._pace)), MOST * rate)

    def floor(self, leaf: Leaf) -> int:
        """Depth in tokens down to which the leaf is all of one kind."""
        floor = super().floor(leaf)
        hints: Hints | None = leaf.known.hints if leaf.known is not None else None
        if hints is None:
            return floor
        cuts = (cut for each in hints.retention for cut in (each.start, each.end) if cut is not None)
        common: int = leaf.known.common
        return max(depth for depth in (0, floor, common, *cuts) if depth < leaf.end)


def factor(priority: int) -> float:
    """By which a priority multiplies the return rate: 0 at 0, 1 at 35, 4 at 100."""
    if priority <= NEUTRAL:
        return priority / NEUTRAL
    return 1.0 + (MOST - 1.0) * (priority - NEUTRAL) / (HIGHEST - NEUTRAL)


def _kind(leaf: Leaf, now: float) -> tuple[int, float]:
    """Of which kind the last token of a leaf is, and until when (s)."""
    conversation = leaf.known
    hints: Hints | None = conversation.hints if conversation is not None else None
    if hints is None or leaf.end <= conversation.common:
        return _PLAIN, math.inf
    if hints.conversation_ends:
        return _OVER, math.inf
    if hints.returns_in_s is not None:
        left = conversation.stamp + hints.returns_in_s - now
        # Late by as long as it was to take, it is not coming.
        over = conversation.stamp + min(2 * hints.returns_in_s, LONGEST_S)
        if now < over:
            band = max(bisect_left(_LEFT_S, left) - 1, 0)
            until = conversation.stamp + hints.returns_in_s - _LEFT_S[band] if left > _LEFT_S[0] else over
            return _DUE + band, max(until, math.nextafter(now, math.inf))
    for each in hints.retention:
        until = conversation.stamp + each.duration_s
        if each.start < leaf.end <= (leaf.end if each.end is None else each.end) and now < until:
            return _PRIORITY + each.priority, until
    return _PLAIN, math.inf


@dataclass(frozen=True, slots=True)
class HintedPrompt:
    """A prompt model that believes a client who says how long its next prompt will be."""

    prompts: PromptModel

    @property
    def probabilities(self) -> tuple[float, ...]:
        return self.prompts.probabilities

    @property
    def usual(self) -> int:
        return self.prompts.usual

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        tokens = self.prompts.next_prompt(leaf, step)
        hints = leaf.known.hints if leaf.known is not None else None
        if tokens is None or hints is None or hints.next_prompt_tokens is None:
            return tokens
        said: int = hints.next_prompt_tokens
        return said


def hinted(policy: Policy) -> Policy:
    """The same policy, taking hints."""
    return replace(policy, returns=Hinted(policy.returns), prompts=HintedPrompt(policy.prompts))
