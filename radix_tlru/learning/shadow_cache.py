"""What the same stream would have cost under another policy: a small cache of sampled conversations, without KV.

A shadow serves one conversation in so many, and what it holds of each counts for as many. Conversations are lines that
begin with what they are known to share with others, whether or not the cache that is shadowed held it: this depends on
the policy in force. They hold that part together. So a turn costs some microseconds. The figures of shadows compare
with each other, not quite with the cache that they shadow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy

__all__ = ["ShadowCache"]


class _Front:
    """What a shadow holds of a shared prefix: ``end`` tokens, which the ``lines`` behind it hold together."""

    __slots__ = ("end", "history", "leaf_id", "lines", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.end = self.history = self.lines = 0
        self.leaf_id = 0  # in the order, while no line is behind it


class ShadowCache:
    """A cache of lines under one policy; lengths in tokens, whole pages.

    Args:
        capacity: of the cache that is shadowed.
        one_in: conversations that each line stands for. What lines share they share with all of those.
    """

    def __init__(self, policy: Policy, capacity: int, page_size: int, one_in: int = 1) -> None:
        self._leaves: dict[int, Leaf] = {}  # by id in the order
        self.order = EvictionOrder(policy, page_size, self._leaves.get)
        self.capacity, self._resident, self._one_in = capacity, 0, one_in
        self._page_size = page_size
        self._ids: dict[int, int] = {}  # by conversation, of those that have a leaf
        self._fronts: dict[int, _Front] = {}  # by number of the prefix
        self._front_of: dict[int, _Front] = {}  # by conversation, of lines that begin with one
        self._fronts_alone: dict[int, _Front] = {}  # fronts without a line, by id in the order
        self._last_id = 0
        self._served = 0

    def serve(self, conversation: Conversation, turn: Turn) -> int:
        """Serve a turn. Returns the tokens of its prompt that were cached."""
        self._served += 1
        start = held = min(conversation.common, turn.prompt_len) // self._page_size * self._page_size
        shared = start  # tokens that are held of what others begin with, too
        leaf_id, front = self._ids.pop(conversation.number, 0), None
        if leaf_id:
            leaf = self._withdraw(leaf_id)
            start = shared = leaf.start
            held = min(leaf.end, leaf.conversation.reusable_len)
            self._resident -= (leaf.end - max(held, start)) * self._one_in  # what no prompt repeats goes with it
        elif conversation.prefix is not None and start:
            front = self._take_up(conversation, conversation.prefix.number, start)
            held = shared = min(front.end, start)
        context = max(min(turn.context_len, start + self.capacity // self._one_in), start, held)
        room = start - shared + (context - max(start, held)) * self._one_in
        self._make_room(room)
        self._resident += room
        if front is not None:
            front.end = max(front.end, start)
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

    def _take_up(self, conversation: Conversation, number: int, start: int) -> _Front:
        """The front of a prefix. The conversation's line begins behind its ``start`` tokens."""
        front = self._fronts.get(number)
        if front is None:
            front = self._fronts[number] = _Front(number)
            self._share_line(conversation.left, front, start)
        elif not front.lines:
            self._withdraw(front.leaf_id)
            del self._fronts_alone[front.leaf_id]
        self._begin_line(conversation.number, front)
        return front

    def _begin_line(self, number: int, front: _Front) -> None:
        front.lines += 1
        self._front_of[number] = front

    def _share_line(self, number: int, front: _Front, start: int) -> None:
        """Another conversation left the path of this one after ``start`` tokens: both begin with the front."""
        leaf = self._leaves.get(self._ids.get(number, 0))
        if leaf is None or leaf.start >= start:
            return
        self._withdraw(self._ids.pop(number))
        self._end_line(leaf)
        front.end = min(leaf.end, start)
        alone = max(leaf.end - start, 0)
        self._resident += front.end + (alone - (leaf.end - leaf.start)) * self._one_in
        if alone:
            self._begin_line(number, front)
            self._ids[number] = self._offer(leaf._replace(start=start))

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
            self._resident -= leaf.end - keep
            front.end = keep
            self._offer_front(front, leaf)
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
        front = self._front_of.pop(leaf.conversation.number, None)
        if front is None:
            return
        front.lines -= 1
        front.history = max(front.history, leaf.history)
        if not front.lines:
            self._offer_front(front, leaf)

    def _offer_front(self, front: _Front, last: Leaf) -> None:
        """No line is behind it any more: it can be evicted. It was used when the last line was."""
        if front.end:
            front.leaf_id = self._offer(last._replace(start=0, end=front.end, history=max(front.history, front.end)))
            self._fronts_alone[front.leaf_id] = front
        else:
            del self._fronts[front.number]
