"""The prompt of each turn while a load is played: the history so far, as tokens or as messages, and what is new."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

from eval.live.replay.client import Request, RequestResult
from eval.live.replay.turns import Load, Message, TurnId

Api = Literal["generate", "chat"]


@dataclass(slots=True)
class _Context:
    """What was sent of a conversation, and what came back."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    units: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # tokens from the start to the end of each unit
    messages: tuple[Message, ...] = ()

    def cut(self, units: int) -> None:
        """Keep the first so many units."""
        del self.tokens[self.ends[units - 1] if units else 0 :]
        del self.units[units:], self.ends[units:]


class Prompts:
    """The prompts of a run. What is new in a turn is drawn; what the server said is taken as it was."""

    def __init__(self, load: Load, api: Api) -> None:
        self._load, self._api = load, api
        self._conversations = load.by_index()
        self._contexts: dict[int, _Context] = {}  # of conversations that go on
        self._answers: dict[int, array[int]] = {}  # by unit

    def ask(self, one: TurnId) -> Request:
        """The request of a turn. What the turn adds becomes history."""
        turn = self._conversations[one.conversation].turns[one.turn]
        context = self._contexts.setdefault(one.conversation, _Context())
        if self._api == "chat":
            context.messages += self._load.messages(turn)
            return Request(*one, (), turn.output_tokens, context.messages)
        known = 0
        if turn.whole:
            # Drawing is slow, and the history is most of the prompt.
            for segment, unit in zip(turn.segments, context.units, strict=False):
                if segment.unit != unit:
                    break
                known += 1
            context.cut(known)
        for segment in turn.segments[known:]:
            said = self._answers.get(segment.unit)
            context.tokens.extend(self._load.tokens_of(segment) if said is None else said)
            context.units.append(segment.unit)
            context.ends.append(len(context.tokens))
        return Request(*one, tuple(context.tokens), turn.output_tokens)

    def take(self, one: TurnId, result: RequestResult) -> None:
        """What came back becomes history; after a failure there is none to go on with."""
        conversation = self._conversations[one.conversation]
        turn = conversation.turns[one.turn]
        if result.error is not None or one.turn == len(conversation.turns) - 1:
            del self._contexts[one.conversation]
        else:
            context = self._contexts[one.conversation]
            context.messages += (("assistant", result.output_text),)
            if not turn.whole:
                context.tokens.extend(result.output_ids[: turn.kept_tokens])
        start = 0
        for segment in turn.answer if result.error is None else ():
            end = start + segment.tokens
            self._answers.setdefault(segment.unit, array("i", result.output_ids[start:end]))
            start = end
