"""What is sent: conversations of turns, the units of their prompts, and the tokens of a unit.

A turn waits for the turn before it in its conversation and for the turns that it names. Then it waits a while: the time
of a tool, or of a user who reads.

Tokens are drawn from a seed: equal units become equal tokens. What the server answered is a unit, too, where the trace
knows which unit that is: a later prompt that holds it holds what the server said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np

from eval.traces.request import Path

Message = tuple[str, str]
"""Role and text."""


class TurnId(NamedTuple):
    """Which turn: the index of its conversation, and its number there."""

    conversation: int
    turn: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of a unit: equal wherever the unit is the same."""

    unit: int
    tokens: int


class Units(Sequence[Segment]):
    """The segments of a prompt from its unit ``first`` on, made when they are looked at.

    Prompts of a trace share most of their blocks: as objects they would need more memory than the trace.

    Args:
        rest: what follows the last unit.
    """

    def __init__(self, path: Path, first: int = 0, rest: Segment | None = None) -> None:
        self._path, self._first, self._rest = path, first, rest

    def __len__(self) -> int:
        return len(self._path.ids) - self._first + (self._rest is not None)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | Sequence[Segment]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index] + self._first
        ids, ends = self._path.ids, self._path.ends
        if place == len(ids) and self._rest is not None:
            return self._rest
        return Segment(ids[place], ends[place] - (ends[place - 1] if place else 0))

    def __repr__(self) -> str:
        """Short, and the same for the same units in every process: a run is known by it."""
        ids, ends = hash(tuple(self._path.ids)), hash(tuple(self._path.ends))
        return f"Units({ids}, {ends}, {self._first}, {self._rest})"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    segments: Sequence[Segment]  # what it adds to the history, or its whole prompt
    whole: bool  # the segments are the whole prompt, history included
    output_tokens: int  # length of the answer to ask for, at least 1
    wait_s: float  # from the end of the last answer that it waits for; 0 if it waits for none
    messages: tuple[Message, ...] = ()  # what it adds as text, where the trace has it
    closes: bool = False  # the conversation ends with it; where it is a session, the client closes it
    after: tuple[TurnId, ...] = ()  # turns of other conversations that it waits for
    arrival_s: float | None = None  # since the start of the trace; None: the waits before it tell
    place: int = 0  # in the trace: of turns that arrive at once, those of lower numbers are first
    answer: tuple[Segment, ...] = ()  # the units of its answer, where later prompts may hold them
    kept_tokens: int | None = None  # of its answer, in the next prompt; 0: it is empty in the trace; None: all


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one user, or of one agent of a session."""

    index: int
    start_s: float  # arrival of its first turn, since the first turn of the trace
    turns: tuple[Turn, ...]
    session: int | None = None  # index of the conversation that began its session; None: its own
    names_session: bool = False  # the trace names its session, so its requests do

    @property
    def session_index(self) -> int:
        """Index of the conversation that began its session."""
        return self.index if self.session is None else self.session


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
    def names_sessions(self) -> bool:
        """Whether the trace names the sessions of any conversations."""
        return any(conversation.names_session for conversation in self.conversations)

    def tokens_of(self, segment: Segment) -> list[int]:
        """The tokens of a segment, as they are drawn."""
        rng = np.random.default_rng((self.seed, segment.unit))
        drawn: list[int] = rng.integers(self.vocabulary, size=segment.tokens).tolist()
        return drawn

    def ids(self, turn: Turn) -> tuple[int, ...]:
        """The tokens of a turn's segments, as they are drawn."""
        return tuple(token for segment in turn.segments for token in self.tokens_of(segment))

    def messages(self, turn: Turn) -> tuple[Message, ...]:
        """The texts of the trace, else one message of as many printable characters as the turn has tokens."""
        if turn.messages:
            return turn.messages
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
        text = bytes(letters[np.asarray(self.ids(turn), dtype=int) % len(letters)]).decode()
        return (("user", text),)

    def by_index(self) -> Mapping[int, Conversation]:
        """The conversations by their index."""
        return {conversation.index: conversation for conversation in self.conversations}
