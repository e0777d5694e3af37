"""What an order would evict next, and why: chosen in a small order of its own, so that a look changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from radix_tlru.policy.buckets import Bucket
from radix_tlru.policy.models import Leaf, ReturnModel
from radix_tlru.policy.order import EvictionOrder, Victim

__all__ = ["PreviewedVictim", "preview"]

_ALL = 1 << 60  # tokens, more than any leaf has; and an id that no leaf has


class PreviewedVictim(NamedTuple):
    """A victim to come, and what a token of it costs: why it comes before the others."""

    victim: Victim
    return_rate: float  # λ, in 1 / (unit of the return model's time)
    exceed_probability: float  # P(Q > ξ - (L - X))
    cost: float  # marginal_cost of the two


def preview(orders: Sequence[EvictionOrder], count: int) -> list[PreviewedVictim]:
    """The next ``count`` victims of these orders, one order after the other, if nothing is used meanwhile.

    Each victim gives all that costs the same. What stays of a leaf may be a victim again, under the id of the leaf. A
    node that becomes a leaf once all below it is gone is not seen. Leaves that wait for new prices, after a change of
    policy or as their group has expired, are judged by the policy in force as of now.
    """
    found: list[PreviewedVictim] = []
    for order in orders:
        if len(found) < count:
            found += _preview(order, count - len(found))
    return found


def _preview(order: EvictionOrder, count: int) -> list[PreviewedVictim]:
    returns = copy.copy(order.policy.returns)  # it may keep what it finds
    now = max([order._now, *(returns.stamp(order._leaf(leaf_id)) for leaf_id in order._pending)])
    leaves = _candidates(order, count, returns, now)  # by id; later also what stays of a victim, under an id of its own
    origin = dict(zip(leaves, leaves, strict=True))  # of each: the leaf that it is of
    ahead = EvictionOrder(replace(order.policy, returns=returns), order._page_size, leaves.get)
    ahead.advance_clock(now)
    for leaf_id in leaves:
        ahead.add_leaf(leaf_id)
    found: list[PreviewedVictim] = []
    while len(found) < count and (victim := ahead.choose_victim(_ALL)) is not None:
        bucket = ahead._entries.bucket[victim.leaf_id]
        cost, rate, *_ = bucket.price(ahead._now)
        exceed = order.policy.prompts.probabilities[bucket.level]
        found.append(PreviewedVictim(victim._replace(leaf_id=origin[victim.leaf_id]), rate, exceed, cost))
        ahead.remove_leaf(victim.leaf_id)
        leaf = leaves.pop(victim.leaf_id)
        if victim.keep > leaf.start:
            front_id = _ALL + len(found)  # greater than all there are, as the ids of a cache are for what is new
            origin[front_id], leaves[front_id] = origin[victim.leaf_id], leaf._replace(end=victim.keep)
            ahead.add_leaf(front_id)
    return found


def _candidates(order: EvictionOrder, count: int, returns: ReturnModel, now: float) -> dict[int, Leaf]:
    """Leaves, by id, among which the next ``count`` victims are at ``now``: few, whatever the size of the order."""
    found = {leaf_id: order._leaf(leaf_id) for leaf_id in (*order._pending, *order._entries.expired(now))}
    left = count
    for bucket in sorted(_buckets(order), key=lambda bucket: bucket.price(now)):
        certain = 0  # leaves that cost what the bucket does
        for key, leaf_id, leaf in _leaves_in(order, bucket):
            found[leaf_id] = leaf
            if returns.key(leaf) == key and returns.group(leaf, now).number == bucket.group:
                certain += 1
                if certain == count:
                    break
        left -= certain
        if returns.timeless and left <= 0:  # every other leaf costs more
            break
    return found


def _buckets(order: EvictionOrder) -> Iterator[Bucket]:
    for pricing in order._pricings:
        yield from (bucket for bucket in pricing.buckets.values() if bucket.first is not None)


def _leaves_in(order: EvictionOrder, bucket: Bucket) -> Iterator[tuple[float, int, Leaf]]:
    """The leaves of a bucket, each with its key when it was priced and its id, the least key first."""
    seen: set[int] = set()
    for key, leaf_id in bucket.in_order():
        if order._entries.is_current(bucket, key, leaf_id) and leaf_id not in seen:
            seen.add(leaf_id)
            yield key, leaf_id, order._leaf(leaf_id)
