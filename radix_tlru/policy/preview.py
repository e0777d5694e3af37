"""What an order would evict next, and why: chosen in a copy, so that a look changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from radix_tlru.policy.models import Leaf
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
    node that becomes a leaf once all below it is gone is not seen. The copies take some ns an entry.
    """
    found: list[PreviewedVictim] = []
    for order in orders:
        if len(found) < count:
            found += _preview(order, count - len(found))
    return found


def _preview(order: EvictionOrder, count: int) -> list[PreviewedVictim]:
    ahead = _copy(order)
    fronts: dict[int, Leaf] = {}  # what stays of a victim, under an id of its own
    origin: dict[int, int] = {}  # of such an id: the leaf that it is of
    evicted: set[int] = set()
    leaf_of = order._leaf_of
    ahead._leaf_of = lambda leaf_id: None if leaf_id in evicted else fronts.get(leaf_id) or leaf_of(leaf_id)
    found: list[PreviewedVictim] = []
    while len(found) < count and (victim := ahead.choose_victim(_ALL)) is not None:
        leaf_id, leaf, keep, _ = victim
        group, level = ahead._returns.group(leaf, ahead._now), ahead.price_level(leaf)
        rate = ahead._returns.rate(group.number, ahead._returns.key(leaf), ahead._now)
        named = victim._replace(leaf_id=origin.get(leaf_id, leaf_id))
        found.append(PreviewedVictim(named, rate, ahead._probabilities[level], rate * ahead._level_costs[level]))
        evicted.add(leaf_id)
        if keep > leaf.start:
            front_id = _ALL + len(found)  # greater than all there are, as the ids of a cache are for what is new
            origin[front_id], fronts[front_id] = named.leaf_id, leaf._replace(end=keep)
            ahead.push(front_id, fronts[front_id], ahead.price_level(fronts[front_id]))
    return found


def _copy(order: EvictionOrder) -> EvictionOrder:
    """The same order with containers of its own, and a return model of its own, which may count what it is asked."""
    ahead = copy.copy(order)
    for name, value in vars(order).items():
        if isinstance(value, list | dict | set):
            setattr(ahead, name, value.copy())
    ahead._buckets = {bucket: queue.copy() for bucket, queue in order._buckets.items()}
    ahead._returns = copy.copy(order._returns)
    ahead._policy = replace(order._policy, returns=ahead._returns)
    return ahead
