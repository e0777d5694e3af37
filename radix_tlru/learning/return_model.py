"""Return models of what was learned: how soon a conversation returns, or how many turns ago it was.

A cache writes what :meth:`~radix_tlru.learning.learner.Learner.record_turn` returns onto the path of each request that
it has served. These models read it from there, as ``leaf.conversation``.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from radix_tlru.learning.age_bands import AGES
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.records import Conversation, SharedPrefix
from radix_tlru.learning.shared_prefixes import prefixes_of, reuse_rate
from radix_tlru.learning.turn_features import NOTHING_KNOWN, Features
from radix_tlru.policy.models import Group, Leaf, Recency

__all__ = ["LearnedReturns", "RecentTurns"]

_QUEUED = 1 << 20  # the group of leaves that a queued request needs, beyond all others
_QUEUED_RATE = 10.0  # λ of that group, 1 / s
_STEPS = 8.0  # groups to a factor of e: rates that differ by less than an eighth are one group
_LOWEST = -512  # group 0: rates of e^-64 / s and less
_RATES = [math.exp((group + _LOWEST + 0.5) / _STEPS) for group in range(640)]  # by group, 1 / s
_FARTHEST = 8  # quarter-octaves of age (two octaves) for which a leaf may keep a rate that is too low


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
    """The Gittins index of a conversation by its last turn and its age, and what others do with what they share.

    The index is that of the model in force when the conversation enters a quarter-octave of age. Rates that differ by
    less than an eighth are one group. What a queued request waits for returns for certain, and at once. It goes after
    all else that costs something.

    ``leaf.conversation`` is the :class:`Conversation` whose turn was the last use of the leaf. Where others share the
    leaf, the rate at which they use it is added.
    """

    timeless = True
    in_seconds = True

    def __init__(self) -> None:
        self.model = HazardModel()
        """The model in force."""
        self._rows = self.model.indexes

    def use_model(self, model: HazardModel) -> None:
        """Judge by another model from now on. Leaves get their new price when they enter their next band of ages."""
        self.model, self._rows = model, model.indexes

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def stamp(self, leaf: Leaf) -> float:
        return leaf.conversation.stamp if leaf.conversation is not None else 0.0

    def group(self, leaf: Leaf, now: float) -> Group:
        return self.lasting_group(leaf, now, math.inf)

    def lasting_group(self, leaf: Leaf, now: float, least: float) -> Group:
        conversation: Conversation | None = leaf.conversation
        if conversation is None:
            return self._group(NOTHING_KNOWN, None, 0.0, now, least)
        if now < conversation.queued_until:
            return Group(_QUEUED, conversation.queued_until)
        prefix = _shared_at(leaf.end, conversation) if conversation.prefix is not None else None
        return self._group(conversation.features, prefix, conversation.stamp, now, least)

    def _group(self, features: Features, prefix: SharedPrefix | None, stamp: float, now: float, least: float) -> Group:
        """The group by features and the time since ``stamp``, for as long as it is worth ``least`` (1 / s).

        It runs for each price of a leaf, so it calls no function that a comparison can replace.
        """
        index = self._rows.get(features)
        if index is None:
            index = self.model.index(features)
        step = bisect_right(AGES, now - stamp) - 1
        if step < 0:
            step = 0
        until = stamp + AGES[step + 1]
        if until <= now:  # by rounding
            step += 1
            until = stamp + AGES[step + 1]
        rate = index[step] if prefix is None else index[step] + reuse_rate(prefix, until)
        if rate >= least:
            for later in range(step + 1, min(step + _FARTHEST, len(index))):
                further = stamp + AGES[later + 1]
                lower = index[later] if prefix is None else index[later] + reuse_rate(prefix, further)
                if lower < rate:
                    if lower < least:
                        break
                    rate = lower
                until = further
        number = math.floor(_STEPS * math.log(rate)) - _LOWEST
        return Group(number if 0 <= number < len(_RATES) else min(max(number, 0), len(_RATES) - 1), until)

    def rate(self, group: int, key: float, now: float) -> float:
        return _RATES[group] if group != _QUEUED else _QUEUED_RATE

    def floor(self, leaf: Leaf) -> int:
        conversation: Conversation | None = leaf.conversation
        if conversation is None or conversation.prefix is None:
            return 0
        end, shared_len = leaf.end, conversation.shared_len
        floor = shared_len if shared_len < end else 0
        for prefix in prefixes_of(conversation):
            if floor < prefix.depth < end:
                floor = prefix.depth
        return floor


def _shared_at(end: int, conversation: Conversation) -> SharedPrefix | None:
    """Of the shared prefixes that go down to ``end`` (tokens) the one with the most uses. The newest has few as yet."""
    found = conversation.prefix if end <= conversation.common else None
    if found is not None:
        for prefix in prefixes_of(conversation):
            if prefix.depth < end:
                break
            if prefix.uses > found.uses:
                found = prefix
    return found
