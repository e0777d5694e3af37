"""From texts to requests, for every data set of conversations: one unit for each message, prompt and answer cached.

Tokens of the chat template are not counted.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

from eval.traces.options import Options
from eval.traces.request import Path, Request, TraceError

__all__ = ["Message", "Settled", "TokenCount", "Turn", "by_arrival", "requests", "token_count", "turns"]

TokenCount = Callable[[str], int]


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    text: str
    time_s: float | None = None  # where the data set tells


class Turn(NamedTuple):
    prompt: tuple[Message, ...]  # what it adds to the conversation before it is answered; at least one of a user
    answer: tuple[Message, ...]  # empty where the conversation ends unanswered


class Settled(NamedTuple):
    """Requests of one conversation, and how far the trace is complete with them."""

    until_s: float  # no conversation read later has a request before this
    requests: list[Request]


def turns(messages: Iterable[Message]) -> list[Turn]:
    """Cut a conversation into turns: each ends with the last answer before a user speaks again.

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
        asked |= message.role == "user"
    if asked:
        found.append(Turn(tuple(prompt), tuple(answer)))
    return found


def requests(
    conversation: str,
    taken: Sequence[Turn],
    arrivals_s: Sequence[float],
    count: TokenCount,
    return_rate: float | None = None,
    texts: bool = False,
) -> list[Request]:
    """One for each turn, with its messages if ``texts``.

    The id of a unit is a hash chained from the start of the conversation, so that conversations share what they
    begin with, be it a system prompt or a popular first question.
    """
    made: list[Request] = []
    ids: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    for turn, arrival_s in zip(taken, arrivals_s, strict=True):
        ids, ends = _extend(ids, ends, turn.prompt, count)
        prompt = Path(ids, ends)
        ids, ends = _extend(ids, ends, turn.answer, count)
        context = Path(ids, ends)
        output_tokens = len(context) - len(prompt)
        added = tuple((message.role, message.text) for message in turn.prompt) if texts else ()
        made.append(Request(arrival_s, conversation, prompt, context, len(prompt), output_tokens, return_rate, added))
    return made


def _extend(
    ids: tuple[int, ...], ends: tuple[int, ...], messages: Sequence[Message], count: TokenCount
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for message in messages:
        parent = ids[-1] if ids else 0
        end = (ends[-1] if ends else 0) + count(message.text)
        ids, ends = (*ids, _chained(parent, message)), (*ends, end)
    return ids, ends


def _chained(parent: int, message: Message) -> int:
    """64 bits: among the five million messages of WildChat two are confused with probability 1e-6."""
    digest = blake2b(parent.to_bytes(8), digest_size=8)
    digest.update(message.role.encode() + b"\0" + message.text.encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest())


def by_arrival(conversations: Iterable[Settled]) -> Iterator[Request]:
    """Merge conversations into one stream, holding back only what a later one could still come before."""
    waiting: list[tuple[float, int, Request]] = []
    number = itertools.count()
    for settled in conversations:
        while waiting and waiting[0][0] < settled.until_s:
            yield heapq.heappop(waiting)[-1]
        for request in settled.requests:
            heapq.heappush(waiting, (request.arrival_s, next(number), request))
    while waiting:
        yield heapq.heappop(waiting)[-1]


def token_count(options: Options) -> TokenCount:
    """Counts the tokens of a message, at least one.

    Raises:
        TraceError: the tokenizer cannot be loaded.
    """
    if options.tokenizer is None:
        ratio = options.characters_per_token
        return lambda text: max(1, math.ceil(len(text) / ratio))
    name = options.tokenizer
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name)
    except ImportError:
        raise TraceError(f"tokenizer {name}: needs the package transformers") from None
    except Exception as error:  # of the hub, of the file system, of the tokenizer's own format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TraceError(f"tokenizer {name}: {reason}") from None
    return lambda text: max(1, len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]))
