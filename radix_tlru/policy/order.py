"""The persistent index of evictable leaves: which one gives up its tail next, and how much of it stays.

Knows nothing of SGLang. A cache tells it when a leaf appears (:meth:`EvictionOrder.add`) or vanishes
(:meth:`EvictionOrder.discard`) and asks it under pressure (:meth:`EvictionOrder.victim`); the live server and the
simulator ask the same object.

Nothing is rebuilt for an eviction. Leaves whose order does not change as time goes by share a queue, their *cell*: one
for each step of the prompt model (T-LRU: TEL-safe and protected) and each group of the return model (one for T-LRU;
kinds of conversations and bands of ages where rates are learned). A decision looks at the head of the cheapest cell; a
leaf that grows into a group of less worth is moved then and there. Entries are lazy: a leaf that was used, trimmed,
locked or evicted since, or is worth more by now, leaves an old entry behind, which is put right or dropped when it
comes to the head. A decision is O(log cells + log leaves), amortised.

A leaf gives up its tail page by page, each at its own price, unless it says what rests of its path without it: then it
goes whole or not at all, at the mean price of the tokens that are lost with it: of their steps, to a quarter of one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

from radix_tlru.policy.models import Group, Leaf, Policy
from radix_tlru.policy.monotone_queue import RisingQueue
from radix_tlru.policy.tel import round_up
from radix_tlru.policy.victims import Upcoming, Victim

__all__ = ["EvictionOrder"]

# Stale entries are swept out when the cells hold this many more entries than twice the leaves; and so many leaves are
# noted at most before they get their entries.
_SLACK = 1024

_PARTS = 4  # of each step of the prompt model: where in it the mean price of a leaf may be that goes whole

_ALL = 1 << 60  # tokens, more than any leaf has; and an id that no leaf has
_NO_ENTRY = (math.inf, _ALL)


class EvictionOrder:
    """Evictable leaves, cheapest token first.

    Args:
        policy: the models that price a token.
        page_size: tokens in a page; leaves begin and end on page boundaries and are trimmed there.
        leaf_of: the leaf of that id as it is now, or None if it is not evictable (any more). Ids are never reused. What
            it says of a leaf's end, history, rest and next prompt must not change from :meth:`add` to :meth:`discard`;
            nor until it is added again, unless its key or its group changes, too.
    """

    def __init__(self, policy: Policy, page_size: int, leaf_of: Callable[[int], Leaf | None]) -> None:
        self._page_size = page_size
        self._leaf_of = leaf_of
        self._leaves = 0
        self._over_budget = 0  # of the leaves that have an entry
        self._noted: dict[int, None] = {}  # those that have none yet, in their order
        self._start(policy)

    def _start(self, policy: Policy) -> None:
        self._policy, self._returns = policy, policy.returns
        self._probabilities, self._shares = _in_parts(policy.probabilities), _in_parts(policy.shares)
        self._steps = len(self._shares)
        self._whole_steps = range(len(policy.shares))
        self._step_end = policy.step_end if policy.median else policy.prompts.next_prompt
        self._first_step = policy.first_step
        self._free = self._probabilities.count(0.0) - 1  # the last step that is free at the tail; -1: there is none
        self._now = 0.0  # in the time of the return model
        self._cells: dict[int, RisingQueue] = {}  # by group · steps + step
        self._entries = 0
        self._named = 0  # the cell of the last victim
        self._victim: tuple[int, Leaf] | None = None  # its id and the leaf
        self._prices: list[tuple[float, float, int]] = []  # heap of (cost, rate, cell), one of each cell that is listed
        self._listed: set[int] = set()  # every cell that is not empty, if the model is timeless
        self._version = policy.returns.version  # of the rates
        self._alarms: list[tuple[float, int]] = []  # heap of (time, cell): its first leaf is worth less then
        self._alarm: dict[int, float] = {}  # the one alarm of a cell that counts

    def __len__(self) -> int:
        """Evictable leaves."""
        return self._leaves

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._policy

    @property
    def over_budget(self) -> int:
        """Tokens that could go now at no cost to the tail; what paths share below it counts for each of them."""
        # Whoever asks, and that may be one rank of several, admits nobody: to be admitted moves the clock of the order.
        return self._over_budget + sum(self.tel_safe(self._leaf(leaf_id)) for leaf_id in self._noted)

    @property
    def entries(self) -> int:
        """Entries held, stale ones included."""
        return self._entries + len(self._alarms)

    def add(self, leaf_id: int) -> None:
        """A leaf became evictable."""
        self._leaves += 1
        self._noted[leaf_id] = None
        if len(self._noted) > _SLACK:
            self._admit()

    def discard(self, leaf_id: int) -> None:
        """A leaf that was added will not be evictable any more; to be told before it changes."""
        self._leaves -= 1
        if leaf_id in self._noted:  # most are used again before anything is evicted
            del self._noted[leaf_id]
            return
        if self._victim is None or self._victim[0] != leaf_id:
            self._over_budget -= self.tel_safe(self._leaf(leaf_id))
            return
        if self._named % self._steps <= self._free:
            self._over_budget -= self.tel_safe(self._victim[1])
        self._victim = None
        queue = self._cells[self._named]
        if queue.first is not None and queue.first[1] == leaf_id:
            queue.pop()
            self._entries -= 1

    def advance(self, now: float) -> float:
        """Something elsewhere was used at ``now``; returns the newest use that is known, of these leaves too."""
        self._admit()
        self._now = max(self._now, now)
        return self._now

    def use(self, policy: Policy) -> None:
        """Order the same leaves by ``policy``.

        This alone looks at all of them, and stale entries are gone after it, unless it is the weight w alone that is
        another: then the cells get other prices.
        """
        self._admit()
        before = self._policy
        if policy is not before and replace(policy, median_weight=before.median_weight) == before:  # the same cells
            self._policy, self._shares = policy, _in_parts(policy.shares)
            self._reprice()
            return
        entries = sorted(chain.from_iterable(self._cells.values()))
        self._start(policy)
        self._over_budget = 0
        for leaf_id in dict.fromkeys(leaf_id for _, leaf_id in entries):
            leaf = self._leaf_of(leaf_id)
            if leaf is not None:
                self._enter(leaf_id, leaf)

    def victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from, rounded up to the policy's trim chunk and to a page; None: no leaves.

        A leaf that goes whole is taken whole, however few tokens are asked for.

        Evicts nothing: the caller does, and tells by :meth:`discard` and :meth:`add` what became of the leaf. One
        victim may hold fewer tokens than asked for, as what follows in the same leaf may cost more; ask again.
        """
        self._admit()
        if self._version != self._returns.version:
            self._learn()
        if self._alarms and self._alarms[0][0] <= self._now:
            self._let_time_pass()
        found = self._cheapest_cell() if self._returns.timeless else self._cheapest_head()
        if found is None:
            return None
        cell, leaf_id, leaf = found
        self._named, self._victim, step = cell, (leaf_id, leaf), cell % self._steps
        keep = leaf.start
        if leaf.rest is None:
            page = self._page_size
            keep = max(
                keep,
                self._policy.keep(leaf, step // _PARTS, page),
                self._returns.floor(leaf) // page * page,
                leaf.end - round_up(max(tokens, self._policy.trim_chunk), page),
            )
        return Victim(leaf_id, leaf, keep, "lru" if step > self._free else "tel_safe")

    def upcoming(self, count: int) -> list[Upcoming]:
        """The next ``count`` victims if each gives all that costs the same and nothing is used meanwhile.

        To look at: they are chosen in a copy, which takes some ns an entry, and nothing is changed. What stays of a
        leaf may be a victim again, under the id of the leaf. What becomes a leaf once all below it is gone is not seen.
        """
        ahead = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict | set):
                setattr(ahead, name, value.copy())
        ahead._cells = {cell: queue.copy() for cell, queue in self._cells.items()}
        ahead._returns = copy.copy(self._returns)  # a model may count what it is asked
        ahead._policy = replace(self._policy, returns=ahead._returns)
        remainders: dict[int, Leaf] = {}
        origin: dict[int, int] = {}  # of a remainder: the leaf that it is of
        gone: set[int] = set()
        ahead._leaf_of = lambda leaf_id: None if leaf_id in gone else remainders.get(leaf_id) or self._leaf_of(leaf_id)
        found: list[Upcoming] = []
        while len(found) < count and (victim := ahead.victim(_ALL)) is not None:
            leaf_id, leaf, keep, _ = victim
            group, step = ahead._returns.group(leaf, ahead._now), ahead._step(leaf)
            rate = ahead._returns.rate(group.number, ahead._returns.key(leaf), ahead._now)
            exceed = ahead._probabilities[step]
            whole = victim._replace(leaf_id=origin.get(leaf_id, leaf_id))
            found.append(Upcoming(whole, rate, exceed, rate * ahead._shares[step]))
            gone.add(leaf_id)
            if keep > leaf.start:
                remainder = _ALL + len(found)  # as of a cache: later than all there are
                origin[remainder], remainders[remainder] = whole.leaf_id, leaf._replace(end=keep)
                ahead._push(remainder, remainders[remainder], ahead._step(remainders[remainder]))
        return found

    def _cheapest_cell(self) -> tuple[int, int, Leaf] | None:
        """Where all leaves of a cell cost the same: the cells are in a heap by their price."""
        while self._prices:
            cell = self._prices[0][2]
            if self._cells[cell].first is None:
                heappop(self._prices)
                self._listed.discard(cell)
                continue
            first = self._first(cell)
            if first is not None:  # or what was put right may be in a cheaper cell now
                return cell, *first
        return None

    def _cheapest_head(self) -> tuple[int, int, Leaf] | None:
        """Where the price of a leaf changes with time: the first entries of the cells, which are few, are compared.

        An entry that is stale is never dearer than what it stands for, as keys only grow, and what rests without a leaf
        only falls unless it is added anew. So it is enough to look whether the cheapest of them is what it was; the
        others wait.
        """
        rate_of, shares, steps, now = self._returns.rate, self._shares, self._steps, self._now
        while True:
            least, cheapest, found = math.inf, (math.inf, _NO_ENTRY), -1
            for cell, queue in self._cells.items():
                first = queue.first
                if first is None:
                    continue
                rate = rate_of(cell // steps, first[0], now)
                cost = rate * shares[cell % steps]
                # Of two that cost nothing, what is the less likely used.
                if cost < least or (cost == least and (rate, first) < cheapest):
                    least, cheapest, found = cost, (rate, first), cell
            if found < 0:
                return None
            leaf = self._first(found)
            if leaf is not None:
                return found, *leaf
            now = self._now

    def _price(self, cell: int) -> tuple[float, float, int]:
        rate = self._returns.rate(cell // self._steps, 0.0, self._now)
        return rate * self._shares[cell % self._steps], rate, cell

    def _step(self, leaf: Leaf) -> int:
        """Index, in parts of a step, of what the leaf's last token costs, or the mean token of one that goes whole."""
        if leaf.rest is None:
            return _PARTS * self._step_at(leaf, leaf.end - self._page_size)
        lost = max(leaf.end - leaf.rest, 0)
        middles = (leaf.rest + lost * middle // (2 * _PARTS) for middle in range(1, 2 * _PARTS, 2))
        return sum(self._step_at(leaf, depth // self._page_size * self._page_size) for depth in middles)

    def _step_at(self, leaf: Leaf, depth: int) -> int:
        """Index of the step that the page behind a depth of the leaf's path lies in, which stays down to there."""
        # What Q keeps, ⌈(L + Q - ξ)⁺⌉ in whole pages, is no more than that if and only if Q is at most this.
        longest = self._policy.threshold - leaf.history + depth
        if self._first_step is not None:
            return self._first_step(leaf, longest)
        for step in self._whole_steps:
            tokens = self._step_end(leaf, step)
            if tokens is None or tokens <= longest:
                return step
        raise AssertionError(f"the last step of a prompt model must end at the root, above {leaf}")

    def tel_safe(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail; its own, of a leaf that goes whole."""
        if self._free < 0:
            return 0
        if leaf.rest is not None:
            return leaf.end - leaf.start if self._step(leaf) <= self._free else 0
        return max(leaf.end - self._policy.keep(leaf, self._free // _PARTS, self._page_size), 0)

    def _admit(self) -> None:
        """Give the noted leaves their entries."""
        if not self._noted:
            return
        for leaf_id in self._noted:
            self._enter(leaf_id, self._leaf(leaf_id))
        self._noted.clear()
        if self._entries + len(self._alarms) > 2 * self._leaves + _SLACK:
            self.use(self._policy)

    def _leaf(self, leaf_id: int) -> Leaf:
        """A leaf that was added and not discarded."""
        leaf = self._leaf_of(leaf_id)
        assert leaf is not None, f"leaf {leaf_id} was not discarded before it went"
        return leaf

    def _enter(self, leaf_id: int, leaf: Leaf) -> None:
        """Count a leaf, and put it into its cell."""
        step = self._step(leaf)
        if step <= self._free:
            self._over_budget += self.tel_safe(leaf)
        self._push(leaf_id, leaf, step)

    def _push(self, leaf_id: int, leaf: Leaf, step: int) -> None:
        """Put a leaf whose last token lies in that step into its cell."""
        returns, stamp = self._returns, self._returns.stamp(leaf)
        if stamp > self._now:
            self._now = stamp
        self._put(leaf_id, returns.key(leaf), returns.group(leaf, self._now), step)

    def _put(self, leaf_id: int, key: float, group: Group, step: int) -> None:
        """Put a leaf with that key into the cell of a group and a step."""
        number, until = group
        cell = number * self._steps + step
        queue = self._cells.get(cell)
        if queue is None:
            queue = self._cells[cell] = RisingQueue()
        self._entries += 1
        if not queue.push(key, leaf_id):
            return
        if self._returns.timeless and cell not in self._listed:  # a cell that is not listed was empty
            self._listed.add(cell)
            heappush(self._prices, self._price(cell))
        if until < math.inf:
            self._wake(cell, until)

    def _first(self, cell: int) -> tuple[int, Leaf] | None:
        """The leaf of the first entry of a cell and its id; None if it was stale, and was dropped or put right."""
        queue = self._cells[cell]
        assert queue.first is not None, f"nothing is in cell {cell}"
        key, leaf_id = queue.first
        leaf, group = self._leaf_of(leaf_id), None
        if leaf is not None and self._returns.key(leaf) == key:
            group = self._returns.group(leaf, self._now)
            if group.number == cell // self._steps:  # then the step is what it was, too
                return leaf_id, leaf
        queue.pop()
        self._entries -= 1
        if leaf is not None and group is not None:
            self._put(leaf_id, key, group, self._step(leaf))
        elif leaf is not None:  # used since, and that may be the newest time seen
            self._push(leaf_id, leaf, self._step(leaf))
        return None

    def _reprice(self) -> None:
        """Sort the cells by what their leaves cost now."""
        self._prices = [self._price(cell) for cell in self._listed]
        heapify(self._prices)

    def _learn(self) -> None:
        """The rates are others: what was to be worth more may be worth less, so every cell is looked at."""
        self._version = self._returns.version
        self._reprice()
        self._alarm = dict.fromkeys(self._listed, self._now)
        self._alarms = sorted((self._now, cell) for cell in self._listed)

    def _wake(self, cell: int, time: float) -> None:
        """Look at the cell at that time, or before."""
        if time < self._alarm.get(cell, math.inf):
            self._alarm[cell] = time
            heappush(self._alarms, (time, cell))

    def _let_time_pass(self) -> None:
        """Move on the leaves that have grown into groups of less rate: the first of a cell before the others."""
        while self._alarms and self._alarms[0][0] <= self._now:
            time, cell = heappop(self._alarms)
            if self._alarm.get(cell) == time:
                del self._alarm[cell]
                self._move_on(cell)

    def _move_on(self, cell: int) -> None:
        """Let go of the first leaves of a cell, as far as they are in other groups by now."""
        number, queue = cell // self._steps, self._cells[cell]
        group_of, key_of, now = self._returns.group, self._returns.key, self._now
        while queue.first is not None:
            key, leaf_id = queue.first
            leaf = self._leaf_of(leaf_id)
            if leaf is None or key_of(leaf) != key:
                self._first(cell)
                continue
            group = group_of(leaf, now)
            if group.number == number:
                self._wake(cell, group.until)
                return
            queue.pop()
            self._entries -= 1
            self._put(leaf_id, key, group, self._step(leaf))


def _in_parts(values: tuple[float, ...]) -> tuple[float, ...]:
    """Values of steps, and between two of them as many as there are parts."""
    parts = [low + (high - low) * part / _PARTS for low, high in pairwise(values) for part in range(_PARTS)]
    return (*parts, values[-1])
