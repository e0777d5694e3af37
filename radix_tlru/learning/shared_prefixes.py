"""What contexts begin with and have in common: system prompts, templates, documents, and how soon each is used again.

The end of such a prefix becomes a leaf once all that continued it was evicted. It is then worth more than the
conversation that used it last, because new conversations may begin with it. Its return rate follows from the mean
wait between uses by different conversations, or from the time since the last one if that is longer. A use by the
conversation that used it last is that conversation's return, and is learned as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radix_tlru.learning.prefix_index import PrefixIndex
from radix_tlru.learning.records import Conversation, SharedPrefix
from radix_tlru.policy.sharded_dict import ShardedDict

__all__ = ["MOST_ON_A_PATH", "SharedPrefixes", "prefixes_of", "reuse_rate"]

MOST_ON_A_PATH = 64
"""Prefixes of one conversation that are looked at. Most conversations have a few."""

_MOST_REMEMBERED = 20_000  # prefixes that are recognised when they are used again
_MEMORY = 0.7  # share of the mean wait that each new wait leaves
_RATE = 0.5  # times 1 / the mean wait: most waits are shorter than their mean, a few much longer


def reuse_rate(prefix: SharedPrefix, at: float) -> float:
    """The rate (1 / s) at which other conversations use the prefix, at a time (s), scaled by uses / (uses + 1)."""
    if not prefix.uses:
        return 0.0
    return _RATE * prefix.uses / (prefix.uses + 1) / max(prefix.wait, at - prefix.last_use, 1e-3)


def prefixes_of(conversation: Conversation) -> Iterator[SharedPrefix]:
    """The shared prefixes that a conversation began with, the longest first: 64 of them, if there are more."""
    prefix = conversation.prefix
    for _ in range(MOST_ON_A_PATH):
        if prefix is None:
            return
        yield prefix
        prefix = prefix.above


class SharedPrefixes:
    """The prefixes that were used of late. Memory: some 20,000, those used last."""

    def __init__(self, index: PrefixIndex[Conversation, SharedPrefix]) -> None:
        self._index = index
        self._found = 0
        self._known = ShardedDict[SharedPrefix]()  # by number; in each shard the longest unused first

    def add_prefix(self, path: Sequence[int], depth: int) -> SharedPrefix:
        """The prefix of ``depth`` tokens, to whose last checkpoint the path leads."""
        index, checkpoint = self._index, path[-1]
        prefix = index.prefixes.get(checkpoint)
        if prefix is not None:
            prefix.depth = max(prefix.depth, depth)
            return prefix
        self._found += 1
        prefix = SharedPrefix(self._found, checkpoint, depth)
        index.put(index.prefixes, path, prefix)
        dropped = self._known.put_last(prefix.number, prefix, _MOST_REMEMBERED)
        if dropped is not None:
            index.remove(index.prefixes, dropped.checkpoint)
        return prefix

    def count_uses(self, conversation: Conversation) -> None:
        """A conversation took a turn, at its stamp, behind all the prefixes that it began with."""
        stamp, number = conversation.stamp, conversation.number
        for prefix in prefixes_of(conversation):
            if prefix.last_user != number:
                if prefix.last_user:
                    wait = max(stamp - prefix.last_use, 0.0)  # who came first may end last
                    prefix.wait = wait if not prefix.uses else _MEMORY * prefix.wait + (1.0 - _MEMORY) * wait
                    prefix.uses += 1
                prefix.last_user, prefix.last_use = number, max(stamp, prefix.last_use)
            if prefix.number in self._known:
                self._known.put_last(prefix.number, prefix, _MOST_REMEMBERED)
