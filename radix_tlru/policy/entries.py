"""Which entry of which bucket is a leaf's, when a leaf's group expires, and the dropping of entries that are old.

A leaf has one entry in one bucket, and another in the queue of expiries if its group expires. An entry is *old* when
the leaf was used, trimmed, locked, evicted or given another price since. Old entries stay where they are until they
come first, or until a sweep meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from radix_tlru.policy.buckets import Bucket
from radix_tlru.policy.monotone_queue import MonotoneQueue
from radix_tlru.policy.sharded_dict import SHARDS, ShardedDict

__all__ = ["Entries"]

_SLACK = 512
"""A sweep begins when old entries > ¾ of the others + SLACK."""

_ADDED = 8
"""Leaves added from one step of a sweep to the next. A decision adds dozens of leaves."""

_SWEPT = 32
"""Entries that a step of a sweep looks at, at most."""

_QUEUES = 16
"""Queues that such a step looks at, at most: where buckets are many and small, it meets this bound first."""

_FRONTS = 4
"""Buckets whose first entries are looked at in a turn."""

_OFF_A_FRONT = 32
"""Old entries taken off the front of such a bucket, at most."""


class _Unswept(NamedTuple):
    """A queue that a sweep has still to look at, and whether an entry of it counts."""

    queue: MonotoneQueue
    counts: Callable[[float, int], bool]


class Entries:
    """The entries of leaves, by the id of the leaf. The garbage collector does not walk dictionaries of numbers.

    Args:
        buckets: all there are at the moment.
    """

    __slots__ = (
        *("_added", "_buckets", "_expiries", "_expiring", "_fronts", "_old", "_to_sweep"),
        *("bucket", "expiry", "key", "leaves", "over_budget", "safe_tokens"),
    )

    def __init__(self, buckets: Callable[[], Iterable[Bucket]]) -> None:
        self._buckets = buckets
        self.bucket = ShardedDict[Bucket]()  # this one and those below by the id of a leaf
        self.key = ShardedDict[float]()
        self.expiry = ShardedDict[float]()
        """When the group of a leaf expires, if it does."""
        self.safe_tokens = ShardedDict[int]()
        """Tokens that cost nothing at the tail, where there are any."""
        self.over_budget = 0
        """Their sum: TEL-safe tokens of all leaves."""
        self.leaves = 0
        """Leaves that have an entry."""
        self._expiring = 0  # of them, those whose group expires
        self._old = 0  # entries
        self._added = 0  # leaves since a sweep last looked
        self._expiries = MonotoneQueue()  # (time, leaf), old ones included
        self._fronts: list[Bucket] = []  # whose front is still to be looked at in this round: the next one last
        self._to_sweep: list[_Unswept] = []  # in the sweep that is under way: the next one last

    def __len__(self) -> int:
        """Entries held, old ones included."""
        return self.leaves + self._expiring + self._old

    @property
    def next_expiry(self) -> float:
        """When the next group expires; it may be that of an old entry."""
        first = self._expiries.first
        return math.inf if first is None else first[0]

    def add(self, leaf_id: int, bucket: Bucket, key: float, expiry: float, safe_tokens: int) -> bool:
        """Add the entry of a leaf that has none. Returns whether it is the first of its bucket."""
        shard = leaf_id % SHARDS
        self.bucket.shards[shard][leaf_id], self.key.shards[shard][leaf_id] = bucket, key
        self.leaves += 1
        if safe_tokens:
            self.safe_tokens[leaf_id] = safe_tokens
            self.over_budget += safe_tokens
        if expiry < math.inf:
            self.expiry.shards[shard][leaf_id] = expiry
            self._expiring += 1
            self._expiries.push(expiry, leaf_id)
        self._added += 1
        if self._added >= _ADDED and self._old > _SLACK:
            self._added = 0
            self._sweep()
        return bucket.push(key, leaf_id)

    def forget(self, leaf_id: int) -> Bucket:
        """The entry of a leaf is an old one from now on. Returns its bucket."""
        shard = leaf_id % SHARDS
        bucket = self.bucket.shards[shard].pop(leaf_id)
        del self.key.shards[shard][leaf_id]
        self.leaves -= 1
        self._old += 1
        if self.expiry.shards[shard].pop(leaf_id, None) is not None:
            self._expiring -= 1
            self._old += 1
        self.over_budget -= self.safe_tokens.shards[shard].pop(leaf_id, 0)
        return bucket

    def is_current(self, bucket: Bucket, key: float, leaf_id: int) -> bool:
        """Whether that entry of a bucket is the leaf's."""
        shard = leaf_id % SHARDS
        return self.bucket.shards[shard].get(leaf_id) is bucket and self.key.shards[shard][leaf_id] == key

    def pop(self, bucket: Bucket) -> None:
        """Take the first entry of a bucket off. It is an old one, or its leaf is forgotten next."""
        bucket.pop()
        self._old -= 1

    def drop_old(self, bucket: Bucket, most: float = math.inf) -> None:
        """Take old entries off the front of a bucket, ``most`` at most."""
        while most and (first := bucket.first) is not None and not self.is_current(bucket, *first):
            self.pop(bucket)
            most -= 1

    def drop_first_old(self) -> None:
        """Take old entries off the fronts of some buckets, at each call of others. A decision then meets few."""
        if not self._fronts:
            self._fronts = [bucket for bucket in self._buckets() if bucket.first]
        for _ in range(min(_FRONTS, len(self._fronts))):
            self.drop_old(self._fronts.pop(), _OFF_A_FRONT)

    def expired(self, now: float, most: int) -> Iterator[int]:
        """Leaves whose group has expired at ``now``, in any order, among ``most`` entries."""
        entries = islice(self._expiries.up_to(now), most)
        return (leaf_id for time, leaf_id in entries if self._is_expiry(time, leaf_id))

    def pop_expired(self, now: float, most: int) -> Iterator[int]:
        """Leaves whose group has expired at ``now``, the earliest first, among ``most`` entries. Those are gone."""
        for _ in range(most):
            first = self._expiries.first
            if first is None or first[0] > now:
                return
            self._expiries.pop()
            if self._is_expiry(*first):
                del self.expiry[first[1]]
                self._expiring -= 1
                yield first[1]
            else:
                self._old -= 1

    def _sweep(self) -> None:
        """Drop some old entries, if there are many."""
        if not self._to_sweep:
            if self._old <= 0.75 * (self.leaves + self._expiring) + _SLACK:
                return
            self._to_sweep = [_Unswept(self._expiries, self._is_expiry)]
            self._to_sweep += [_Unswept(each, partial(self.is_current, each)) for each in self._buckets() if each.first]
        looks = _SWEPT
        for queue, counts in self._to_sweep[: -_QUEUES - 1 : -1]:
            size = len(queue)
            self._old -= queue.sweep(looks, counts)
            if not queue.is_swept:
                return
            self._to_sweep.pop()
            looks -= size
            if looks <= 0:
                return

    def _is_expiry(self, time: float, leaf_id: int) -> bool:
        return self.expiry.get(leaf_id) == time
