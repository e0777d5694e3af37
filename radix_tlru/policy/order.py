"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

The order knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add_leaf`) or vanishes
(:meth:`EvictionOrder.remove_leaf`) and asks it under pressure (:meth:`EvictionOrder.choose_victim`). The live server
and the simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves lie in *buckets*: one for each group of the return model and each price level
of the prompt model. T-LRU has two, TEL-safe and protected. Within a bucket the least key goes first, so a decision
compares the buckets by their first leaf.

- A leaf whose group expires is moved to its next bucket then and there, because its price falls.
- Entries are lazy. A leaf that was used, trimmed, locked or evicted leaves an old entry behind. So does a leaf whose
  price has risen. An old entry is dropped or corrected when it is the first of the cheapest bucket.
- A decision is O(log buckets + log leaves), amortised.

A leaf is trimmed page by page, each page at its own price. A leaf with ``usable_without`` set (hybrid models) is
evicted whole. Its price is that of the middle token of what becomes unusable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Literal, NamedTuple

from radix_tlru.policy.models import Group, Leaf
from radix_tlru.policy.monotone_queue import MonotoneQueue
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import round_up

__all__ = ["EvictionOrder", "Phase", "Victim"]

_SLACK = 1024
"""Rebuild the buckets when entries > 2 · leaves + SLACK. Enter pending leaves when there are more than SLACK."""

_NO_ENTRY = (math.inf, 1 << 60)

Phase = Literal["tel_safe", "lru"]
"""Which of the two phases of T-LRU (paper, Algorithm 1) took a token: free at the tail, or the least recent."""


class Victim(NamedTuple):
    """A leaf, and the depth down to which it stays: tokens [keep, end) are to be evicted, a whole number of pages."""

    leaf_id: int
    leaf: Leaf
    keep: int
    phase: Phase


class EvictionOrder:
    """Evictable leaves, cheapest token first.

    Args:
        policy: the models that price a token.
        page_size: tokens in a page; leaves begin and end on page boundaries and are trimmed there.
        leaf_of: the leaf of that id as it is now, or None if it is not evictable (any more). Ids are never reused.
            Between :meth:`add_leaf` and :meth:`remove_leaf` a leaf's end, history, ``usable_without`` and next prompt
            must not change. They may change while it is away if its key or its group changes, too.
    """

    def __init__(self, policy: Policy, page_size: int, leaf_of: Callable[[int], Leaf | None]) -> None:
        self._page_size = page_size
        self._leaf_of = leaf_of
        self._leaves = 0
        self._over_budget = 0  # tokens, of the leaves that have an entry
        self._pending: dict[int, None] = {}  # leaves that have no entry yet, in the order they were added
        self._start(policy)

    def _start(self, policy: Policy) -> None:
        """Empty buckets for a policy."""
        self._policy, self._returns = policy, policy.returns
        self._probabilities, self._level_costs = policy.prompts.probabilities, policy.level_costs
        self._levels = len(self._level_costs)
        self._level_end = policy.prompts.next_prompt
        self._first_level: Callable[[Leaf, int], int] | None = getattr(policy.prompts, "first_level", None)
        self._last_free = self._probabilities.count(0.0) - 1  # the last level that is free at the tail; -1: none
        self._now = 0.0  # in the time of the return model
        self._buckets: dict[int, MonotoneQueue] = {}  # by group · levels + level
        self._entries = 0
        self._victim: tuple[int, Leaf] | None = None  # its id and the leaf, until it is removed
        self._victim_bucket = 0
        self._prices: list[tuple[float, float, int]] = []  # heap of (cost, rate, bucket), one for each priced bucket
        self._priced: set[int] = set()  # every bucket that is not empty, if the return model is timeless
        self._version = policy.returns.version
        self._expiries: list[tuple[float, int]] = []  # heap of (time, bucket): its first leaf's group expires then
        self._expiry: dict[int, float] = {}  # the one entry of a bucket that counts

    def __len__(self) -> int:
        """Evictable leaves."""
        return self._leaves

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._policy

    @property
    def over_budget(self) -> int:
        """Tokens that could go now at no cost to the tail; a shared token counts for each of its leaves."""
        # A look must not enter pending leaves: that moves the clock, and one rank of several may be looked at.
        return self._over_budget + sum(self.tel_safe_tokens(self._leaf(leaf_id)) for leaf_id in self._pending)

    @property
    def entries(self) -> int:
        """Entries held, old ones included."""
        return self._entries + len(self._expiries)

    def add_leaf(self, leaf_id: int) -> None:
        """A leaf became evictable."""
        self._leaves += 1
        self._pending[leaf_id] = None
        if len(self._pending) > _SLACK:
            self._enter_pending()

    def remove_leaf(self, leaf_id: int) -> None:
        """A leaf that was added will not be evictable any more. Call it before the leaf changes."""
        self._leaves -= 1
        if leaf_id in self._pending:  # most are used again before anything is evicted
            del self._pending[leaf_id]
            return
        if self._victim is None or self._victim[0] != leaf_id:
            self._over_budget -= self.tel_safe_tokens(self._leaf(leaf_id))
            return
        if self._victim_bucket % self._levels <= self._last_free:
            self._over_budget -= self.tel_safe_tokens(self._victim[1])
        self._victim = None
        queue = self._buckets[self._victim_bucket]
        if queue.first is not None and queue.first[1] == leaf_id:
            queue.pop()
            self._entries -= 1

    def advance_clock(self, now: float) -> float:
        """A leaf of another order was used at ``now``. Returns the newest use that is known, of these leaves too."""
        self._enter_pending()
        self._now = max(self._now, now)
        return self._now

    def switch_policy(self, policy: Policy) -> None:
        """Order the same leaves by another policy.

        If only the weight w differs, the buckets get other prices. Otherwise every leaf is put into a bucket anew, and
        old entries are gone.
        """
        self._enter_pending()
        before = self._policy
        if policy is not before and replace(policy, median_weight=before.median_weight) == before:
            self._policy, self._level_costs = policy, policy.level_costs
            self._price_buckets()
            return
        entries = sorted(chain.from_iterable(self._buckets.values()))
        self._start(policy)
        self._over_budget = 0
        for leaf_id in dict.fromkeys(leaf_id for _, leaf_id in entries):
            leaf = self._leaf_of(leaf_id)
            if leaf is not None:
                self._enter(leaf_id, leaf)

    def choose_victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to the policy's trim chunk and to a page; None: no leaves.

        A leaf that is evicted whole is named whole, however few tokens are asked for.

        Evicts nothing: the caller does, and tells by :meth:`remove_leaf` and :meth:`add_leaf` what became of the leaf.
        A victim may hold fewer tokens than asked for, because what follows in its leaf costs more. Then ask again.
        """
        self._enter_pending()
        if self._version != self._returns.version:
            self._follow_rates()
        if self._expiries and self._expiries[0][0] <= self._now:
            self._move_expired()
        found = self._cheapest_bucket() if self._returns.timeless else self._cheapest_first_leaf()
        if found is None:
            return None
        bucket, leaf_id, leaf = found
        self._victim_bucket, self._victim, level = bucket, (leaf_id, leaf), bucket % self._levels
        keep = leaf.start
        if leaf.usable_without is None:
            page = self._page_size
            keep = max(
                keep,
                self._policy.keep(leaf, level, page),
                self._returns.floor(leaf) // page * page,
                leaf.end - round_up(max(tokens, self._policy.trim_chunk), page),
            )
        return Victim(leaf_id, leaf, keep, "lru" if level > self._last_free else "tel_safe")

    def _cheapest_bucket(self) -> tuple[int, int, Leaf] | None:
        """For timeless rates: all leaves of a bucket cost the same, and a heap has the buckets by that price."""
        while self._prices:
            bucket = self._prices[0][2]
            if self._buckets[bucket].first is None:
                heappop(self._prices)
                self._priced.discard(bucket)
                continue
            first = self._current_first(bucket)
            if first is not None:  # otherwise an entry was corrected, and may be in a cheaper bucket now
                return bucket, *first
        return None

    def _cheapest_first_leaf(self) -> tuple[int, int, Leaf] | None:
        """For rates that change with time: the first entries of the buckets are compared.

        An old entry never costs more than its leaf does, because keys only grow. ``usable_without`` only falls while a
        leaf is in the order. So it suffices to check the cheapest entry.
        """
        rate_of, costs, levels, now = self._returns.rate, self._level_costs, self._levels, self._now
        while True:
            least, cheapest, found = math.inf, (math.inf, _NO_ENTRY), -1
            for bucket, queue in self._buckets.items():
                first = queue.first
                if first is None:
                    continue
                rate = rate_of(bucket // levels, first[0], now)
                cost = rate * costs[bucket % levels]
                # Of two that cost nothing, take the one that returns later.
                if cost < least or (cost == least and (rate, first) < cheapest):
                    least, cheapest, found = cost, (rate, first), bucket
            if found < 0:
                return None
            leaf = self._current_first(found)
            if leaf is not None:
                return found, *leaf
            now = self._now

    def _bucket_price(self, bucket: int) -> tuple[float, float, int]:
        rate = self._returns.rate(bucket // self._levels, 0.0, self._now)
        return rate * self._level_costs[bucket % self._levels], rate, bucket

    def price_level(self, leaf: Leaf) -> int:
        """The level of the leaf's last page, or of the middle token of what becomes unusable without the leaf."""
        depth = leaf.end - self._page_size
        if leaf.usable_without is not None:
            depth = leaf.usable_without + max(leaf.end - leaf.usable_without, 0) // 2
            depth = depth // self._page_size * self._page_size
        # The level keeps ⌈(L + Q - ξ)⁺⌉ whole pages. It ends above this depth if and only if Q is at most this.
        longest = self._policy.threshold - leaf.history + depth
        if self._first_level is not None:
            return self._first_level(leaf, longest)
        for level in range(self._levels):
            tokens = self._level_end(leaf, level)
            if tokens is None or tokens <= longest:
                return level
        raise AssertionError(f"the last level of a prompt model must end at the root, above {leaf}")

    def tel_safe_tokens(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail; its own tokens, if it is evicted whole."""
        if self._last_free < 0:
            return 0
        if leaf.usable_without is not None:
            return leaf.end - leaf.start if self.price_level(leaf) <= self._last_free else 0
        return max(leaf.end - self._policy.keep(leaf, self._last_free, self._page_size), 0)

    def _enter_pending(self) -> None:
        """Give the pending leaves their entries."""
        if not self._pending:
            return
        for leaf_id in self._pending:
            self._enter(leaf_id, self._leaf(leaf_id))
        self._pending.clear()
        if self._entries + len(self._expiries) > 2 * self._leaves + _SLACK:
            self.switch_policy(self._policy)

    def _leaf(self, leaf_id: int) -> Leaf:
        """A leaf that was added and not removed."""
        leaf = self._leaf_of(leaf_id)
        assert leaf is not None, f"leaf {leaf_id} was not removed before it went"
        return leaf

    def _enter(self, leaf_id: int, leaf: Leaf) -> None:
        """Count a leaf, and put it into its bucket."""
        level = self.price_level(leaf)
        if level <= self._last_free:
            self._over_budget += self.tel_safe_tokens(leaf)
        self.push(leaf_id, leaf, level)

    def push(self, leaf_id: int, leaf: Leaf, level: int) -> None:
        """Put a leaf at that price level into its bucket, and count its use as the newest if it is."""
        returns, stamp = self._returns, self._returns.stamp(leaf)
        if stamp > self._now:
            self._now = stamp
        self._push(leaf_id, returns.key(leaf), returns.group(leaf, self._now), level)

    def _push(self, leaf_id: int, key: float, group: Group, level: int) -> None:
        number, expiry = group
        bucket = number * self._levels + level
        queue = self._buckets.get(bucket)
        if queue is None:
            queue = self._buckets[bucket] = MonotoneQueue()
        self._entries += 1
        if not queue.push(key, leaf_id):
            return
        if self._returns.timeless and bucket not in self._priced:  # it was empty
            self._priced.add(bucket)
            heappush(self._prices, self._bucket_price(bucket))
        if expiry < math.inf:
            self._schedule_expiry(bucket, expiry)

    def _current_first(self, bucket: int) -> tuple[int, Leaf] | None:
        """The first leaf of a bucket and its id. None if the entry was old; it has been dropped or corrected."""
        queue = self._buckets[bucket]
        assert queue.first is not None, f"bucket {bucket} is empty"
        key, leaf_id = queue.first
        leaf, group = self._leaf_of(leaf_id), None
        if leaf is not None and self._returns.key(leaf) == key:
            group = self._returns.group(leaf, self._now)
            if group.number == bucket // self._levels:  # then its level is unchanged, too
                return leaf_id, leaf
        queue.pop()
        self._entries -= 1
        if leaf is not None and group is not None:
            self._push(leaf_id, key, group, self.price_level(leaf))
        elif leaf is not None:  # used since
            self.push(leaf_id, leaf, self.price_level(leaf))
        return None

    def _price_buckets(self) -> None:
        self._prices = [self._bucket_price(bucket) for bucket in self._priced]
        heapify(self._prices)

    def _follow_rates(self) -> None:
        """The return model has other rates. A price may have fallen anywhere, so every bucket is looked at."""
        self._version = self._returns.version
        self._price_buckets()
        self._expiry = dict.fromkeys(self._priced, self._now)
        self._expiries = sorted((self._now, bucket) for bucket in self._priced)

    def _schedule_expiry(self, bucket: int, time: float) -> None:
        """Look at the first leaf of a bucket at that time, or before."""
        if time < self._expiry.get(bucket, math.inf):
            self._expiry[bucket] = time
            heappush(self._expiries, (time, bucket))

    def _move_expired(self) -> None:
        """Move the leaves whose group has expired into their next buckets."""
        while self._expiries and self._expiries[0][0] <= self._now:
            time, bucket = heappop(self._expiries)
            if self._expiry.get(bucket) == time:
                del self._expiry[bucket]
                self._move_first_leaves(bucket)

    def _move_first_leaves(self, bucket: int) -> None:
        """Move the first leaves of a bucket, up to one that still belongs there."""
        number, queue = bucket // self._levels, self._buckets[bucket]
        group_of, key_of, now = self._returns.group, self._returns.key, self._now
        while queue.first is not None:
            key, leaf_id = queue.first
            leaf = self._leaf_of(leaf_id)
            if leaf is None or key_of(leaf) != key:
                self._current_first(bucket)
                continue
            group = group_of(leaf, now)
            if group.number == number:
                self._schedule_expiry(bucket, group.expiry)
                return
            queue.pop()
            self._entries -= 1
            self._push(leaf_id, key, group, self.price_level(leaf))
