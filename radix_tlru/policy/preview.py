"""What an order would evict next, and why: chosen in a small order of its own, so that a look changes nothing.

A look takes as long as some decisions, whatever the size of the order: few leaves are judged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge, nsmallest
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

from radix_tlru.policy.buckets import Bucket
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, TokenPrice, Victim

__all__ = ["PreviewedVictim", "preview"]

_ALL = 1 << 60  # tokens, more than any leaf has; and an id that no leaf has

_JUDGED = 6
"""Leaves of each kind that are judged: first by their prices, with an expired group, without a price. If there are few
of the first two, more of the last: in an order of 18 all are judged."""

_LOOKS = 32
"""Entries that the first by their prices are looked for in, and as many for expired groups. The others are old."""


class PreviewedVictim(NamedTuple):
    """A victim to come, and what a token of it costs: why it comes before the others."""

    victim: Victim
    price: TokenPrice


def preview(orders: Sequence[EvictionOrder], count: int) -> list[PreviewedVictim]:
    """The next ``count`` victims of these orders, one order after the other, if nothing is used meanwhile.

    Each victim gives all that costs the same. What stays of a leaf may be a victim again, under the id of the leaf. A
    node that becomes a leaf once all below it is gone is not seen. The leaves that are judged, are by the policy in
    force as of now. One that is not among them may be cheaper: of those that wait for a new price there may be many.
    """
    found: list[PreviewedVictim] = []
    for order in orders:
        if len(found) < count:
            found += _preview(order, count - len(found))
    return found


def _preview(order: EvictionOrder, count: int) -> list[PreviewedVictim]:
    returns = copy.copy(order.policy.returns)  # it may keep what it finds
    newest = islice(reversed(order._pending), 1)  # of those without a price, which tells the time
    now = max([order._now, *(returns.stamp(order._leaf(leaf_id)) for leaf_id in newest)])
    leaves = _candidates(order, count, now)  # by id; later also what stays of a victim, under an id of its own
    now = max([now, *map(returns.stamp, leaves.values())])
    origin = dict(zip(leaves, leaves, strict=True))  # of each: the leaf that it is of
    ahead = EvictionOrder(replace(order.policy, returns=returns), order._page_size, leaves.get)
    ahead.advance_clock(now)
    for leaf_id in leaves:
        ahead.add_leaf(leaf_id)
    found: list[PreviewedVictim] = []
    while len(found) < count and (victim := ahead.choose_victim(_ALL)) is not None:
        price = ahead.price_of(victim)
        found.append(PreviewedVictim(victim._replace(leaf_id=origin[victim.leaf_id]), price))
        ahead.remove_leaf(victim.leaf_id)
        leaf = leaves.pop(victim.leaf_id)
        if victim.keep > leaf.start:
            front_id = _ALL + len(found)  # greater than all there are, as the ids of a cache are for what is new
            origin[front_id], leaves[front_id] = origin[victim.leaf_id], leaf._replace(end=victim.keep)
            ahead.add_leaf(front_id)
    return found


def _candidates(order: EvictionOrder, count: int, now: float) -> dict[int, Leaf]:
    """Leaves, by id, among which the next ``count`` victims are looked for: few, whatever the size of the order."""
    most = max(count, _JUDGED)
    judged = dict.fromkeys(islice(_first_leaves(order, most, now), most))
    if order._timed_by == order.policy.returns:  # otherwise expiries are in the time of another model
        judged |= dict.fromkeys(islice(order._entries.expired(now, _LOOKS), most))
    judged |= dict.fromkeys(islice(order._pending, 3 * most - len(judged)))
    return {leaf_id: order._leaf(leaf_id) for leaf_id in judged}


def _first_leaves(order: EvictionOrder, most: int, now: float) -> Iterator[int]:
    """Leaves, the cheapest by their prices at ``now`` first; those whose prices cannot be compared come last."""
    comparable = [bucket for bucket in order._pricings.comparable_buckets() if bucket.first is not None]
    cheapest = nsmallest(most, comparable, key=lambda bucket: bucket.price(now))
    compared = {bucket.pricing.number for bucket in comparable}
    others = (bucket for bucket in order._pricings.buckets() if bucket.pricing.number not in compared)
    entries = chain(
        merge(*(_costs(bucket, now) for bucket in cheapest), key=itemgetter(0)),
        chain.from_iterable(_costs(bucket, bucket.pricing.until) for bucket in others),
    )
    for _, bucket, key, leaf_id in islice(entries, _LOOKS):
        if order._entries.is_current(bucket, key, leaf_id):
            yield leaf_id


def _costs(bucket: Bucket, now: float) -> Iterator[tuple[tuple[float, float], Bucket, float, int]]:
    """The entries of a bucket: what a token of each costs with what decides among equals, its key, its leaf."""
    returns, level_cost = bucket.pricing.policy.returns, bucket.pricing.level_costs[bucket.level]
    for key, leaf_id in bucket.in_order():
        rate = returns.rate(bucket.group, key, now)
        yield (rate * level_cost, rate), bucket, key, leaf_id
