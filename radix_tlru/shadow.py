"""What the same stream would have cost under other policies: small caches of sampled conversations, without KV.

A shadow serves one conversation in so many with a cache that is smaller by as much. Conversations are lines: what the
first turn found cached is taken to be shared, always there and nobody's. That makes a turn cost some microseconds, and
the figures comparable with each other, not with the cache that they shadow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from radix_tlru.calibration import UncachedQuantile
from radix_tlru.learned import Conversation, Turn
from radix_tlru.models import Leaf, Policy
from radix_tlru.order import EvictionOrder
from radix_tlru.tel import excess

__all__ = ["Shadow", "Shadows"]

_HALF_LIFE = 2_000  # sampled turns after which what a turn cost counts half
_CONFIDENCE = 1.0  # standard deviations by which another policy must have been better to take the place of one


class Shadow:
    """A cache of lines under one policy; lengths in tokens, whole pages."""

    def __init__(self, policy: Policy, capacity: int, page_size: int) -> None:
        self.order = EvictionOrder(policy, page_size, self._leaf_of)
        self.capacity, self._resident = capacity, 0
        self._leaves: dict[int, Leaf] = {}  # by id in the order
        self._ids: dict[int, int] = {}  # by conversation, of those that have a leaf
        self._last_id = 0
        self._served = 0

    def request(self, conversation: Conversation, turn: Turn) -> int:
        """Serve a turn; returns the tokens of its prompt that were cached."""
        leaf_id = self._ids.pop(conversation.number, 0)
        start, held = conversation.shared, conversation.shared
        if leaf_id:
            leaf = self._withdraw(leaf_id)
            start, held = leaf.start, leaf.end
        context = max(min(turn.context, start + self.capacity), held)
        self._make_room(context - held)
        self._resident += context - held
        if context > start:
            self._served += 1
            self._offer(Leaf(start, context, max(turn.context, context), float(self._served), conversation))
        return min(held, turn.prompt)

    def _offer(self, leaf: Leaf) -> None:
        self._last_id += 1
        self._leaves[self._last_id] = leaf
        self._ids[leaf.known.number] = self._last_id
        self.order.add(self._last_id)

    def _withdraw(self, leaf_id: int) -> Leaf:
        self.order.discard(leaf_id)
        return self._leaves.pop(leaf_id)

    def _leaf_of(self, leaf_id: int) -> Leaf | None:
        return self._leaves.get(leaf_id)

    def _make_room(self, tokens: int) -> None:
        missing = self._resident + tokens - self.capacity
        if missing <= 0:
            return
        aim = self._resident - max(missing, self.order.policy.trim_chunk)
        while self._resident > aim:
            victim = self.order.victim(self._resident - aim)
            if victim is None:
                return
            leaf = self._withdraw(victim.leaf_id)
            self._resident -= leaf.end - victim.keep
            if victim.keep > leaf.start:
                self._offer(leaf._replace(end=victim.keep))
            else:
                del self._ids[leaf.known.number]


class Shadows:
    """The policies that could be in force, each with its shadow, and which of them has the least TEL lately.

    Args:
        policies: all that are compared.
        capacity: tokens of the cache that is shadowed.
        one_in: conversations for each that is sampled.
        rivals: indices of those to prefer one of (None: all); the first is preferred until another did better.
        bar: index of the policy whose p95 the others are held to, if any is.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        capacity: int,
        page_size: int,
        one_in: int,
        rivals: Sequence[int] | None = None,
        bar: int | None = None,
    ) -> None:
        self.one_in = one_in
        """Conversations for each that is sampled."""
        size = capacity // one_in // page_size * page_size
        self._shadows = [Shadow(self._scaled(policy), size, page_size) for policy in policies]
        self.rivals: Sequence[int] = range(len(policies)) if rivals is None else rivals
        self._bar = bar
        self.quantiles = [UncachedQuantile(95.0) for _ in policies if bar is not None]
        """Of what each policy left to prefill of late."""
        self.late = [0.0] * len(policies)
        """Turns that took each beyond the p95 of the bar, decayed like the TEL."""
        self.tel = [0.0] * len(policies)
        """Tail excess latency of each lately, in tokens, decayed."""
        self._squares = [[0.0] * len(policies) for _ in policies]  # of the differences between two, decayed likewise
        self.best = self.rivals[0]
        """Index of the policy to be preferred."""
        self.sampled = 0
        """Turns that the shadows have served."""
        self.excess = [0] * len(policies)
        """What these cost each policy: its tail excess latency since the start, in tokens."""
        self._last = 0  # of the sampled turns, that exceeded the threshold anywhere

    def observe(self, conversation: Conversation, turn: Turn) -> None:
        """A turn was served."""
        if conversation.number % self.one_in:
            return
        self.sampled += 1
        uncached = [turn.prompt - shadow.request(conversation, turn) for shadow in self._shadows]
        if self._bar is not None:
            self._count_late(uncached, self.quantiles[self._bar].value())
            for quantile, tokens in zip(self.quantiles, uncached, strict=True):
                quantile.add(tokens)
        missed = [
            excess(tokens, shadow.order.policy.threshold)
            for tokens, shadow in zip(uncached, self._shadows, strict=True)
        ]
        if not any(missed):
            return
        self.excess = [excess + tokens for excess, tokens in zip(self.excess, missed, strict=True)]
        decay = 0.5 ** ((self.sampled - self._last) / _HALF_LIFE)
        self._last = self.sampled
        self.tel = [tel * decay + tokens for tel, tokens in zip(self.tel, missed, strict=True)]
        for ours, row in zip(missed, self._squares, strict=True):
            for index, theirs in enumerate(missed):
                row[index] = row[index] * decay + (ours - theirs) ** 2
        self._compare()

    def use(self, index: int, policy: Policy) -> None:
        """Put another version of a policy in the place of that one."""
        self._shadows[index].order.use(self._scaled(policy))

    def _count_late(self, uncached: Sequence[int], p95: int | None) -> None:
        """Who would have been late in this turn: the p95 of one is above that of another if more of its turns are."""
        if p95 is not None:
            decay = 0.5 ** (1 / _HALF_LIFE)
            self.late = [late * decay + (tokens > p95) for late, tokens in zip(self.late, uncached, strict=True)]

    def _scaled(self, policy: Policy) -> Policy:
        """The policy with a trim chunk that is as large a share of a shadow as it is of the cache."""
        return replace(policy, trim_chunk=max(policy.trim_chunk // self.one_in, 1))

    def _compare(self) -> None:
        """Prefer another policy if it was better by more than chance."""
        least = min(self.rivals, key=self.tel.__getitem__)
        lead = self.tel[self.best] - self.tel[least]
        if lead > _CONFIDENCE * math.sqrt(self._squares[self.best][least]):
            self.best = least
