"""Which conversation used a path last, at some depths: who is left behind when a path forks, and where."""

from __future__ import annotations

from collections.abc import Sequence

from radix_tlru.learning.prefix_index import DEPTH_BITS, STEPS, HashedContext, depth_of
from radix_tlru.learning.records import Conversation
from radix_tlru.policy.sharded_dict import ShardedDict

__all__ = ["LastUsers", "keys_of"]

_FIRST = STEPS.index(256)
"""What is shared by fewer tokens matters to nobody."""

_PARTS = 4
"""Depths from one step to the next. What others share is known to a tenth so, also where its KV is gone. Known to a
step alone, shadow caches under lru lack up to 29 % of it, while the cache evicts by another policy."""

_MOST_REMEMBERED = 200_000  # depths of paths: 2 of a context of 300 tokens, 43 of one of 10,000


class LastUsers:
    """By the hashes of a context's first 256, 282, 309, 335, 362, … tokens (`keys_of`). Memory: 200,000 hashes."""

    def __init__(self) -> None:
        self._last = ShardedDict[Conversation]()  # by key; in each shard the longest unused first

    def fork_of(self, keys: Sequence[int]) -> tuple[Conversation, int] | None:
        """The conversation that was the last to use what a context begins with, and how much of it, tokens."""
        for key in reversed(keys):
            conversation = self._last.get(key)
            if conversation is not None:
                return conversation, depth_of(key)
        return None

    def count_use(self, keys: Sequence[int], conversation: Conversation) -> None:
        """The conversation used all of a context."""
        for key in keys:
            self._last.put_last(key, conversation, _MOST_REMEMBERED)


def keys_of(context: HashedContext) -> list[int]:
    """Of the depths of a context, the shallowest first: a hash and the depth are one number, as in the prefix index."""
    keys: list[int] = []
    for step in range(_FIRST, len(context.numbers)):
        start, number = STEPS[step], context.numbers[step]
        keys.append(number << DEPTH_BITS | start)
        length = STEPS[step + 1] - start if step + 1 < len(STEPS) else 0
        for part in range(1, _PARTS):
            end = STEPS[step] + length * part // _PARTS
            if not start < end <= context.tokens:
                break
            number = context.fingerprint(start, end, number)
            keys.append(number << DEPTH_BITS | end)
            start = end
    return keys
