"""Turns of conversations as a cache reports them, and the sizes that unit tests share."""

from __future__ import annotations

from radix_tlru.learning.records import Turn

PAGE, THRESHOLD, NEXT_PROMPT = 16, 600, 100  # tokens


def turn(stamp: float, prompt: int, context: int, name: int = 1) -> Turn:
    """A turn without an answer, of the conversation with that name; lengths in tokens."""
    return Turn(stamp, prompt, 0, context, 0, lambda start, end, above: name * 1_000_000 + end)
