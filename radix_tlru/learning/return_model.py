"""Return models of what was learned: how soon a conversation returns, or how many turns ago it was.

A cache writes what :meth:`~radix_tlru.learning.learner.Learner.record_turn` returns onto the path of each request that
it has served. These models read it from there, as ``leaf.conversation``.
"""

from __future__ import annotations

import copy
import math

from radix_tlru.learning.age_bands import BANDS, band_of
from radix_tlru.learning.gittins import BandRun, gittins, merge_bands
from radix_tlru.learning.hazards import Hazards, ReturnCount
from radix_tlru.learning.records import Class, Conversation, Use
from radix_tlru.policy.models import Group, Leaf, Recency

__all__ = ["LearnedReturns", "RecentTurns"]

_QUEUED = 1 << 40  # the group of what a queued request waits for, beyond all others
_QUEUED_RATE = 10.0  # of that group, 1 / s
_ENDS = (*BANDS, math.inf)


class RecentTurns(Recency):
    """Recency by turns served since: λ = 1 / age. The lookups and inserts that a turn takes do not count.

    ``leaf.conversation`` is the :class:`Conversation` whose turn was the last use of the leaf.
    """

    __slots__ = ()

    def key(self, leaf: Leaf) -> float:
        return leaf.conversation.turn_index if leaf.conversation is not None else 0.0

    def stamp(self, leaf: Leaf) -> float:
        return self.key(leaf)


class LearnedReturns:
    """The Gittins index by class of the conversation and band of its age.

    Bands with nearly the same index are one group: a leaf is not moved where it is worth what it was. What a queued
    request waits for returns for certain, and at once. It goes after all else that costs something.

    ``leaf.conversation`` is the :class:`Conversation` whose turn was the last use of the leaf. Where it shares the leaf
    with others, the leaf is worth what its prefix promises, if that is more.

    Args:
        needed: whether rates will be asked for. If not, returns are counted and nothing else.
    """

    timeless = True

    def __init__(self, needed: bool = True) -> None:
        self.hazards = Hazards() if needed else ReturnCount()
        """Of conversations."""
        self.prefix_hazards = Hazards() if needed else ReturnCount()
        """Of what they have in common."""
        self.version = 0
        """Counts the times that rates have changed."""
        self._numbers: dict[Class, int] = {}
        self._classes: list[Class] = []
        self._index: dict[Class, list[float]] = {(): [1.0 / (start + 1.0) for start in BANDS]}
        self._rates: list[float] = []  # by class, in the order of their numbers, and band
        self._runs: list[list[BandRun]] = []  # of each class
        self._is_preview = False  # what a preview finds is not written anywhere

    def __copy__(self) -> LearnedReturns:
        """For a preview, which one rank of several may take: what it finds is not kept, on conversations neither."""
        preview = object.__new__(type(self))
        vars(preview).update(vars(self))
        for name in ("_numbers", "_classes", "_rates", "_runs"):
            setattr(preview, name, copy.copy(getattr(self, name)))
        preview._is_preview = True
        return preview

    def refit(self) -> None:
        """Estimate rates from what has been seen so far."""
        estimates = self.prefix_hazards.estimate() | self.hazards.estimate()  # the root is that of conversations
        self._index = {cls: gittins(hazards) for cls, hazards in estimates.items()}
        indexes = [self._index_of(cls) for cls in self._classes]
        self._rates = [rate for index in indexes for rate in index]
        self._runs = [merge_bands(index) for index in indexes]
        self.version += 1

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def stamp(self, leaf: Leaf) -> float:
        return leaf.conversation.stamp if leaf.conversation is not None else 0.0

    def group(self, leaf: Leaf, now: float) -> Group:
        conversation: Conversation | None = leaf.conversation
        if conversation is None:
            return self._group_at((), 0.0, now)[0]
        if now < conversation.queued_until:
            return Group(_QUEUED, conversation.queued_until)
        if now < conversation.group_until and conversation.group_version == self.version:
            group = conversation.group
        else:
            group = self._group_of(conversation, now)
        if conversation.prefix is None or leaf.end > conversation.shared_len:
            return group
        last = conversation.prefix.last
        shared = self._group_of(last, now) if last is not None else self._group_at((), 0.0, now)[0]
        higher = group if self._rates[group.number] > self._rates[shared.number] else shared
        return Group(higher.number, min(group.expiry, shared.expiry))

    def _group_of(self, use: Use, now: float) -> Group:
        """By class and age."""
        if now < use.group_until and use.group_version == self.version:
            return use.group
        if (
            now < use.group_until
        ):  # after a refit it stays where it is until its bands are over, so that few move at once
            group, until = Group(use.group.number, use.group_until), use.group_until
        else:
            group, until = self._group_at(use.cls, use.stamp, now)
        if not self._is_preview:
            use.group, use.group_until, use.group_version = group, until, self.version
        return group

    def _group_at(self, cls: Class, stamp: float, now: float) -> tuple[Group, float]:
        """The group of the class at an age, and when its bands are over (s)."""
        number, end, until = self._number(cls), band_of(now - stamp), now
        while until <= now:  # a second time if the first was off by rounding
            first, end, falls = self._runs[number][end]
            until = stamp + _ENDS[end]
        return Group(number * len(BANDS) + first, stamp + _ENDS[falls]), until

    def rate(self, group: int, key: float, now: float) -> float:
        return self._rates[group] if group != _QUEUED else _QUEUED_RATE

    def floor(self, leaf: Leaf) -> int:
        conversation: Conversation | None = leaf.conversation
        if conversation is None or conversation.prefix is None or leaf.end <= conversation.shared_len:
            return 0
        return conversation.shared_len

    def _number(self, cls: Class) -> int:
        number = self._numbers.get(cls)
        if number is None:
            number = self._numbers[cls] = len(self._classes)
            self._classes.append(cls)
            index = self._index_of(cls)
            self._rates.extend(index)
            self._runs.append(merge_bands(index))
        return number

    def _index_of(self, cls: Class) -> list[float]:
        """Of the class, or of its nearest ancestor that has one."""
        while cls not in self._index:
            cls = cls[:-1]
        return self._index[cls]
