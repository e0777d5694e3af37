"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

The order knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add_leaf`) or vanishes
(:meth:`EvictionOrder.remove_leaf`) and asks it under pressure (:meth:`EvictionOrder.choose_victim`). The live server
and the simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves lie in *buckets*: one for each group of the return model and each price level
of the prompt model. T-LRU as published has two levels: TEL-safe, and not. Within a bucket the least key goes first, so
a decision compares the buckets by their first leaf. What keeps that right:

- *Expiry.* A leaf whose group expires gets a new price, because its price may have fallen. Each turn does so for a few
  leaves, at its end or at decisions. A leaf far from being next may be in a group that lasts, at a price too low.
- *Old entries.* A leaf that was used, trimmed, locked or evicted leaves an old entry behind. So does a leaf whose price
  has risen or was too low. An old entry never costs more than its leaf. So it is enough to correct it when it is the
  first of the cheapest bucket.
- *Another policy.* When ξ, w or a model moves, a few leaves get new prices in each turn, the cheapest by old prices
  first (:mod:`~radix_tlru.policy.pricings`). A victim always has a new price. If too many leaves would need one before
  the cheapest is known, the victim is the cheapest of those that have one. Prices by another return model are not
  compared.

A decision is O(log buckets + log leaves), amortised; where rates change with time, O(buckets + log leaves). A leaf is
trimmed page by page, each page at its own price. A leaf with ``usable_without`` set (hybrid models) is evicted whole,
at the price of the middle token of what becomes unusable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Literal, NamedTuple

from radix_tlru.policy.buckets import Bucket, Price
from radix_tlru.policy.entries import Entries
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.pricings import Pricings
from radix_tlru.policy.tel import round_up

__all__ = ["CORRECTED", "CORRECTED_IN_A_TURN", "REPRICED", "EvictionOrder", "Phase", "TokenPrice", "Victim"]

_MOST_PENDING = 32
"""Leaves that wait for an entry, at most. Most are used again before anything is evicted, and need none."""

REPRICED = 24
"""Leaves that get a new price in a turn, at most, after a change of policy or an expiry. The end of the turn gives as
many as it can, because nobody waits then; decisions give the rest. From 8 to 128 the gap closed on Mooncake goes up and
down by two points."""

CORRECTED = 8
"""Leaves that a decision corrects, at most: they came first by a price that was too low. A leaf that was used since it
was priced counts, too, but is moved back in any case."""

CORRECTED_IN_A_TURN = 12
"""Leaves that the decisions of a turn correct. After so many each decision may still correct one."""

_LOOKS = 64
"""Entries looked at to find leaves to reprice, at most. Old entries count against no other bound, or two caches with
the same leaves would differ."""

_AHEAD = 1.5
"""A leaf that costs more than so many times the last victim is put into a group that lasts. At 1 more leaves come first
by a price that was too low, at 2 more groups expire: a fifth more work on long prompts either way."""

_AHEAD_AGAIN = 2.0
"""The same for a leaf that came first by a price that was too low: so many times what it was taken to cost."""

_NO_ENTRY = (math.inf, 1 << 60)

Phase = Literal["tel_safe", "lru"]
"""What a token was taken for. ``tel_safe``: it cost nothing at the tail (paper, Algorithm 1, the first phase). ``lru``
(a name kept for dashboards): every other token. Under lru and tlru that is the least recent, under etlru the one with
the lowest λ; between price levels, the one with the lowest cost."""


class Victim(NamedTuple):
    """A leaf, and the depth down to which it stays: tokens [keep, end) are to be evicted, a whole number of pages."""

    leaf_id: int
    leaf: Leaf
    keep: int
    phase: Phase


class TokenPrice(NamedTuple):
    """What a token of a leaf costs, and why."""

    cost: float  # ``marginal_cost`` of the others
    return_rate: float  # λ, in 1 / (unit of the return model's time)
    exceed_probability: float | None  # P(Q > ξ - (L - X)); None: the policy sees no threshold
    median_weight: float  # w


class EvictionOrder:
    """Evictable leaves, cheapest token first.

    Args:
        policy: the models that price a token.
        page_size: tokens in a page; leaves begin and end on page boundaries and are trimmed there.
        leaf_of: the leaf of that id as it is now, or None if it is not evictable (any more). Ids are never reused.
            Between :meth:`add_leaf` and :meth:`remove_leaf` a leaf's end, history, ``usable_without`` and next prompt
            must not change.
    """

    def __init__(self, policy: Policy, page_size: int, leaf_of: Callable[[int], Leaf | None]) -> None:
        self._page_size = page_size
        self._leaf_of = leaf_of
        self._pending: dict[int, None] = {}  # leaves that have no entry yet, in the order they were added
        self._pricings = Pricings(policy)
        self._entries = Entries(self._pricings.buckets)  # of the other leaves
        self._now = 0.0  # the newest use, in the time of the return model
        self._newest: Leaf | None = None  # the leaf that was used then
        self._prices: list[Price] = []  # heap of the prices of buckets with leaves, if the return model is timeless
        self._reprices = REPRICED  # leaves that may still be repriced in this turn
        self._corrections = 0  # leaves that this decision may still correct
        self._corrections_left = CORRECTED_IN_A_TURN  # leaves that decisions of this turn may still correct
        self._victim: tuple[int, Bucket] | None = None  # id and bucket of the last victim, until it is removed
        self._last_cost = 0.0  # of a token of the last victim
        self._timed_by = policy.returns  # the return model in whose time expiries are: the last whose groups expire

    def __len__(self) -> int:
        return len(self._pending) + self._entries.leaves

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._pricings.in_force.policy

    @property
    def over_budget(self) -> int | None:
        """TEL-safe tokens now. One that several leaves share counts for each. None: the policy sees no threshold."""
        if not self.policy.sees_threshold:
            return None
        # A look must not enter pending leaves: that moves the clock, and one rank of several may be looked at.
        return self._entries.over_budget + sum(self.tel_safe_tokens(self._leaf(leaf_id)) for leaf_id in self._pending)

    @property
    def entries(self) -> int:
        """Entries held, old ones included."""
        return len(self._entries)

    def tel_safe_tokens(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail; its own tokens, if it is evicted whole."""
        return self._pricings.in_force.tel_safe_tokens(leaf, self._page_size)

    def renew_prices(self) -> None:
        """A turn was learned from: some leaves get the prices that are due."""
        if self._pending:  # the newest pending leaf tells the time
            self._note_use(self._leaf(next(reversed(self._pending))))
        self._reprices = REPRICED
        self._reprice_due()
        self._entries.drop_first_old()
        self._corrections_left = CORRECTED_IN_A_TURN

    # ---- leaves ----

    def add_leaf(self, leaf_id: int) -> None:
        """A leaf became evictable."""
        self._pending[leaf_id] = None
        if len(self._pending) > _MOST_PENDING:
            self._enter_pending(1)

    def remove_leaf(self, leaf_id: int) -> None:
        """A leaf that was added will not be evictable any more."""
        if leaf_id in self._pending:  # most are used again before anything is evicted
            del self._pending[leaf_id]
            return
        bucket = self._entries.forget(leaf_id)
        if self._victim is not None and self._victim[0] == leaf_id:
            self._victim = None
            if bucket.first is not None and bucket.first[1] == leaf_id:
                self._entries.pop(bucket)

    def advance_clock(self, now: float) -> float:
        """A leaf of another order was used at ``now``. Returns the newest use that is known, of these leaves too."""
        self._enter_pending()
        self._now = max(self._now, now)
        return self._now

    def _enter_pending(self, count: int | None = None) -> None:
        """Give the pending leaves their entries; with a count, those that have waited longest."""
        for leaf_id in list(islice(self._pending, count)):
            self._push(leaf_id, self._leaf(leaf_id))
            del self._pending[leaf_id]

    def _leaf(self, leaf_id: int) -> Leaf:
        """A leaf that was added and not removed."""
        leaf = self._leaf_of(leaf_id)
        assert leaf is not None, f"leaf {leaf_id} was not removed before it went"
        return leaf

    def _push(self, leaf_id: int, leaf: Leaf, least_cost: float | None = None) -> None:
        """Price a leaf, put it into its bucket, and count its use as the newest if it is.

        Args:
            least_cost: a leaf whose tokens cost at least that much may be put into a group that lasts, at a price that
                is too low. None: ``_AHEAD`` times the cost of the last victim.
        """
        pricing = self._pricings.in_force
        returns = pricing.policy.returns
        self._note_use(leaf)
        level = pricing.level_of(leaf, self._page_size)
        if least_cost is None:
            least_cost = _AHEAD * self._last_cost
        group, expiry = pricing.group_of(leaf, self._now, level, least_cost)
        safe_tokens = pricing.tel_safe_tokens(leaf, self._page_size) if level <= pricing.last_free else 0
        if expiry < math.inf:
            self._timed_by = returns
        bucket = pricing.bucket(group, level)
        is_first = self._entries.add(leaf_id, bucket, returns.key(leaf), expiry, safe_tokens)
        if is_first and returns.timeless and not bucket.is_priced:
            bucket.is_priced = True
            heappush(self._prices, bucket.price(self._now))

    def _note_use(self, leaf: Leaf) -> None:
        """Time has passed if the leaf was used later than any before."""
        stamp = self.policy.returns.stamp(leaf)
        if stamp > self._now or self._newest is None:
            self._now, self._newest = max(stamp, self._now), leaf

    def _push_again(self, leaf_id: int, leaf: Leaf, least_cost: float | None = None) -> None:
        """Another price for a leaf that has an entry, which becomes an old one."""
        self._entries.forget(leaf_id)
        self._push(leaf_id, leaf, least_cost)

    # ---- prices ----

    def switch_policy(self, policy: Policy) -> None:
        """Order the same leaves by another policy: a few of them get their new prices in each turn."""
        before = self._pricings.in_force
        if policy is before.policy:
            return
        self._enter_pending()
        if policy.has_levels_of(before.policy):
            before.policy, before.level_costs = policy, policy.level_costs
            self._price_buckets()
            return
        self._pricings.put_in_force(policy, self._now)
        self._last_cost = 0.0
        if policy.returns != before.policy.returns:  # whose time may be another; that of leaves it has priced goes on
            stamp = policy.returns.stamp(self._newest) if self._newest is not None else 0.0
            self._now = max(stamp, self._pricings.last_time_of(policy.returns))
        self._price_buckets()

    def _reprice_due(self) -> None:
        """Reprice leaves after a change of policy, then those whose group has expired, as many as the turn may."""
        if len(self._pricings) > 1:
            self._reprices = self._reprice_some(self._reprices)
        if self._entries.next_expiry <= self._now and self._timed_by == self.policy.returns:
            for leaf_id in islice(self._entries.pop_expired(self._now, _LOOKS), self._reprices):
                self._reprices -= 1
                self._push_again(leaf_id, self._leaf(leaf_id))

    def _reprice_some(self, most: int) -> int:
        """Price leaves of earlier policies by the one in force, ``most`` at most; returns what is left of it."""
        looks = _LOOKS
        while looks and most and (bucket := self._pricings.next_to_reprice()) is not None:
            assert bucket.first is not None, "an empty bucket has no leaf to price"
            key, leaf_id = bucket.first
            is_current = self._entries.is_current(bucket, key, leaf_id)
            self._entries.pop(bucket)
            looks -= 1
            if is_current:
                most -= 1
                self._push_again(leaf_id, self._leaf(leaf_id))
        return most

    def _price_buckets(self) -> None:
        """Sort the buckets whose leaves all cost the same by what that is now."""
        timeless = self.policy.returns.timeless
        self._prices = []
        for bucket in self._pricings.comparable_buckets():
            bucket.is_priced = timeless and bucket.first is not None
            if bucket.is_priced:
                self._prices.append(bucket.price(self._now))
        heapify(self._prices)

    # ---- decisions ----

    def choose_victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to the policy's trim chunk and to a page; None: no leaves.

        A leaf that is evicted whole is named whole, however few tokens are asked for. A victim may hold fewer, because
        what follows in its leaf costs more: then ask again. Evicts nothing: the caller does, and tells by
        :meth:`remove_leaf` and :meth:`add_leaf` what became of the leaf.
        """
        self._enter_pending()
        self._reprice_due()
        returns = self.policy.returns
        self._corrections = granted = max(min(CORRECTED, self._corrections_left), 1)
        cheapest = self._cheapest_bucket if returns.timeless else self._cheapest_first_leaf
        while (found := cheapest()) is None:
            if not self._entries.leaves:
                return None
            assert len(self._pricings) > 1, "no leaf has a price that can be compared: a rate or a key is nan"
            self._reprice_some(CORRECTED)  # no leaf has a new price yet
        self._corrections_left -= granted - self._corrections
        bucket, leaf_id, leaf = found
        self._victim = leaf_id, bucket
        self._last_cost = bucket.cost(self._now)
        keep = leaf.start
        if leaf.usable_without is None:
            page, policy = self._page_size, bucket.pricing.policy
            keep = max(
                keep,
                policy.keep(leaf, bucket.level, page),
                policy.returns.floor(leaf) // page * page,
                leaf.end - round_up(max(tokens, policy.trim_chunk), page),
            )
        assert keep < leaf.end, f"nothing goes of leaf {leaf_id}: it ends at {leaf.end}, and {keep} tokens have to stay"
        return Victim(leaf_id, leaf, keep, "lru" if bucket.level > bucket.pricing.last_free else "tel_safe")

    def price_of(self, victim: Victim) -> TokenPrice:
        """What a token of the victim that was just chosen costs."""
        bucket = self._entries.bucket[victim.leaf_id]
        policy, rate = bucket.pricing.policy, bucket.rate(self._now)
        exceed = policy.prompts.probabilities[bucket.level] if policy.sees_threshold else None
        return TokenPrice(bucket.cost(self._now), rate, exceed, policy.median_weight)

    def _cheapest_bucket(self) -> tuple[Bucket, int, Leaf] | None:
        """For timeless rates: all leaves of a bucket cost the same, and a heap has the buckets by that price."""
        passed_over: list[Price] = []
        found: tuple[Bucket, int, Leaf] | None = None
        while self._prices and found is None:
            bucket = self._prices[0].bucket
            if bucket.first is None:
                heappop(self._prices)
                bucket.is_priced = False
            elif not self._may_be_next(bucket):
                passed_over.append(heappop(self._prices))
            else:  # an entry may be corrected, and be in a cheaper bucket then
                first = self._current_first(bucket)
                found = first and (bucket, *first)
        for price in passed_over:
            heappush(self._prices, price)
        return found

    def _cheapest_first_leaf(self) -> tuple[Bucket, int, Leaf] | None:
        """For rates that change with time: the first entries of the buckets are compared.

        An old entry never costs more than its leaf does, because keys only grow. ``usable_without`` only falls while a
        leaf is in the order. So it suffices to check the cheapest entry.
        """
        rate_of = self.policy.returns.rate
        while True:
            now = self._now  # which a leaf that was used since moves
            least, cheapest = math.inf, (math.inf, _NO_ENTRY)
            found: Bucket | None = None
            for bucket in self._pricings.comparable_buckets():
                first = bucket.first
                if first is None or not self._may_be_next(bucket):
                    continue
                rate = rate_of(bucket.group, first[0], now)
                cost = rate * bucket.pricing.level_costs[bucket.level]
                # Of two that cost nothing, take the one that returns later.
                if cost < least or (cost == least and (rate, first) < cheapest):
                    least, cheapest, found = cost, (rate, first), bucket
            if found is None:
                return None
            leaf = self._current_first(found)
            if leaf is not None:
                return found, *leaf

    def _may_be_next(self, bucket: Bucket) -> bool:
        """Whether a leaf of the bucket has a new price, or can have one at this decision."""
        return self._corrections > 0 or bucket.pricing is self._pricings.in_force

    def _current_first(self, bucket: Bucket) -> tuple[int, Leaf] | None:
        """The first leaf of a bucket and its id. None if the entry was old; it has been dropped or corrected."""
        first, entries = bucket.first, self._entries
        assert first is not None, "an empty bucket has no first leaf"
        key, leaf_id = first
        if entries.is_current(bucket, key, leaf_id):
            leaf, returns = self._leaf(leaf_id), bucket.pricing.policy.returns
            if (
                bucket.pricing is self._pricings.in_force
                and returns.key(leaf) == key
                and (self._corrections <= 0 or returns.group(leaf, self._now).number == bucket.group)
            ):
                return leaf_id, leaf
            self._corrections -= 1
            # It was used since, or costs more by now. A leaf that costs nothing gets its exact price.
            self._push_again(leaf_id, leaf, _AHEAD_AGAIN * bucket.cost(self._now) or math.inf)
        entries.drop_old(bucket)
        return None
