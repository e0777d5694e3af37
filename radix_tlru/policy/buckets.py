"""Buckets of leaves that cost the same, or whose order is that of their keys; and what prices them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from radix_tlru.policy.models import Group, Leaf
from radix_tlru.policy.monotone_queue import MonotoneQueue
from radix_tlru.policy.policy import Policy

__all__ = ["Bucket", "Price", "Pricing"]


class Price(NamedTuple):
    """What a token of a bucket costs. Of two that cost the same, the one that returns later goes first."""

    cost: float
    rate: float  # λ, in 1 / (unit of the return model's time)
    pricing: int  # its number; then group and level, so that prices of two buckets never are equal
    group: int
    level: int
    bucket: Bucket


class Bucket(MonotoneQueue):
    """Leaves of one group and one price level, the least key first."""

    __slots__ = ("group", "is_priced", "level", "pricing")

    def __init__(self, pricing: Pricing, group: int, level: int) -> None:
        super().__init__()
        self.pricing, self.group, self.level = pricing, group, level
        self.is_priced = False  # whether the order's heap of prices has it

    def rate(self, now: float) -> float:
        """λ of the first leaf at time ``now``; of any leaf, if rates are timeless."""
        return self.pricing.policy.returns.rate(self.group, self.first[0] if self.first else 0.0, now)

    def cost(self, now: float) -> float:
        """What a token of the first leaf costs; of any leaf, if rates are timeless."""
        return self.rate(now) * self.pricing.level_costs[self.level]

    def price(self, now: float) -> Price:
        """The cost with what decides among equals."""
        pricing, rate = self.pricing, self.rate(now)
        return Price(rate * pricing.level_costs[self.level], rate, pricing.number, self.group, self.level, self)


class Pricing:
    """A policy, and the buckets of the leaves that are priced by it."""

    __slots__ = (
        "buckets",
        "first_level",
        "last_free",
        "lasting_group",
        "level_costs",
        "level_end",
        "levels",
        "number",
        "policy",
        "until",
    )

    def __init__(self, policy: Policy, number: int) -> None:
        self.policy, self.number = policy, number
        self.until = 0.0  # the newest use when another policy came, in the time of the return model; 0: none has
        self.level_costs = policy.level_costs
        self.levels = len(self.level_costs)
        self.level_end = policy.prompts.next_prompt
        self.lasting_group: Callable[[Leaf, float, float], Group] | None
        self.lasting_group = getattr(policy.returns, "lasting_group", None)
        self.first_level: Callable[[Leaf, int], int] | None = getattr(policy.prompts, "first_level", None)
        self.last_free = policy.prompts.probabilities.count(0.0) - 1  # the last level free at the tail; -1: none
        self.buckets: dict[tuple[int, int], Bucket] = {}  # by group and level

    def bucket(self, group: int, level: int) -> Bucket:
        """The bucket of a group and a price level, new if need be."""
        bucket = self.buckets.get((group, level))
        if bucket is None:
            bucket = self.buckets[group, level] = Bucket(self, group, level)
        return bucket

    def cheapest_last(self) -> list[Bucket]:
        """The buckets that hold leaves, in the order of their prices when another policy came."""
        held = (each for each in self.buckets.values() if each.first)
        return sorted(held, key=lambda each: each.price(self.until), reverse=True)

    def group_of(self, leaf: Leaf, now: float, level: int, least_cost: float) -> Group:
        """The group of a leaf at ``now``; one that lasts, while a token of it costs ``least_cost``."""
        if self.lasting_group is None or least_cost == math.inf:
            return self.policy.returns.group(leaf, now)
        level_cost = self.level_costs[level]
        return self.lasting_group(leaf, now, least_cost / level_cost if level_cost else 0.0)

    def level_of(self, leaf: Leaf, page_size: int) -> int:
        """The level of the leaf's last page, or of the middle token of what becomes unusable without the leaf."""
        if self.levels == 1:
            return 0
        depth = leaf.end - page_size
        if leaf.usable_without is not None:
            depth = leaf.usable_without + max(leaf.end - leaf.usable_without, 0) // 2
            depth = depth // page_size * page_size
        # A level reaches from the tail to ⌈(L + Q - ξ)⁺⌉ whole pages. This page is in it if Q ≤ ξ - L + its depth.
        largest_prompt = self.policy.threshold - leaf.history + depth
        if self.first_level is not None:
            return self.first_level(leaf, largest_prompt)
        for level in range(self.levels):
            tokens = self.level_end(leaf, level)
            if tokens is None or tokens <= largest_prompt:
                return level
        raise AssertionError(f"the last level of a prompt model must end at the root, above {leaf}")

    def tel_safe_tokens(self, leaf: Leaf, page_size: int) -> int:
        """Tokens of the leaf's path that cost nothing at the tail; its own tokens, if it is evicted whole."""
        if self.last_free < 0:
            return 0
        if leaf.usable_without is not None:
            return leaf.end - leaf.start if self.level_of(leaf, page_size) <= self.last_free else 0
        return max(leaf.end - self.policy.keep(leaf, self.last_free, page_size), 0)
