"""A return model of one's own: agents return as soon as their tool has answered.

After an answer that calls a tool, a program sends the next turn, and soon. After any other answer a person reads first.
This model looks in each answer for the token that begins a tool call. Such a conversation returns eight times as soon
as another one that was used at the same time::

    python -m sglang.launch_server … --radix-eviction etlru --tlru-return-model eval.examples.tool_calls:AfterToolCalls

``etlru`` by itself tells answers by their last two tokens, and learns how soon conversations return after each ending.
A model of one's own can look at any token of an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.models import Group, Leaf, Recency

_PERSON, _PROGRAM = 0, 1


@dataclass(frozen=True, slots=True)
class AfterToolCalls(Recency):
    """λ = 1 / age where a person answers, 8 / age where a program does."""

    token: int = 151_657  # that begins a tool call: <tool_call> of the Qwen models

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """Note whether the answer calls a tool."""
        conversation.annotation = _PROGRAM if self.token in turn.answer_ids else _PERSON

    def group(self, leaf: Leaf, now: float) -> Group:
        """The kind of its conversation; a leaf stays in its group until it is used."""
        kind = None if leaf.conversation is None else leaf.conversation.annotation
        return Group(_PERSON if kind is None else kind, math.inf)

    def rate(self, group: int, key: float, now: float) -> float:
        """λ, by age in logical time."""
        return Recency.rate(self, group, key, now) * (8.0 if group == _PROGRAM else 1.0)
