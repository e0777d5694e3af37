"""Which conversation used a path last, at few depths: who is left behind when a path forks."""

from __future__ import annotations

from radix_tlru.learning.prefix_index import STEPS, HashedContext
from radix_tlru.learning.records import Conversation
from radix_tlru.policy.sharded_dict import ShardedDict

__all__ = ["LastUsers"]

_FIRST = STEPS.index(256)
"""What is shared by fewer tokens matters to nobody."""

_STEP_BITS = 6
"""The hash at a step and the step are one key, a number: nothing to Python's garbage collector."""

_MOST_REMEMBERED = 200_000  # depths of paths, some 15 of each context


class LastUsers:
    """By the hashes of a context's first 256, 362, 512, … tokens. Memory: 200,000 hashes."""

    def __init__(self) -> None:
        self._last = ShardedDict[Conversation]()  # by hash << 6 | step; in each shard the longest unused first

    def fork_of(self, context: HashedContext) -> tuple[Conversation, int] | None:
        """The conversation that was the last to use what the context begins with, and how much of it, tokens."""
        numbers = context.numbers
        for step in range(len(numbers) - 1, _FIRST - 1, -1):
            conversation = self._last.get(numbers[step] << _STEP_BITS | step)
            if conversation is not None:
                return conversation, STEPS[step]
        return None

    def count_use(self, context: HashedContext, conversation: Conversation) -> None:
        """The conversation used all of the context."""
        numbers = context.numbers
        for step in range(_FIRST, len(numbers)):
            self._last.put_last(numbers[step] << _STEP_BITS | step, conversation, _MOST_REMEMBERED)
