"""What the same stream would have cost under another policy: a small cache of sampled conversations, without KV.

A shadow serves one conversation in so many, with all of its branches, and what it holds of each counts for as many.
Conversations are lines that begin with what they are known to share with others, whether or not the cache that is
shadowed held it: this depends on the policy in force. They hold that part together; of two prefixes on one path the
longer holds what it has beyond the shorter. So a turn costs some microseconds. The figures of shadows compare with each
other, not quite with the cache that they shadow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radix_tlru.learning.records import Conversation, SharedPrefix, Turn
from radix_tlru.learning.shared_prefixes import prefixes_of
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy

__all__ = ["ShadowCache"]

_MOST_ABOVE = 64  # shared prefixes that are looked at above one, at most


class _Front:
    """What a shadow holds of a shared prefix beyond the next shorter one: its tokens ``start`` to ``end``.

    Lines, and fronts of longer prefixes, are behind it and hold them together. While there are any, and while the front
    holds tokens of its own, all that is above it is held.
    """

    __slots__ = ("above", "behind", "counts", "end", "history", "leaf_id", "number", "start")

    def __init__(self, number: int, start: int, counts: int) -> None:
        self.number = number
        self.counts = counts  # fronts that it stands for
        self.start = self.end = start
        self.above: _Front | None = None
        self.history = self.behind = 0
        self.leaf_id = 0  # in the order, while nothing is behind it; 0: it is not there

    def way_up(self) -> Iterator[_Front]:
        """This front and those above it, the nearest first."""
        front: _Front | None = self
        for _ in range(_MOST_ABOVE):
            if front is None:
                return
            yield front
            front = front.above

    def missing(self, end: int) -> Iterator[tuple[_Front, int]]:
        """Fronts that have to hold more, and down to where, so that all tokens down to ``end`` are held."""
        for each in self.way_up():
            is_held = each.end > each.start
            if end > each.end:
                yield each, end
            if is_held:
                return
            end = min(end, each.start)


class ShadowCache:
    """A cache of lines under one policy; lengths in tokens, whole pages.

    Args:
        capacity: of the cache that is shadowed.
        one_in: conversations that each line stands for, with what only its own branches share. What is common all of
            those share.
    """

    def __init__(self, policy: Policy, capacity: int, page_size: int, one_in: int = 1) -> None:
        self._leaves: dict[int, Leaf] = {}  # by id in the order
        self.order = EvictionOrder(policy, page_size, self._leaves.get)
        self.capacity, self._resident, self._one_in = capacity, 0, one_in
        self._page_size = page_size
        self._ids: dict[int, int] = {}  # by conversation, of those that have a leaf
        self._fronts: dict[int, _Front] = {}  # by number of the prefix
        self._front_of: dict[int, _Front] = {}  # by conversation, of lines that begin with one
        self._fronts_alone: dict[int, _Front] = {}  # fronts with nothing behind them, by id in the order
        self._last_id = 0
        self._served = 0

    def serve(self, conversation: Conversation, turn: Turn) -> int:
        """Serve a turn. Returns the tokens of its prompt that were cached."""
        self._served += 1
        start = held = min(conversation.common, turn.prompt_len) // self._page_size * self._page_size
        leaf_id, front = self._ids.pop(conversation.number, 0), None
        if leaf_id:
            leaf = self._withdraw(leaf_id)
            start = leaf.start
            held = min(leaf.end, leaf.conversation.reusable_len)
            self._resident -= (leaf.end - max(held, start)) * self._one_in  # what no prompt repeats goes with it
        elif conversation.prefix is not None and start:
            front = self._take_up(conversation, start)
            if front is not None:
                held = min(next((each.end for each in front.way_up() if each.end > each.start), 0), start)
        context = max(min(turn.context_len, start + self.capacity // self._one_in), start, held)
        alone = (context - max(start, held)) * self._one_in
        missing = 0 if front is None else sum((end - each.end) * each.counts for each, end in front.missing(start))
        self._make_room(missing + alone)
        self._resident += alone
        if front is not None:
            self._hold(front, start)
        leaf = Leaf(start, context, max(turn.context_len, context), float(self._served), conversation)
        if context > start:
            self._ids[conversation.number] = self._offer(leaf)
        else:
            self._end_line(leaf)
        self.order.renew_prices()
        return min(held, turn.prompt_len)

    @contextmanager
    def without(self, conversation: Conversation) -> Iterator[None]:
        """Take the conversation out of the order while what is known of it changes."""
        leaf_id = self._ids.get(conversation.number, 0)
        leaf = self._withdraw(leaf_id) if leaf_id else None
        yield
        if leaf is not None:
            self._ids[conversation.number] = self._offer(leaf)

    def _offer(self, leaf: Leaf) -> int:
        self._last_id += 1
        self._leaves[self._last_id] = leaf
        self.order.add_leaf(self._last_id)
        return self._last_id

    def _withdraw(self, leaf_id: int) -> Leaf:
        self.order.remove_leaf(leaf_id)
        return self._leaves.pop(leaf_id)

    def _make_room(self, tokens: int) -> None:
        missing = self._resident + tokens - self.capacity
        if missing <= 0:
            return
        aim = self._resident - max(missing, self.order.policy.trim_chunk * self._one_in)
        while self._resident > aim:
            victim = self.order.choose_victim(-((aim - self._resident) // self._one_in))
            if victim is None:
                return
            self._evict(victim.leaf_id, victim.keep)

    def _evict(self, leaf_id: int, keep: int) -> None:
        leaf, front = self._withdraw(leaf_id), self._fronts_alone.pop(leaf_id, None)
        if front is not None:
            self._resident -= (leaf.end - keep) * front.counts
            front.end, front.leaf_id = keep, 0
            if keep > front.start:
                self._offer_front(front, leaf)
            else:
                del self._fronts[front.number]
                self._leave(front.above, leaf)
            return
        self._resident -= (leaf.end - keep) * self._one_in
        if keep > leaf.start:
            shorter = Leaf(leaf.start, keep, *leaf[2:])  # _replace takes twice as long
            self._ids[leaf.conversation.number] = self._offer(shorter)
        else:
            del self._ids[leaf.conversation.number]
            self._end_line(leaf)

    def _end_line(self, leaf: Leaf) -> None:
        """Nothing is left of a line but what it shares with others."""
        self._leave(self._front_of.pop(leaf.conversation.number, None), leaf)

    # ---- what lines share ----

    def _take_up(self, conversation: Conversation, start: int) -> _Front | None:
        """The front behind which the conversation's line begins, after ``start`` tokens; None: none is so short."""
        path: list[tuple[SharedPrefix, int]] = []  # from the root: a prefix, and where its front ends
        for prefix in reversed([*prefixes_of(conversation)]):
            end = start if prefix is conversation.prefix else prefix.depth // self._page_size * self._page_size
            found = self._fronts.get(prefix.number)
            if (path[-1][1] if path else 0) < end <= start and (found is None or found.start < end):
                path.append((prefix, end))
        if not path:
            return None
        last = Leaf(0, start, start, float(self._served), conversation)
        first = len(path) - 1
        while first and self._is_behind(path[first][0].number, path[first - 1][0].number, path[first - 1][1]):
            first -= 1
        above, begin = None, 0
        for prefix, end in path[first:]:
            counts = 1 if prefix.is_common else self._one_in
            front = self._fronts.get(prefix.number)
            if front is None:
                front = self._fronts[prefix.number] = _Front(prefix.number, begin, counts)
                self._put_behind(front, above)
                if end == start:
                    self._share_line(conversation.left, front, start)
            elif above is not None and front.above is not above:
                self._move_behind(front, above, begin, last)
            self._resident += (front.end - front.start) * (counts - front.counts)
            front.counts = counts
            above, begin = front, end
        assert above is not None, "a path has a front"
        self._begin_line(conversation.number, above)
        return above

    def _is_behind(self, number: int, above: int, end: int) -> bool:
        """Whether the front of a prefix is, or has to be, behind that of a shorter one."""
        front = self._fronts.get(number)
        return front is None or front.start < end or (front.above is not None and front.above.number == above)

    def _begin_line(self, number: int, front: _Front) -> None:
        self._front_of[number] = front
        self._use(front)

    def _put_behind(self, front: _Front, above: _Front | None) -> None:
        front.above = above
        if above is not None:
            self._use(above)

    def _use(self, front: _Front) -> None:
        """One more is behind it. Meanwhile it cannot be evicted."""
        front.behind += 1
        if front.leaf_id:
            self._withdraw(front.leaf_id)
            del self._fronts_alone[front.leaf_id]
            front.leaf_id = 0

    def _leave(self, front: _Front | None, last: Leaf) -> None:
        """One less is behind it. Where ``last`` was the last one, it can be evicted, and was used when that was."""
        while front is not None:
            front.behind -= 1
            front.history = max(front.history, last.history)
            if front.behind:
                return
            if front.end > front.start:
                self._offer_front(front, last)
                return
            del self._fronts[front.number]
            front = front.above

    def _offer_front(self, front: _Front, last: Leaf) -> None:
        history = max(front.history, front.end)
        front.leaf_id = self._offer(last._replace(start=front.start, end=front.end, history=history))
        self._fronts_alone[front.leaf_id] = front

    def _hold(self, front: _Front, end: int) -> None:
        """Hold all tokens down to ``end``, which is within a front or above it."""
        for each, to in front.missing(end):
            self._resident += (to - each.end) * each.counts
            each.end = to

    def _share_line(self, number: int, front: _Front, start: int) -> None:
        """Another conversation left the path of this one after ``start`` tokens: both go on behind the new front."""
        leaf = self._leaves.get(self._ids.get(number, 0))
        if leaf is None:
            return
        before = self._front_of.get(number)
        if leaf.start >= start:
            for each in before.way_up() if before is not None else ():
                if each.above is front.above and each.start == front.start and start <= each.end:
                    front.end = each.start = start
                    self._resident += (start - front.start) * (front.counts - each.counts)
                    self._put_behind(each, front)
                    if front.above is not None:
                        front.above.behind -= 1
                    return
            return
        self._withdraw(self._ids.pop(number))
        self._hold(front, min(leaf.end, start))
        alone = max(leaf.end - start, 0)
        self._resident += (alone - (leaf.end - leaf.start)) * self._one_in
        if alone:
            self._begin_line(number, front)
            self._ids[number] = self._offer(leaf._replace(start=start))
        else:
            self._front_of.pop(number, None)
        self._leave(before, leaf)

    def _move_behind(self, front: _Front, above: _Front, start: int, last: Leaf) -> None:
        """A shorter prefix was found on the path of a front, since that was made: it holds all down to ``start``."""
        before, held = front.above, min(front.end, start)
        if any(each is front for each in above.way_up()):
            return
        self._resident -= (held - front.start) * front.counts
        front.start, front.end = start, max(front.end, start)
        self._put_behind(front, above)
        self._hold(above, held)
        self._leave(before, last)
