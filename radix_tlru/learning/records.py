"""What is recorded of requests: a turn as it was served, the conversation that it belongs to, what prefixes share.

Times are stamps that travel with the requests, in s. Lengths (``_len``) are tokens.

There are tens of thousands of conversations, and Python's garbage collector looks at none. Nothing of ours in a
conversation leads back to it, so counting references is enough to free it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from radix_tlru.hints.schema import Hints
from radix_tlru.learning.prefix_index import Fingerprint
from radix_tlru.learning.prompt_lengths import kind_of

__all__ = [
    "Conversation",
    "SharedPrefix",
    "Supersession",
    "Turn",
    "Verdict",
    "is_known",
    "is_later",
    "session_key",
]

_ALL = 1 << 60  # tokens, more than any context has
_COMMON = 8  # uses from which on a prefix is taken for a template, not for what branches of one conversation share


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
    finish: str | None = None  # OpenAI's finish_reason of the answer: stop, tool_calls, length; None: unknown
    namespace: int = 0  # hash of what its tokens are cached under (a salt, an adapter); 0: nothing

    def without_tokens(self) -> Turn:
        """What is left to learn from once it is known whose turn it was: what waits for that holds no long prompts."""
        return self._replace(fingerprint=_forgotten, prompt_ids=(), answer_ids=())


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Which candidate was in force, and the turns by which that was judged; none, by default."""

    candidates: tuple[str, ...] = ()
    preferred: str = ""
    judged: NDArray[np.int64] = field(default_factory=lambda: np.empty((1, 0), np.int64))
    """By turn, the oldest first: tokens of its prompt, and below those that were uncached under each candidate."""


def _forgotten(_start: int, _end: int, _above: int) -> int:
    raise AssertionError("the tokens of a turn that was recorded are forgotten")


def session_key(name: str, namespace: int = 0) -> int:
    """A hash of a session's name, which may be long; two namespaces may have two sessions of one name.

    The same in every process, as ranks must agree.
    """
    digest = blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8, salt=namespace.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


class Supersession(IntEnum):
    """Whether, and how, a later turn left the path of a conversation before its end: a rewind, a compaction, a fork."""

    NONE = 0
    EARLY = 1  # what they share is less than a quarter of the path
    LATE = 2  # it is more
    SESSION = 3  # they share something, and their client gave both the same session
    SESSION_ANEW = 4  # the same session, with nothing in common


class SharedPrefix(Struct, eq=False, gc=False):
    """A prefix that more than one conversation began with."""

    number: int  # in order of discovery
    checkpoint: int  # key of the last one within it
    depth: int  # its length, tokens: less than a step beyond the checkpoint
    above: SharedPrefix | None = None  # the next shorter one on the same path
    uses: int = 0  # by another conversation than the time before
    wait: float = 0.0  # between such uses, the mean of late, s
    last_use: float = -math.inf  # when the last of them was, s
    last_user: int = 0  # number of the conversation that used it last

    @property
    def is_common(self) -> bool:
        """Whether many begin with it. If not, one that does is taken for a branch of the conversation that it left."""
        return self.uses >= _COMMON


class Conversation(Struct, eq=False, gc=False):
    """A conversation as of its last turn."""

    stamp: float  # of its last turn, s
    number: int  # of the conversation, in order of first turns
    turn: int  # turns before this one
    context_len: int  # of its context
    shared_len: int  # of that, what its first turn found cached
    known_next_tokens: int = 0
    """Tokens of the prompt and answer that could not be cached: the next prompt repeats them for certain."""
    reusable_len: int = _ALL
    """Tokens of its context that the next prompt begins with. Beyond them nothing that is cached will be used."""
    left: int = 0
    """Number of the conversation whose path this first turn left; 0: none, or no first turn."""
    family: int = 0
    """Number of the conversation that it is a branch of, or a branch of a branch; its own, if of none."""
    prompt_len: int = 0
    answer_len: int = 0
    thought_len: int = 0
    new_len: int = 0
    """Tokens of its prompt that were new."""
    ending: int = 0
    """How its answer ended, as ``turn_features`` counts."""
    wait: float = -1.0
    """Before its last turn, s; negative: there was none."""
    wait_before: float = -1.0
    """The wait before that one."""
    superseded: Supersession = Supersession.NONE
    features: tuple[int, ...] = ()
    """What returns are predicted by (``turn_features``)."""
    log_serial: int = -1
    """Of its last turn in the log; -1: nobody watches whether it returns."""
    prompt_kind: int = 0  # by which the length of its next prompt is judged
    turn_index: float = 0
    """Turns of all conversations up to its last one; up to its next request while that is queued."""
    queued_until: float = -math.inf
    """Until when (s) its next request is taken to be queued."""
    checkpoint: int = 0
    """Key of its context's last checkpoint, by which it is recognised; 0: it is not."""
    last_prompt: int = 0
    """Key of the last checkpoint of its last prompt: the next one may not repeat the answer as it was cached."""
    prompt_hash: int = 0
    """Hash of all tokens of that prompt."""
    chain_start: int = 0
    """Such a key of the first of the prompts whose answers were repeated until then: all may be left out at once."""
    chain_len: int = 0
    chain_hash: int = 0
    """Hash of all tokens of that prompt, which are ``chain_len``."""
    prefix: SharedPrefix | None = None  # the longest that it began with, if others did, too
    hints: Hints | None = None  # what is believed of what the client said
    annotation: Any = None
    """Of a return model of one's own. It must not lead back to the conversation, or neither is ever freed."""
    session: int | None = None
    """The key of the session that its client named (:func:`session_key`)."""

    def __post_init__(self) -> None:
        self.prompt_kind = kind_of(self.turn, self.context_len)

    @property
    def is_known_by_prompt(self) -> bool:
        """Whether it is recognised by a prompt, too, and not by its context alone."""
        return bool(self.last_prompt or self.chain_start)

    @property
    def common(self) -> int:
        """Tokens of its context that others are known to begin with, too, whether or not they were cached."""
        if self.prefix is None:
            return self.shared_len
        return max(self.shared_len, min(self.prefix.depth, self.context_len))


def is_known(conversation: Conversation | None) -> bool:
    """Whether a turn of it was recorded; not of a newcomer (:meth:`~radix_tlru.learning.learner.Learner.newcomer`)."""
    return conversation is not None and conversation.number > 0


def is_later(one: Conversation | None, other: Conversation | None) -> bool:
    """Whether the last turn of ``one`` was not before that of ``other``, as far as known: the one to be remembered.

    The turns of conversations are compared, and not the last access of nodes: a look-up uses a node, and is no turn.
    """
    if one is None or other is None:
        return other is None
    return (is_known(one), one.turn_index) >= (is_known(other), other.turn_index)
