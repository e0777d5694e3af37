"""From a trace to what is sent: conversations of turns, each with what it adds to the real history.

A conversation in which every prompt begins with the context before it is played with the real answers: the prompt of a
turn is all that was said before, the server's own answers included, and then what the user adds. Other prompts are the
trace's own tokens: those of a block trace, which does not know its answers, and of a history that was cut or replaced.
Where the trace names no conversations, blocks tell which request continues which.

Where the trace has no text, tokens are drawn from a seed: equal units become equal tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eval.traces.request import Request

__all__ = ["Conversation", "Load", "Message", "Segment", "Turn", "load_from"]

Message = tuple[str, str]
"""Role and text."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of a unit: equal wherever the unit is the same."""

    unit: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    segments: tuple[Segment, ...]  # what it adds to the history, or its whole prompt
    whole: bool  # the segments are the whole prompt, history included
    output_tokens: int  # length of the answer to ask for, at least 1
    wait_s: float  # from the turn before to this one in the trace; 0 for the first turn
    messages: tuple[Message, ...] = ()  # what it adds as text, where the trace has it
    closes: bool = False  # the conversation ends with it; where it is a session, the client closes it

    @property
    def new_tokens(self) -> int:
        """Tokens of the segments."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one user."""

    index: int
    start_s: float  # arrival of its first turn, since the first turn of the trace
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations in order of their first turns, and how their tokens are drawn."""

    conversations: tuple[Conversation, ...]
    seed: int = 0
    vocabulary: int = 256  # ids 0 to vocabulary - 1 are drawn from

    @property
    def requests(self) -> int:
        """Requests that are sent if no turn fails."""
        return sum(len(conversation.turns) for conversation in self.conversations)

    @property
    def tokens(self) -> int:
        """Tokens of all conversations at their end, answers included: an upper bound for a pool without eviction.

        Tokens that several conversations share count for each.
        """
        return sum(
            max(turn.new_tokens + turn.output_tokens for turn in conversation.turns)
            if conversation.turns[0].whole
            else sum(turn.new_tokens + turn.output_tokens for turn in conversation.turns)
            for conversation in self.conversations
        )

    def ids(self, turn: Turn) -> tuple[int, ...]:
        """The tokens of a turn's segments."""
        drawn = [
            np.random.default_rng((self.seed, segment.unit)).integers(self.vocabulary, size=segment.tokens)
            for segment in turn.segments
        ]
        return tuple(np.concatenate(drawn).tolist()) if drawn else ()

    def messages(self, turn: Turn) -> tuple[Message, ...]:
        """The texts of the trace, else one message of as many printable characters as the turn has tokens."""
        if turn.messages:
            return turn.messages
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
        text = bytes(letters[np.asarray(self.ids(turn)) % len(letters)]).decode()
        return (("user", text),)


def load_from(requests: Sequence[Request], seed: int = 0, vocabulary: int = 256) -> Load:
    """The load that a trace stands for."""
    first_s = requests[0].arrival_s if requests else 0.0
    chains: dict[str, list[Request]] = {}
    for request, name in zip(requests, _names(requests), strict=True):
        chains.setdefault(name, []).append(request)
    conversations = (
        Conversation(index, chain[0].arrival_s - first_s, tuple(_turns(index, chain)))
        for index, chain in enumerate(chains.values())
    )
    return Load(tuple(conversations), seed, vocabulary)


def _turns(index: int, chain: Sequence[Request]) -> Iterable[Turn]:
    before: Request | None = None
    whole = chain[0].conversation is None or not all(after.continues(last) for last, after in pairwise(chain))
    for number, request in enumerate(chain):
        yield Turn(
            segments=_segments(request, None if whole else before, own=(1 << 64) + (index << 24) + number),
            whole=whole,
            output_tokens=max(request.output_tokens, 1),
            wait_s=request.arrival_s - before.arrival_s if before else 0.0,
            messages=request.messages,
            closes=request.closes,
        )
        before = request


def _segments(request: Request, before: Request | None, own: int) -> tuple[Segment, ...]:
    """Units of the prompt after the context of the turn before, or all of them.

    A partial block at the end belongs to no other request: its unit is ``own``.
    """
    known = len(before.context.ids) if before is not None else 0
    ends = list(request.prompt.ends)
    starts = [0, *ends]
    segments = [
        Segment(request.prompt.ids[unit], ends[unit] - starts[unit]) for unit in range(known, len(request.prompt.ids))
    ]
    rest = request.prompt_tokens - len(request.prompt)
    if rest:
        segments.append(Segment(own, rest))
    return tuple(segments)


def _names(requests: Sequence[Request]) -> list[str]:
    """The conversation of each request.

    Where the trace does not name it, a request continues the longest earlier one whose whole blocks are its own first
    blocks, unless another request has continued that one already.
    """
    tails: dict[int, str] = {}  # conversations that were not continued yet, by their last block
    names: list[str] = []
    for number, request in enumerate(requests):
        if request.conversation is not None:
            names.append(request.conversation)
            continue
        blocks = request.prompt.ids
        parent = next((block for block in reversed(blocks) if block in tails), None)
        names.append(tails.pop(parent) if parent is not None else f"#{number}")
        if blocks:
            tails[blocks[-1]] = names[-1]
    return names
