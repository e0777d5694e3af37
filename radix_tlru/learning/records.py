"""What is recorded of requests: a turn as it was served, the conversation that it belongs to, what prefixes share.

Times are stamps that travel with the requests, in s. Lengths (``_len``) are tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from radix_tlru.hints.schema import Hints
from radix_tlru.learning.prefix_index import Checkpoint, Fingerprint
from radix_tlru.learning.prompt_lengths import kind_of
from radix_tlru.policy.models import Group

__all__ = ["Class", "Conversation", "PromptCheckpoint", "SharedPrefix", "Turn", "TurnCheckpoint", "Use", "Watched"]

Class: TypeAlias = tuple[int, ...]
"""What a conversation has in common with others, from the coarse to the fine. The parent of (3, 1) is (3,)."""

_ALL = 1 << 60  # tokens, more than any context has


class Turn(NamedTuple):
    """A request that has been served."""

    stamp: float  # when it arrived, s
    prompt_len: int  # its prompt, the history included
    answer_len: int
    context_len: int  # what of both can be cached, in whole pages
    cached_len: int  # what of the prompt was found cached
    fingerprint: Fingerprint  # of the context
    hints: Hints | None = None  # what the client said of the conversation
    prompt_ids: Sequence[int] = ()  # token ids of the prompt and of the answer, where they are known
    answer_ids: Sequence[int] = ()
    thought_len: int = 0  # of the answer: reasoning, which many chat templates leave out of the next prompt
    session: str | None = None  # that the client named


@dataclass(eq=False, slots=True)
class Watched:
    """A conversation, or a use of a shared prefix, that may return."""

    cls: Class
    stamp: float  # of its last turn, s
    band: int = field(default=-1, init=False)  # age band that it is counted in; -1 while nobody watches
    counts: Any = field(default=None, init=False)  # of its class, in ``Hazards``
    hazard: float | None = field(default=None, init=False)  # in that band, as it was predicted, 1 / s


@dataclass(eq=False, slots=True)
class Use(Watched):
    """What may be followed by another of its kind, with the group that the return model last found for it."""

    group: Group = field(init=False)
    group_until: float = field(default=-math.inf, init=False)  # until when (s) it stays in that group
    group_version: int = field(default=0, init=False)  # of the rates by which


@dataclass(eq=False, slots=True)
class SharedPrefix:
    """A prefix that more than one conversation began with."""

    number: int  # in order of discovery
    checkpoint: TurnCheckpoint  # the last one within it
    uses: int = field(default=0, init=False)
    last: Use | None = field(default=None, init=False)


class PromptCheckpoint(NamedTuple):
    """A prompt that ends inside a cached context: its last checkpoint, its length, its hash."""

    checkpoint: TurnCheckpoint
    end: int  # tokens
    number: int  # hash of the prompt to its end


@dataclass(eq=False, slots=True)
class Conversation(Use):
    """A conversation as of its last turn."""

    number: int  # of the conversation, in order of first turns
    turn: int  # turns before this one
    context_len: int  # of its context
    shared_len: int  # of that, what its first turn found cached
    known_next_tokens: int = 0
    """Tokens of the prompt and answer that could not be cached: the next prompt repeats them for certain."""
    reusable_len: int = _ALL
    """Tokens of its context that the next prompt begins with. Beyond them nothing that is cached will be used."""
    prompt_len: int = field(default=0, init=False)
    answer_len: int = field(default=0, init=False)
    thought_len: int = field(default=0, init=False)
    prompt_kind: int = field(init=False)  # by which the length of its next prompt is judged
    turn_index: float = field(default=0, init=False)
    """Turns of all conversations up to its last one; up to its next request while that is queued."""
    queued_until: float = field(default=-math.inf, init=False)
    """Until when (s) its next request is taken to be queued."""
    checkpoint: TurnCheckpoint | None = field(default=None, init=False)  # of its context, by which it is recognised
    prompts: list[PromptCheckpoint] = field(default_factory=list, init=False)
    """By which it is recognised if its next prompt does not repeat the last answer as it was cached: its last prompt,
    and the first of those whose answers were repeated until then."""
    prefix: SharedPrefix | None = field(default=None, init=False)  # that it began with, if others did, too
    hints: Hints | None = field(default=None, init=False)  # what is believed of what the client said
    annotation: Any = field(default=None, init=False)  # of a return model of one's own
    session: str | None = field(default=None, init=False)  # that its client named

    def __post_init__(self) -> None:
        self.prompt_kind = kind_of(self.turn, self.context_len)

    @property
    def common(self) -> int:
        """Tokens of its context that others are known to begin with, too, whether or not they were cached."""
        return (
            self.shared_len
            if self.prefix is None
            else max(self.shared_len, min(self.prefix.checkpoint.depth, self.context_len))
        )


TurnCheckpoint: TypeAlias = Checkpoint[Conversation, SharedPrefix]
