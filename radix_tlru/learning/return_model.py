"""Return models of what was learned: how soon conversations are taken up again, or how many turns ago they were.

A cache writes what :meth:`~radix_tlru.learning.learner.Learner.observe` returns onto the path of each request that it
has served; these models read it from there.
"""

from __future__ import annotations

import copy
import math

from radix_tlru.learning.conversations import Conversation
from radix_tlru.learning.hazards import BANDS, Class, Hazards, Unasked, band_of, gittins, runs
from radix_tlru.learning.shared_prefixes import Use
from radix_tlru.policy.models import Group, Leaf, Recency

__all__ = ["LearnedReturns", "RecentTurns"]

_WAITED_FOR = 1 << 40  # the group of what a request waits for, beyond all others
_AT_ONCE = 10.0  # 1 / s: its rate
_ENDS = (*BANDS, math.inf)


class RecentTurns(Recency):
    """Recency by turns served since: λ = 1 / age, to which the matches and inserts that a turn takes are nothing.

    ``leaf.known`` is the :class:`Conversation` whose turn was the last use of the leaf.
    """

    __slots__ = ()

    def key(self, leaf: Leaf) -> float:
        return leaf.known.served if leaf.known is not None else 0.0

    def stamp(self, leaf: Leaf) -> float:
        return self.key(leaf)


class LearnedReturns:
    """The index of :func:`~radix_tlru.learning.hazards.gittins`, by class of the conversation and band of its age.

    Bands that come to nearly the same are one group: no leaf has to be moved on where it is worth what it was. What a
    request waits for is certain to return, and at once: it goes after all else that costs something.

    ``leaf.known`` is the :class:`Conversation` whose turn was the last use of the leaf. Where that shares the leaf with
    others it is worth what its prefix promises, if that is more.

    Args:
        asked: whether rates will be.
    """

    timeless = True

    def __init__(self, asked: bool = True) -> None:
        self.hazards = Hazards() if asked else Unasked()
        """Of conversations."""
        self.prefixes = Hazards() if asked else Unasked()
        """Of what they have in common."""
        self.version = 0
        """Counts the times that rates have changed."""
        self._numbers: dict[Class, int] = {}
        self._classes: list[Class] = []
        self._index: dict[Class, list[float]] = {(): [1.0 / (start + 1.0) for start in BANDS]}
        self._rates: list[float] = []  # by class, in the order of their numbers, and band
        self._runs: list[list[tuple[int, int, int]]] = []  # of each class
        self._looks = False  # ahead, and leaves nothing behind

    def __copy__(self) -> LearnedReturns:
        """For a look ahead, which one rank of several may take: what it comes upon is not noted, on uses neither."""
        ahead = object.__new__(type(self))
        vars(ahead).update(vars(self))
        for name in ("_numbers", "_classes", "_rates", "_runs"):
            setattr(ahead, name, copy.copy(getattr(self, name)))
        ahead._looks = True
        return ahead

    def learn(self) -> None:
        """Put rates to what has been seen so far."""
        estimates = self.prefixes.estimate() | self.hazards.estimate()  # the root is that of conversations
        self._index = {cls: gittins(hazards) for cls, hazards in estimates.items()}
        indexes = [self._of(cls) for cls in self._classes]
        self._rates = [rate for index in indexes for rate in index]
        self._runs = [runs(index) for index in indexes]
        self.version += 1

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def stamp(self, leaf: Leaf) -> float:
        return leaf.known.stamp if leaf.known is not None else 0.0

    def group(self, leaf: Leaf, now: float) -> Group:
        conversation: Conversation | None = leaf.known
        if conversation is not None and now < conversation.due:
            return Group(_WAITED_FOR, conversation.due)
        if conversation is not None and now < conversation.settled and conversation.version == self.version:
            group = conversation.group
        else:
            group = self._group(conversation, now)
        if conversation is None or conversation.prefix is None or leaf.end > conversation.shared:
            return group
        shared = self._group(conversation.prefix.last, now)
        more = group if self._rates[group.number] > self._rates[shared.number] else shared
        return Group(more.number, min(group.until, shared.until))

    def _group(self, use: Use | None, now: float) -> Group:
        """By class and age."""
        if use is None:
            return self._at((), 0.0, now)[0]
        if now < use.settled and use.version == self.version:
            return use.group
        if now < use.settled:  # no more move at once, when rates change, than have grown out of their bands since
            group, settled = Group(use.group.number, use.settled), use.settled
        else:
            group, settled = self._at(use.cls, use.stamp, now)
        if not self._looks:
            use.group, use.settled, use.version = group, settled, self.version
        return group

    def _at(self, cls: Class, stamp: float, now: float) -> tuple[Group, float]:
        """The group of the class at an age, and when its bands are over (s)."""
        number, end, until = self._number(cls), band_of(now - stamp), now
        while until <= now:  # a second time if the first was off by rounding
            first, end, falls = self._runs[number][end]
            until = stamp + _ENDS[end]
        return Group(number * len(BANDS) + first, stamp + _ENDS[falls]), until

    def rate(self, group: int, key: float, now: float) -> float:
        return self._rates[group] if group != _WAITED_FOR else _AT_ONCE

    def floor(self, leaf: Leaf) -> int:
        conversation: Conversation | None = leaf.known
        if conversation is None or conversation.prefix is None or leaf.end <= conversation.shared:
            return 0
        return conversation.shared

    def _number(self, cls: Class) -> int:
        number = self._numbers.get(cls)
        if number is None:
            number = self._numbers[cls] = len(self._classes)
            self._classes.append(cls)
            index = self._of(cls)
            self._rates.extend(index)
            self._runs.append(runs(index))
        return number

    def _of(self, cls: Class) -> list[float]:
        """Rates of the class, or of its nearest ancestor that has any."""
        while cls not in self._index:
            cls = cls[:-1]
        return self._index[cls]
