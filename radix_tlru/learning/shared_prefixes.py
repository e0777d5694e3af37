"""What contexts begin with and have in common: system prompts, templates, documents, and how soon each is used again.

The end of such a prefix becomes a leaf once all that went on behind it was evicted. It is then worth more than the
conversation that used it last, because whoever comes next may begin with it, too. How soon somebody does is learned as
it is of conversations, by how often the prefix was used and how long ago the time before
(:mod:`~radix_tlru.learning.hazards`).
"""

from __future__ import annotations

from bisect import bisect_right

from radix_tlru.learning.hazards import Hazards
from radix_tlru.learning.prefix_index import PrefixIndex
from radix_tlru.learning.records import Conversation, SharedPrefix, TurnCheckpoint, Use

__all__ = ["SharedPrefixes"]

_MOST_REMEMBERED = 20_000  # prefixes
_PREFIX = -2  # what their classes begin with, as no conversation's does
_USES = 5  # doublings, beyond which prefixes are alike
_WAITS = (4.0, 16.0, 64.0, 256.0)  # s, between the buckets of the time between the last two uses


class SharedPrefixes:
    """The prefixes that were used of late. Memory: the last 20,000."""

    def __init__(self, index: PrefixIndex[Conversation, SharedPrefix], hazards: Hazards) -> None:
        self._index, self._hazards = index, hazards
        self._found = 0
        self._known: dict[int, SharedPrefix] = {}  # by number, the longest unused first

    def add_prefix(self, checkpoint: TurnCheckpoint) -> SharedPrefix:
        """The prefix that ends at a checkpoint, or less than a step behind it."""
        self._found += 1
        prefix = checkpoint.prefix = self._known[self._found] = SharedPrefix(self._found, checkpoint)
        if len(self._known) > _MOST_REMEMBERED:
            dropped = self._known.pop(next(iter(self._known)))
            dropped.checkpoint.prefix = None
            self._index.drop_unused(dropped.checkpoint)
            if dropped.last is not None:
                self._hazards.stop_watching(dropped.last)
        return prefix

    def count_use(self, prefix: SharedPrefix, stamp: float) -> None:
        """A turn at ``stamp`` (s) began with the prefix, whichever conversation took it."""
        wait, before = 0, prefix.last
        if before is not None:
            self._hazards.count_return(before, stamp)
            wait = bisect_right(_WAITS, stamp - before.stamp)
        prefix.uses += 1
        prefix.last = Use((_PREFIX, min(prefix.uses.bit_length(), _USES), wait), stamp)
        self._hazards.start_watching(prefix.last)
        if self._known.pop(prefix.number, None) is not None:
            self._known[prefix.number] = prefix
