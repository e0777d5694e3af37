"""What the same stream would have cost under other policies: small caches of sampled conversations, without KV.

A shadow serves one conversation in so many, and what it holds of each counts for as many. Conversations are lines that
begin with what they share with others: what the first turn found cached, which they hold together. That makes a turn
cost some microseconds, and the figures comparable with each other, not quite with the cache that they shadow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from radix_tlru.learning.conversations import Conversation, Turn
from radix_tlru.objective.threshold import UncachedQuantile
from radix_tlru.policy.models import Leaf, Policy
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.tel import excess

__all__ = ["Shadow", "Shadows"]

_HALF_LIFE = 2_000  # sampled turns after which what a turn cost counts half
_LATELY = 1_024  # turns: what the p95 was of late, beside that of a UncachedQuantile's 4,096
_RESERVE = (0.02, 2.0)  # share of the turns that are late under the bar, and turns, that another must be ahead by
_AT_FIRST = (4.0, 2_048)  # turns, besides, while the p95 is little known: fewer with each turn, none after so many


class _Front:
    """What a shadow holds of a shared prefix: ``end`` tokens, which the ``lines`` behind it hold together."""

    __slots__ = ("end", "history", "leaf_id", "lines", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.end = self.history = self.lines = 0
        self.leaf_id = 0  # in the order, while no line is behind it


class Shadow:
    """A cache of lines under one policy; lengths in tokens, whole pages.

    Args:
        capacity: of the cache that is shadowed.
        one_in: conversations that each line stands for; what they share they share with all of those.
    """

    def __init__(self, policy: Policy, capacity: int, page_size: int, one_in: int = 1) -> None:
        self._leaves: dict[int, Leaf] = {}  # by id in the order
        self.order = EvictionOrder(policy, page_size, self._leaves.get)
        self.capacity, self._resident, self._one_in = capacity, 0, one_in
        self._ids: dict[int, int] = {}  # by conversation, of those that have a leaf
        self._fronts: dict[int, _Front] = {}  # by number of the prefix
        self._bare: dict[int, _Front] = {}  # by id in the order, those that no line is behind
        self._last_id = 0
        self._served = 0

    def request(self, conversation: Conversation, turn: Turn) -> int:
        """Serve a turn; returns the tokens of its prompt that were cached."""
        self._served += 1
        start = held = conversation.shared
        leaf_id, front = self._ids.pop(conversation.number, 0), None
        if leaf_id:
            leaf = self._withdraw(leaf_id)
            held = min(leaf.end, leaf.known.reach)
            self._resident -= (leaf.end - held) * self._one_in  # what was thought goes with it
        elif conversation.prefix is not None and start:
            front = self._taken_up(conversation.prefix.number)
            held = min(front.end, start)
        context = max(min(turn.context, start + self.capacity // self._one_in), start, held)
        room = max(start - held, 0) + (context - max(start, held)) * self._one_in
        self._make_room(room)
        self._resident += room
        if front is not None:
            front.end = max(front.end, start)
        leaf = Leaf(start, context, max(turn.context, context), float(self._served), conversation)
        if context > start:
            self._ids[conversation.number] = self._offer(leaf)
        else:
            self._line_gone(leaf)
        return min(held, turn.prompt)

    @contextmanager
    def put_down(self, conversation: Conversation) -> Iterator[None]:
        """What is believed of the conversation changes: the order does not know of it meanwhile."""
        leaf_id = self._ids.get(conversation.number, 0)
        leaf = self._withdraw(leaf_id) if leaf_id else None
        yield
        if leaf is not None:
            self._ids[conversation.number] = self._offer(leaf)

    def _taken_up(self, number: int) -> _Front:
        """The front of a prefix, which another line begins with."""
        front = self._fronts.get(number)
        if front is None:
            front = self._fronts[number] = _Front(number)
        elif not front.lines:
            self._withdraw(front.leaf_id)
            del self._bare[front.leaf_id]
        front.lines += 1
        return front

    def _offer(self, leaf: Leaf) -> int:
        self._last_id += 1
        self._leaves[self._last_id] = leaf
        self.order.add(self._last_id)
        return self._last_id

    def _withdraw(self, leaf_id: int) -> Leaf:
        self.order.discard(leaf_id)
        return self._leaves.pop(leaf_id)

    def _make_room(self, tokens: int) -> None:
        missing = self._resident + tokens - self.capacity
        if missing <= 0:
            return
        aim = self._resident - max(missing, self.order.policy.trim_chunk * self._one_in)
        while self._resident > aim:
            victim = self.order.victim(-((aim - self._resident) // self._one_in))
            if victim is None:
                return
            self._evict(victim.leaf_id, victim.keep)

    def _evict(self, leaf_id: int, keep: int) -> None:
        leaf, front = self._withdraw(leaf_id), self._bare.pop(leaf_id, None)
        if front is not None:
            self._resident -= leaf.end - keep
            front.end = keep
            self._offer_front(front, leaf)
            return
        self._resident -= (leaf.end - keep) * self._one_in
        if keep > leaf.start:
            shorter = Leaf(leaf.start, keep, *leaf[2:])  # _replace takes twice as long
            self._ids[leaf.known.number] = self._offer(shorter)
        else:
            del self._ids[leaf.known.number]
            self._line_gone(leaf)

    def _line_gone(self, leaf: Leaf) -> None:
        """Nothing is left of a line but what it shares."""
        conversation: Conversation = leaf.known
        if conversation.prefix is None or not conversation.shared:
            return
        front = self._fronts[conversation.prefix.number]
        front.lines -= 1
        front.history = max(front.history, leaf.history)
        if not front.lines:
            self._offer_front(front, leaf)

    def _offer_front(self, front: _Front, last: Leaf) -> None:
        """No line is behind it any more: it can be evicted, and was used when the last one was."""
        if front.end:
            front.leaf_id = self._offer(last._replace(start=0, end=front.end, history=max(front.history, front.end)))
            self._bare[front.leaf_id] = front
        else:
            del self._fronts[front.number]


class Shadows:
    """The policies that could be in force, each with its shadow, and which of them has the least TEL lately.

    Args:
        policies: all that are compared.
        capacity: tokens of the cache that is shadowed.
        one_in: conversations for each that is sampled.
        rivals: indices of those to prefer one of (None: all); the first is preferred until another did better.
        bar: index of the policy whose p95 the others are held to, if any is.
        chance: standard deviations by which one must have been better to take the place of one that stands before it,
            and of one that stands behind it.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        capacity: int,
        page_size: int,
        one_in: int,
        rivals: Sequence[int] | None = None,
        bar: int | None = None,
        chance: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.one_in = one_in
        """Conversations for each that is sampled."""
        size = capacity // page_size * page_size
        self._shadows = [Shadow(self._scaled(policy), size, page_size, one_in) for policy in policies]
        self.rivals: Sequence[int] = range(len(policies)) if rivals is None else rivals
        self._bar = bar or 0
        self._chance = chance
        self.quantiles = [UncachedQuantile(95.0) for _ in policies if bar is not None]
        """Of what each policy left to prefill of late."""
        self._bars = [UncachedQuantile(95.0, _LATELY), self.quantiles[bar]] if bar is not None else []
        self.late = [[0.0] * len(policies) for _ in self._bars]
        """Turns that took each beyond the p95 of the bar, as that was of late and for longer; decayed like the TEL."""
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
        if self._bars:
            self._count_late(uncached)
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

    @contextmanager
    def put_down(self, conversation: Conversation) -> Iterator[None]:
        """What is believed of the conversation changes between two of its turns."""
        with ExitStack() as orders:
            if conversation.number % self.one_in == 0:
                for shadow in self._shadows:
                    orders.enter_context(shadow.put_down(conversation))
            yield

    def ahead(self, index: int) -> float:
        """Turns by which fewer were late under a policy than under the bar, beyond the reserve; by either p95."""
        (share, turns), (more, known) = _RESERVE, _AT_FIRST
        turns += more * max(1.0 - self.sampled / known, 0.0)
        return min((1.0 - share) * late[self._bar] - turns - late[index] for late in self.late)

    def behind(self, index: int) -> float:
        """Turns by which more were late under a policy than under the bar, by either p95; 0: not more."""
        return max(0.0, *(late[index] - late[self._bar] for late in self.late))

    def _count_late(self, uncached: Sequence[int]) -> None:
        """Who would have been late in this turn: the p95 of one is above that of another if more of its turns are."""
        decay = 0.5 ** (1 / _HALF_LIFE)
        for quantile, late in zip(self._bars, self.late, strict=True):
            p95 = quantile.value()
            if p95 is not None:
                late[:] = [turns * decay + (tokens > p95) for turns, tokens in zip(late, uncached, strict=True)]
        self._bars[0].add(uncached[self._bar])
        for quantile, tokens in zip(self.quantiles, uncached, strict=True):
            quantile.add(tokens)

    def _scaled(self, policy: Policy) -> Policy:
        """The policy with a trim chunk that is as large a share of a shadow as it is of the cache."""
        return replace(policy, trim_chunk=max(policy.trim_chunk // self.one_in, 1))

    def _compare(self) -> None:
        """Prefer another policy if it was better by more than chance."""
        least = min(self.rivals, key=self.tel.__getitem__)
        lead = self.tel[self.best] - self.tel[least]
        if lead > self._chance[least < self.best] * math.sqrt(self._squares[self.best][least]):
            self.best = least
