"""What hints do: the models of a policy, wrapped so that they believe a client.

Hints are about the tokens that a conversation does not share. No token gets more than four times as dear as it would
be.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Protocol

from radix_tlru.hints.schema import HIGHEST, NEUTRAL, Hints
from radix_tlru.policy.models import Group, Leaf, PromptModel, ReturnModel, ReturnModelWrapper
from radix_tlru.policy.policy import Policy

__all__ = ["BANDS", "DEAREST", "HintedPrompts", "HintedReturns", "factor", "with_hints"]

DEAREST = 4.0
"""How many times as dear a hint may make a token."""

BANDS = (0, 12, 23, NEUTRAL, 51, 67, 84, HIGHEST)
"""Priorities that are told apart; any other one counts as the nearest of them. Where rates change with time, a decision
compares every band of every group: with all 101 priorities it is many times as dear."""

_NEUTRAL_BAND = BANDS.index(NEUTRAL)

# Kinds of leaves within a group of the model inside: no hint, a band of priority, a return at a stated time.
# Conversations that have ended are one group, whoever they were: of them the longest unused goes first.
_LEFT_S = tuple(2.0**band for band in range(13))  # time left (s) at which the bands of stated returns begin
_PLAIN, _PRIORITY = 0, 1
_RETURNS = _PRIORITY + len(BANDS)
_ENDED = _RETURNS + len(_LEFT_S)
_KINDS = _ENDED + 1


class HintedConversation(Protocol):
    """What hints need of ``leaf.conversation``."""

    stamp: float
    """When its last turn arrived, s."""
    hints: Hints | None
    """What is believed of what was said with that turn."""

    @property
    def common(self) -> int:
        """Tokens that it shares with others, of whom it says nothing."""


def _conversation_of(leaf: Leaf) -> HintedConversation | None:
    conversation: HintedConversation | None = leaf.conversation
    return conversation


class HintedReturns(ReturnModelWrapper):
    """A return model that takes hints. Time is that of stamps, in s.

    Where the time of the model inside is another one, its pace is followed as leaves are stamped.
    """

    def __init__(self, returns: ReturnModel) -> None:
        super().__init__(returns)
        self._now = 0.0  # in the time of the model inside, if that is not stamps
        self._first: tuple[float, float] | None = None  # stamp (s) and time of the model inside, of the first leaf seen
        self._pace = 1.0  # time of the model inside, by the s

    def stamp(self, leaf: Leaf) -> float:
        time = self._returns.stamp(leaf)
        if self.in_seconds:
            return time
        self._now = max(self._now, time)
        conversation = _conversation_of(leaf)
        if conversation is None:
            return 0.0
        stamp = conversation.stamp
        if self._first is None:
            self._first = stamp, time
        elif stamp > self._first[0] and time > self._first[1]:
            self._pace = (time - self._first[1]) / (stamp - self._first[0])
        return stamp

    def group(self, leaf: Leaf, now: float) -> Group:
        return self.lasting_group(leaf, now, math.inf)

    def lasting_group(self, leaf: Leaf, now: float, least: float) -> Group:
        kind, expiry = _kind(leaf, now)
        if kind == _ENDED:
            return Group(_ENDED, expiry)
        group = self.inner_group(leaf, self._inside(now), least if kind == _PLAIN else math.inf)
        inner_expiry = group.expiry
        if not self.in_seconds:
            inner_expiry = max(now + (inner_expiry - self._now) / self._pace, math.nextafter(now, math.inf))
        return Group(group.number * _KINDS + kind, min(inner_expiry, expiry))

    def rate(self, group: int, key: float, now: float) -> float:
        number, kind = divmod(group, _KINDS)
        if kind == _ENDED:
            return 0.0
        rate = self._returns.rate(number, key, self._inside(now))
        if kind == _PLAIN:
            return rate
        if kind < _RETURNS:
            return rate * _FACTORS[kind - _PRIORITY]
        return min(max(rate, 1.0 / (_LEFT_S[kind - _RETURNS] * self._pace)), DEAREST * rate)

    def _inside(self, now: float) -> float:
        """The time of the model inside."""
        return now if self.in_seconds else self._now

    def floor(self, leaf: Leaf) -> int:
        floor = super().floor(leaf)
        conversation = _conversation_of(leaf)
        if conversation is None or conversation.hints is None:
            return floor
        cuts = (cut for each in conversation.hints.retention for cut in (each.start, each.end) if cut is not None)
        return max(depth for depth in (0, floor, conversation.common, *cuts) if depth < leaf.end)


@dataclass(frozen=True, slots=True)
class HintedPrompts:
    """A prompt model that believes a client who states how long its next prompt will be."""

    prompts: PromptModel

    @property
    def probabilities(self) -> tuple[float, ...]:
        return self.prompts.probabilities

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        tokens = self.prompts.next_prompt(leaf, level)
        conversation = _conversation_of(leaf)
        hints = None if conversation is None else conversation.hints
        if tokens is None or hints is None or hints.next_prompt_tokens is None:
            return tokens
        return hints.next_prompt_tokens


def with_hints(policy: Policy) -> Policy:
    """The same policy, taking hints."""
    return replace(policy, returns=HintedReturns(policy.returns), prompts=HintedPrompts(policy.prompts))


def factor(priority: int) -> float:
    """By which a priority multiplies the return rate, in the steps of ``BANDS``: 0 at 0, 1 at 35, 4 at 100."""
    return _FACTORS[_BAND_OF[priority]]


def _factor(band: int) -> float:
    if band <= NEUTRAL:
        return band / NEUTRAL
    return 1.0 + (DEAREST - 1.0) * (band - NEUTRAL) / (HIGHEST - NEUTRAL)


_FACTORS = tuple(map(_factor, BANDS))


# Number of the nearest band, by priority; of two, the lower one.
_BAND_OF = tuple(
    min(range(len(BANDS)), key=lambda band: abs(BANDS[band] - priority)) for priority in range(HIGHEST + 1)
)


def _kind(leaf: Leaf, now: float) -> tuple[int, float]:
    """Of which kind the last token of a leaf is, and when that expires (s)."""
    conversation = _conversation_of(leaf)
    if conversation is None or conversation.hints is None or leaf.end <= conversation.common:
        return _PLAIN, math.inf
    hints = conversation.hints
    if hints.conversation_ends:
        return _ENDED, math.inf
    if hints.returns_in_s is not None:
        left = conversation.stamp + hints.returns_in_s - now
        given_up = conversation.stamp + hints.awaited_s
        if now < given_up:
            band = max(bisect_left(_LEFT_S, left) - 1, 0)
            expiry = conversation.stamp + hints.returns_in_s - _LEFT_S[band] if left > _LEFT_S[0] else given_up
            return _RETURNS + band, expiry
    for each in hints.retention:
        expiry = conversation.stamp + each.duration_s
        if each.start < leaf.end <= (leaf.end if each.end is None else each.end) and now < expiry:
            band = _BAND_OF[each.priority]
            return _PLAIN if band == _NEUTRAL_BAND else _PRIORITY + band, expiry
    return _PLAIN, math.inf
