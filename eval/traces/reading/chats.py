"""From texts to requests, for every format of conversations: one unit for each message, prompt and answer cached.

Tokens of the chat template are not counted. Texts are hashed and measured, and not kept, unless they are asked for.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from eval.traces.reading.tokenizer import TokenCount
from eval.traces.request import Path, Request, StopReason

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it is in a prompt; calls of tools are part of its text."""

    role: Role
    text: str
    time_s: float | None = None  # where the data tells
    calls_tool: bool = False  # an answer that ends in a call of a tool


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the model."""

    prompt: tuple[Message, ...]  # what it adds to the conversation before it is answered; some of a user or a tool
    answer: tuple[Message, ...]  # empty where nobody answered


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation whose texts are known."""

    name: str
    turns: Sequence[Turn]
    arrivals_s: Sequence[float]  # of the turns
    return_rate: float | None = None  # λ of its turns, 1/s, where arrivals were drawn
    model: str | None = None
    category: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """Requests of one conversation, and until when nothing is missing once they are read."""

    until_s: float  # no conversation read later has a request before this
    requests: list[Request]


def turns(messages: Iterable[Message]) -> list[Turn]:
    """Cut a conversation into turns: each ends with the last answer before a user or a tool speaks again.

    Answers before the first user has spoken count as part of the first prompt. No user, no turns.
    """
    found: list[Turn] = []
    prompt: list[Message] = []
    answer: list[Message] = []
    asked = False
    for message in messages:
        if message.role == "assistant" and asked:
            answer.append(message)
            continue
        if answer:
            found.append(Turn(tuple(prompt), tuple(answer)))
            prompt, answer, asked = [], [], False
        prompt.append(message)
        asked |= message.role in ("user", "tool")
    if asked:
        found.append(Turn(tuple(prompt), tuple(answer)))
    return found


def requests(chat: Chat, count: TokenCount, texts: bool = False) -> list[Request]:
    """One for each turn, with its messages if ``texts``.

    The id of a unit is a hash chained from the start of the conversation, so that conversations share what they
    begin with, be it a system prompt or a popular first question.
    """
    made: list[Request] = []
    context = Path((), ())
    for turn, arrival_s in zip(chat.turns, chat.arrivals_s, strict=True):
        prompt = extended(context, turn.prompt, count)
        context = extended(prompt, turn.answer, count)
        stop: StopReason | None = None
        if turn.answer:
            stop = "tool_calls" if turn.answer[-1].calls_tool else "stop"
        made.append(
            Request(
                arrival_s,
                chat.name,
                prompt,
                context,
                len(prompt),
                len(context) - len(prompt),
                chat.return_rate,
                tuple((message.role, message.text) for message in turn.prompt) if texts else (),
                stop=stop,
                input="tool" if turn.prompt[-1].role == "tool" else "user",
                model=chat.model,
                category=chat.category,
                session=chat.session,
            )
        )
    return made


def extended(path: Path, messages: Sequence[Message], count: TokenCount) -> Path:
    """A path, and a unit for each message behind it."""
    ids, ends = tuple(path.ids), tuple(path.ends)
    for message in messages:
        parent = ids[-1] if ids else 0
        end = (ends[-1] if ends else 0) + count(message.text)
        ids, ends = (*ids, _chained(parent, message)), (*ends, end)
    return Path(ids, ends)


def _chained(parent: int, message: Message) -> int:
    """64 bits: among the five million messages of WildChat two are confused with probability 1e-6."""
    digest = blake2b(parent.to_bytes(8), digest_size=8)
    digest.update(message.role.encode() + b"\0" + message.text.encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest())


def by_arrival(conversations: Iterable[Settled]) -> Iterator[Request]:
    """Merge conversations into one stream. A request is held back while an earlier one may still be read."""
    waiting: list[tuple[float, int, Request]] = []
    number = itertools.count()
    for settled in conversations:
        while waiting and waiting[0][0] < settled.until_s:
            yield heapq.heappop(waiting)[-1]
        for request in settled.requests:
            heapq.heappush(waiting, (request.arrival_s, next(number), request))
    while waiting:
        yield heapq.heappop(waiting)[-1]
