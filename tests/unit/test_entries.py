"""Old entries: how few of them a leaf that is added, or a decision, looks at."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count, takewhile
from random import Random

import pytest

from radix_tlru.policy.buckets import Bucket, Pricing
from radix_tlru.policy.entries import Entries
from radix_tlru.policy.models import AnyPrompt, Recency
from radix_tlru.policy.monotone_queue import MonotoneQueue
from radix_tlru.policy.policy import Policy


def entries_in(buckets: list[Bucket]) -> Entries:
    return Entries(lambda: buckets)


def new_buckets(number: int) -> list[Bucket]:
    pricing = Pricing(Policy(Recency(), AnyPrompt(), threshold=1_000, median_weight=1.0), 0)
    return [pricing.bucket(group, 0) for group in range(number)]


def test_a_look_at_expiries_ends_after_so_many_entries_though_all_are_old() -> None:
    (bucket,) = new_buckets(1)
    entries = entries_in([bucket])
    for leaf_id in range(100):
        entries.add(leaf_id, bucket, float(leaf_id), expiry=float(leaf_id), safe_tokens=0)
        if leaf_id < 90:
            entries.forget(leaf_id)
    before = len(entries)
    assert list(entries.expired(math.inf, 60)) == []
    assert list(entries.pop_expired(math.inf, 60)) == []
    assert len(entries) == before - 60
    assert list(entries.pop_expired(95.0, 60)) == [90, 91, 92, 93, 94, 95]
    assert list(entries.pop_expired(95.0, 60)) == []
    assert list(entries.expired(math.inf, 60)) == [96, 97, 98, 99]


def test_an_added_leaf_pays_for_few_entries_of_a_sweep_however_many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    sweep = MonotoneQueue.sweep

    def watched(queue: MonotoneQueue, most: int, counts: Callable[[float, int], bool]) -> int:
        return sweep(queue, most, lambda key, leaf_id: looked.append(leaf_id) or counts(key, leaf_id))

    monkeypatch.setattr(MonotoneQueue, "sweep", watched)
    buckets, random, counts = new_buckets(300), Random(0), list[int]()
    entries = entries_in(buckets)
    leaves: list[int] = []
    for leaf_id in count():
        looked.clear()
        entries.add(leaf_id, random.choice(buckets), float(leaf_id), expiry=leaf_id + 50.0, safe_tokens=0)
        counts.append(len(looked))
        leaves.append(leaf_id)
        if len(leaves) > 1_000:
            entries.forget(leaves.pop(random.randrange(len(leaves))))
        if leaf_id == 20_000:
            break
    assert sum(counts) > 0
    assert all(sum(counts[first : first + 8]) <= 8 * 4 for first in range(len(counts))), "four for each leaf"
    assert len(entries) < 3 * 2 * len(leaves), "sweeps keep up"
    assert sorted(entries.bucket) == sorted(leaves)
    assert all(entries.is_current(entries.bucket[leaf_id], entries.key[leaf_id], leaf_id) for leaf_id in leaves)


def test_a_turn_drops_few_stale_entries_and_leaves_few_to_the_next_decision() -> None:
    buckets, random = new_buckets(20), Random(0)
    entries = entries_in(buckets)
    leaves: dict[int, Bucket] = {}
    for turn in range(2_000):  # three leaves come, three of the oldest go, as if they were used
        for leaf_id in range(3 * turn, 3 * turn + 3):
            leaves[leaf_id] = random.choice(buckets)
            entries.add(leaf_id, leaves[leaf_id], float(leaf_id), expiry=math.inf, safe_tokens=0)
            if len(leaves) > 1_000:
                oldest = next(iter(leaves))
                del leaves[oldest]
                entries.forget(oldest)
        before = len(entries)
        entries.drop_first_old()
        assert before - len(entries) <= 4 * 32
        for bucket in buckets:
            in_front = takewhile(lambda entry, bucket=bucket: not entries.is_current(bucket, *entry), bucket.in_order())
            assert len(list(in_front)) <= 3 * 20 // 4, "of the turns since it was looked at"
    assert sorted(entries.bucket) == sorted(leaves)
