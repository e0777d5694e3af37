"""Small traces for tests, as the evaluation's readers would give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from hypothesis import strategies as st

from eval.traces.request import Path, Request


class Turn(NamedTuple):
    conversation: int
    prompt: int  # tokens that are new in it
    answer: int


def turns(
    conversations: int = 4, prompt: int = 5, answer: int = 4, max_size: int = 14
) -> st.SearchStrategy[list[Turn]]:
    """Turns of up to so many conversations in any order; a turn adds at most so many tokens."""
    turn = st.builds(Turn, st.integers(0, conversations - 1), st.integers(1, prompt), st.integers(0, answer))
    return st.lists(turn, min_size=1, max_size=max_size)


def conversations_in_line(turns: Sequence[Turn]) -> list[Request]:
    """A turn looks up all that its conversation has said so far, and nothing is shared between conversations.

    A unit is a message. Turns come a second apart.
    """
    messages: dict[int, list[tuple[int, int]]] = {}  # (id, tokens)
    requests = []
    for number, turn in enumerate(turns):
        said = messages.setdefault(turn.conversation, [])
        said.append((2 * number, turn.prompt))
        prompt = _path(said)
        if turn.answer:
            said.append((2 * number + 1, turn.answer))
        requests.append(Request(float(number), str(turn.conversation), prompt, _path(said), len(prompt), turn.answer))
    return requests


def _path(messages: Iterable[tuple[int, int]]) -> Path:
    ids, tokens = zip(*messages, strict=True)
    return Path(ids, tuple(accumulate(tokens)))


def single_blocks(ids: Iterable[int]) -> list[Request]:
    """A trace without prefixes: each request is one block of one token, found whole or not at all."""
    blocks = [Path((block,), (1,)) for block in ids]
    return [Request(float(number), None, block, block, 1, 0) for number, block in enumerate(blocks)]


def tel(requests: Sequence[Request], cached: Sequence[int], threshold: int) -> int:
    """Tokens that were not cached beyond ξ, summed over the requests."""
    return sum(
        max(request.prompt_tokens - found - threshold, 0) for request, found in zip(requests, cached, strict=True)
    )
