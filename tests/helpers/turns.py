"""Turns of conversations as a cache reports them, records of them, and the sizes that unit tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import Fingerprint, HashedContext
from radix_tlru.learning.prompt_lengths import PromptLengths
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.turn_features import features_of
from radix_tlru.learning.turn_log import TurnLog

PAGE, THRESHOLD, NEXT_PROMPT = 16, 600, 100  # tokens


def turn(stamp: float, prompt: int, context: int, name: int = 1) -> Turn:
    """A turn without an answer, of the conversation with that name; lengths in tokens."""
    return Turn(stamp, prompt, 0, context, 0, lambda start, end, above: name * 1_000_000 + end)


def fingerprint_of(tokens: Sequence[int]) -> Fingerprint:
    """Exact: no two beginnings that differ have one number."""
    return lambda start, end, above: hash((above, tuple(tokens[start:end])))


def hashed(tokens: Sequence[int]) -> HashedContext:
    return HashedContext(fingerprint_of(tokens), len(tokens))


def told(stamp: float, prompt: Sequence[int], answer: Sequence[int] = (), **fields: Any) -> Turn:
    """A turn of which all tokens are known and cached, in pages of one token."""
    context = [*prompt, *answer]
    found = Turn(stamp, len(prompt), len(answer), len(context), 0, fingerprint_of(context), answer_ids=tuple(answer))
    return found._replace(**fields)


class Words:
    """Tokens that were never said before."""

    def __init__(self) -> None:
        self._said = 0

    def fresh(self, count: int) -> list[int]:
        self._said += count
        return list(range(self._said - count, self._said))


def conversation(
    stamp: float = 0.0, number: int = 1, turn: int = 0, context_len: int = 1_000, shared_len: int = 0, **fields: Any
) -> Conversation:
    """A conversation as of a turn, with its features."""
    found = Conversation(stamp, number, turn, context_len, shared_len)
    for name, value in fields.items():
        setattr(found, name, value)
    found.features = features_of(found)
    return found


def new_conversations(prompts: PromptLengths | None = None) -> Conversations:
    """Nothing is known yet; lengths of prompts go to ``prompts``."""
    return Conversations(TurnLog(), prompts if prompts is not None else PromptLengths())


branches = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 900)), min_size=1, max_size=12
)
"""What :func:`grown` makes contexts of."""


def grown(steps: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Contexts each of which goes on with an earlier one from somewhere."""
    found: list[list[int]] = [[]]
    for number, (of, at, more) in enumerate(steps):
        parent = found[of % len(found)]
        found.append([*parent[: at % (len(parent) + 1)], *[number] * more])
    return found[1:]
