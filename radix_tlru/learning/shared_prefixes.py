"""What contexts begin with and have in common: system prompts, templates, documents, and how soon each is used again.

The end of such a prefix becomes a leaf once all that went on behind it was evicted. Then it is worth more than the
conversation that used it last: whoever comes next may begin with it, too. How soon somebody does is learned as it is of
conversations, by how often the prefix was used and how long ago the time before (:mod:`~radix_tlru.learning.hazards`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from radix_tlru.learning.hazards import Hazards, Watched
from radix_tlru.learning.prefix_index import Contexts, Rung
from radix_tlru.policy.models import Group

__all__ = ["SharedPrefix", "SharedPrefixes", "Use"]

_MOST_REMEMBERED = 20_000  # prefixes
_PREFIX = -2  # what their classes begin with, as no conversation's does
_USES = 5  # doublings, beyond which prefixes are alike
_WAITS = (4.0, 16.0, 64.0, 256.0)  # s, between the buckets of the time between the last two uses


@dataclass(eq=False, slots=True)
class Use(Watched):
    """What may be followed by another of its kind."""

    group: Group = field(init=False)  # that it is in
    settled: float = field(default=-math.inf, init=False)  # until when (s), if it is not followed before
    version: int = field(default=0, init=False)  # of the rates that say so


@dataclass(eq=False, slots=True)
class SharedPrefix:
    """A prefix that more than one conversation began with."""

    number: int  # in order of discovery
    rung: Rung  # the last one within it
    uses: int = field(default=0, init=False)
    last: Use | None = field(default=None, init=False)


class SharedPrefixes:
    """The prefixes that were used of late. Memory: the last 20,000."""

    def __init__(self, contexts: Contexts, hazards: Hazards) -> None:
        self._contexts, self._hazards = contexts, hazards
        self._found = 0
        self._known: dict[int, SharedPrefix] = {}  # by number, the longest unused first

    def add(self, rung: Rung) -> SharedPrefix:
        """The prefix that ends at a rung, or less than a step behind it."""
        self._found += 1
        prefix = rung.prefix = self._known[self._found] = SharedPrefix(self._found, rung)
        if len(self._known) > _MOST_REMEMBERED:
            dropped = self._known.pop(next(iter(self._known)))
            dropped.rung.prefix = None
            self._contexts.tidy(dropped.rung)
            if dropped.last is not None:
                self._hazards.forget(dropped.last)
        return prefix

    def use(self, prefix: SharedPrefix, stamp: float) -> None:
        """A turn at ``stamp`` (s) began with it, whoever's it was."""
        wait, before = 0, prefix.last
        if before is not None:
            self._hazards.returned(before, stamp)
            wait = bisect_right(_WAITS, stamp - before.stamp)
        prefix.uses += 1
        prefix.last = Use((_PREFIX, min(prefix.uses.bit_length(), _USES), wait), stamp)
        self._hazards.watch(prefix.last)
        if self._known.pop(prefix.number, None) is not None:
            self._known[prefix.number] = prefix
