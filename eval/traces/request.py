"""The one form in which every trace reaches a cache: a stream of requests, each a path of weighted units."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from radix_tlru.config import one_line

StopReason = Literal["tool_calls", "stop", "length", "abort"]
"""How an answer ended, in the terms of SGLang's ``finish_reason``: a tool call, the end of the turn, the limit of
tokens, an error or a client that left."""

InputKind = Literal["user", "tool"]
"""What the end of an input is: text of a user, or results of tools."""


class TraceError(ValueError):
    """A trace that cannot be read as asked; one line naming file, line and field, or what to install or download.

    Attributes:
        skippable: it is one record that is bad, which can be left out.
    """

    skippable = False

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens of a context by units (blocks, or messages) that other contexts may share.

    An id stands for the whole prefix up to the end of its unit, as chained block hashes do: contexts with equal ids at
    a unit are equal up to there. That lets a match look at one id instead of all of them.
    """

    ids: Sequence[int]  # a tuple, a range or an array; arrays keep traces of millions of blocks small
    ends: Sequence[int]  # tokens from the start to the end of each unit, rising; a range for blocks of one size

    def __len__(self) -> int:
        """Tokens."""
        return self.ends[-1] if self.ends else 0

    def unit_at(self, token: int) -> int:
        """Index of the unit that holds a token."""
        return bisect_right(self.ends, token)

    def first(self, units: int) -> Path:
        """The path of its first so many units."""
        return Path(self.ids[:units], self.ends[:units])

    def plus(self, tokens: int, unit: int) -> Path:
        """This path, and a unit of so many tokens behind it."""
        return Path((*self.ids, unit), (*self.ends, len(self) + tokens))

    def common(self, other: Path) -> int:
        """Tokens of the longest prefix that both have."""
        low, high = 0, min(len(self.ids), len(other.ids))
        while low < high:
            middle = (low + high + 1) // 2
            if self.ids[middle - 1] == other.ids[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return self.ends[low - 1] if low else 0


@dataclass(frozen=True, slots=True)
class Request:
    """One turn: what is looked up in the cache when it arrives, and what is cached once it is answered.

    Fields with None are unknown: the trace does not tell. Times are in seconds, lengths in tokens.
    """

    arrival_s: float
    conversation: str | None  # requests of one conversation follow each other; block traces may not name it
    prompt: Path  # the cacheable part of the input
    context: Path  # what is cached afterwards, at least the prompt; the prompt and its answer where both are known
    prompt_tokens: int  # of the whole input, cacheable or not: at least len(prompt)
    output_tokens: int
    return_rate: float | None = None  # λ of the conversation's turns, 1/s, where the generator knows it
    messages: tuple[tuple[str, str], ...] = ()  # (role, text) that this turn adds, if they were asked for
    thought_tokens: int = 0  # of the output: before the answer, and in no later prompt
    ending: tuple[int, ...] = ()  # the last token ids of the answer, where these and no stop are known
    closes: bool = False  # with this answer the conversation is over, and the client says so
    stop: StopReason | None = None
    input: InputKind | None = None
    session: str | None = None  # a task of one user: a conversation and those of its subagents
    parent: str | None = None  # the conversation that started this one: its agent is a subagent
    model: str | None = None
    category: str | None = None  # the kind of request, in the words of the trace
    answer_s: float | None = None  # from the arrival to the end of the answer, where it was recorded
    wait_s: float | None = None  # from the end of the conversation's last answer to this arrival: a tool, or a user

    def continues(self, before: Request) -> bool:
        """Whether this prompt begins with all of a context that holds the answer, so that only the rest is new."""
        whole = len(before.context) == before.prompt_tokens + before.output_tokens
        return whole and self.prompt.common(before.context) == len(before.context)


def ending(unit: int, calls: bool) -> tuple[int, int]:
    """How a generated answer ends, a unit of its own: a call of a tool as all calls do, another as no other."""
    return (1 if calls else 2 + unit, 0)
