"""The policies by which leaves are priced now: the one in force, and earlier ones whose leaves wait for a new price.

After a change of policy nothing is priced anew at once. The buckets of the earlier policy stay, and are emptied leaf by
leaf, the cheapest first. If the policy changes again before that is done, a third one joins.
"""

from __future__ import annotations

from collections.abc import Iterator

from radix_tlru.policy.buckets import Bucket, Pricing
from radix_tlru.policy.models import ReturnModel
from radix_tlru.policy.policy import Policy

__all__ = ["Pricings"]

_COMPARED = 4
"""Policies whose prices are compared, the newest. Leaves that have not had a new price for longer wait for one."""


class Pricings:
    """A pricing for each policy by which some leaf is priced."""

    __slots__ = ("_all", "_to_reprice", "in_force")

    def __init__(self, policy: Policy) -> None:
        self.in_force = Pricing(policy, 0)
        """By which leaves get new prices."""
        self._all = [self.in_force]  # the earliest first
        self._to_reprice: list[Bucket] = []  # of the earliest, if it is not in force: the cheapest last

    def __len__(self) -> int:
        """Policies. If there are several, leaves may wait for a price by the one in force."""
        return len(self._all)

    def put_in_force(self, policy: Policy, now: float) -> None:
        """Price leaves by another policy from now on, which is ``now`` in the time of the one before."""
        self.in_force.until = now
        if len(self) == 1:
            self._to_reprice = self.in_force.cheapest_last()
        self.in_force = Pricing(policy, self.in_force.number + 1)
        self._all.append(self.in_force)

    def next_to_reprice(self) -> Bucket | None:
        """The bucket whose first leaf gets its new price next: the cheapest of the earliest policy. None: all have one.

        A policy by which no leaf is priced any more is forgotten.
        """
        while len(self) > 1:
            while self._to_reprice:
                if self._to_reprice[-1].first is not None:
                    return self._to_reprice[-1]
                self._to_reprice.pop()
            del self._all[0]
            if len(self) > 1:
                self._to_reprice = self._all[0].cheapest_last()
        return None

    def last_time_of(self, returns: ReturnModel) -> float:
        """The newest use that is known in the time of a return model, if leaves are still priced by it; else 0."""
        return max((pricing.until for pricing in self._all if pricing.policy.returns == returns), default=0.0)

    def comparable_buckets(self) -> Iterator[Bucket]:
        """The buckets whose prices are in one measure, by the return model in force; few, however often ξ has moved."""
        returns = self.in_force.policy.returns
        for pricing in self._all[-_COMPARED:]:
            if pricing.policy.returns == returns:
                yield from pricing.buckets.values()

    def buckets(self) -> Iterator[Bucket]:
        """All buckets, of whichever policy."""
        return (bucket for pricing in self._all for bucket in pricing.buckets.values())
