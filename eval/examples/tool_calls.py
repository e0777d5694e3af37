"""A worked example of a return model of one's own: agents come back when their tool has answered.

An answer that ends in a tool call will be continued by a program, and soon; one that does not waits for a person. The
model looks for the token that begins a call in what was answered, and takes such a conversation to return eight times
as soon as another one that was used as recently::

    python -m sglang.launch_server … --radix-eviction etlru --tlru-return-model eval.examples.tool_calls:AfterToolCalls

``etlru`` by itself tells calls by how answers end, and learns when their tools have answered; this is the shortest
model that shows how more is asked: any token, anywhere in an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.models import Group, Leaf, Recency

__all__ = ["AfterToolCalls"]

_PERSON, _PROGRAM = 0, 1


@dataclass(frozen=True, slots=True)
class AfterToolCalls(Recency):
    """λ = 1 / age for people and 8 / age for programs. ``token``: that begins a tool call."""

    token: int = 151_657  # <tool_call> of the Qwen models

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """Note whether the answer calls a tool."""
        conversation.annotation = _PROGRAM if self.token in turn.answer_ids else _PERSON

    def group(self, leaf: Leaf, now: float) -> Group:
        return Group(leaf.conversation.annotation or _PERSON if leaf.conversation is not None else _PERSON, math.inf)

    def rate(self, group: int, key: float, now: float) -> float:
        return Recency.rate(self, group, key, now) * (8.0 if group == _PROGRAM else 1.0)
