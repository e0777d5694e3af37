"""What the same stream would have cost under another policy: a small cache of sampled conversations, without KV.

A shadow serves one conversation in ``one_in``, with all of its branches, and each token that it holds of one counts
``one_in`` times. It is a radix tree without tokens. A *prefix node* holds what a shared prefix adds to the next shorter
one on its path. A *line* is the rest of a conversation's context. It begins below the prefixes that the conversation is
known to share with others, whether or not the cache that is shadowed held them: this depends on the policy in force. A
turn costs its evictions, whatever the length of its context. The figures of shadows compare with each other, not quite
with the cache that they shadow.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from radix_tlru.learning.records import Conversation, SharedPrefix, Turn
from radix_tlru.learning.shared_prefixes import MOST_ON_A_PATH, prefixes_of
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy

__all__ = ["ShadowCache"]

_VICTIMS = 8
"""Leaves that a step of a turn evicts, at most. A long context may need the room of a thousand."""


class _PrefixNode:
    """What a shadow holds of a shared prefix beyond the next shorter one: its tokens ``start`` to ``end``.

    While it has children, lines or nodes of longer prefixes, and holds tokens, all that is above it is held.
    """

    __slots__ = ("children", "end", "history", "leaf_id", "number", "parent", "start", "weight")

    def __init__(self, number: int, start: int, weight: int) -> None:
        self.number = number
        self.weight = weight  # nodes of the cache that is shadowed that this one stands for
        self.start = self.end = start
        self.parent: _PrefixNode | None = None
        self.history = self.children = 0
        self.leaf_id = 0  # in the order, while it has no children; 0: it is not there

    def way_up(self) -> Iterator[_PrefixNode]:
        """This node and those above it, the nearest first."""
        node: _PrefixNode | None = self
        for _ in range(MOST_ON_A_PATH):
            if node is None:
                return
            yield node
            node = node.parent

    def missing(self, end: int) -> Iterator[tuple[_PrefixNode, int]]:
        """Nodes that have to hold more, and down to where, so that all tokens down to ``end`` are held."""
        for node in self.way_up():
            is_held = node.end > node.start
            if end > node.end:
                yield node, end
            if is_held:
                return
            end = min(end, node.start)


class ShadowCache:
    """A cache of lines under one policy; lengths in tokens, whole pages.

    Args:
        capacity: of the cache that is shadowed.
        one_in: conversations that each line stands for. So many copies of a prefix that branches of one conversation
            share are counted, and one of a prefix that is common (``SharedPrefix.is_common``).
    """

    def __init__(self, policy: Policy, capacity: int, page_size: int, one_in: int = 1) -> None:
        self._leaves: dict[int, Leaf] = {}  # by id in the order
        self.order = EvictionOrder(policy, page_size, self._leaves.get)
        self._resident, self._one_in = 0, one_in
        self._page_size = page_size
        self.resize(capacity)
        self._ids: dict[int, int] = {}  # of lines in the order, by conversation
        self._nodes: dict[int, _PrefixNode] = {}  # by number of the prefix
        self._node_above: dict[int, _PrefixNode] = {}  # by conversation, of lines that are below one
        self._childless: dict[int, _PrefixNode] = {}  # nodes that can be evicted, by id in the order
        self._last_id = 0
        self._served = 0

    def resize(self, capacity: int) -> None:
        """The cache that is shadowed has room for so many tokens from now on. The next turn evicts what is too much."""
        self.capacity = capacity // self._page_size * self._page_size

    def serve(self, conversation: Conversation, turn: Turn) -> int:
        """Serve a turn. Returns the tokens of its prompt that were cached."""
        steps = self.serve_in_steps(conversation, turn)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                cached: int = end.value
                return cached

    def serve_in_steps(self, conversation: Conversation, turn: Turn) -> Generator[None, None, int]:
        """The same in steps, none of which takes long. Between them no other turn may be served."""
        self._served += 1
        start = held = min(conversation.common, turn.prompt_len) // self._page_size * self._page_size
        leaf_id, node = self._ids.pop(conversation.number, 0), None
        if leaf_id:
            leaf = self._withdraw(leaf_id)
            start = leaf.start
            held = min(leaf.end, leaf.conversation.reusable_len)
            self._resident -= (leaf.end - max(held, start)) * self._one_in  # what no prompt repeats goes with it
        elif conversation.prefix is not None and start:
            node = self._begin_below(conversation, start)
            if node is not None:
                held = min(next((each.end for each in node.way_up() if each.end > each.start), 0), start)
        context = max(min(turn.context_len, start + self.capacity // self._one_in), start, held)
        alone = (context - max(start, held)) * self._one_in
        missing = 0 if node is None else sum((end - each.end) * each.weight for each, end in node.missing(start))
        yield from self._make_room(missing + alone)
        self._resident += alone
        if node is not None:
            self._fill(node, start)
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

    def _make_room(self, tokens: int) -> Iterator[None]:
        missing = self._resident + tokens - self.capacity
        if missing <= 0:
            return
        aim = self._resident - max(missing, self.order.policy.trim_chunk * self._one_in)
        victims = 0
        while self._resident > aim:
            victim = self.order.choose_victim(-((aim - self._resident) // self._one_in))
            if victim is None:
                return
            self._evict(victim.leaf_id, victim.keep)
            victims += 1
            if victims % _VICTIMS == 0:
                yield

    def _evict(self, leaf_id: int, keep: int) -> None:
        leaf, node = self._withdraw(leaf_id), self._childless.pop(leaf_id, None)
        if node is not None:
            self._resident -= (leaf.end - keep) * node.weight
            node.end, node.leaf_id = keep, 0
            if keep > node.start:
                self._offer_node(node, leaf)
            else:
                del self._nodes[node.number]
                self._drop_child(node.parent, leaf)
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
        self._drop_child(self._node_above.pop(leaf.conversation.number, None), leaf)

    # ---- what lines share ----

    def _prefix_path(self, conversation: Conversation, start: int) -> list[tuple[SharedPrefix, int]]:
        """Prefixes on the path of a conversation, and where the node of each ends; the last one ends at ``start``."""
        path: list[tuple[SharedPrefix, int]] = []
        for prefix in reversed([*prefixes_of(conversation)]):
            end = start if prefix is conversation.prefix else prefix.depth // self._page_size * self._page_size
            found = self._nodes.get(prefix.number)
            if (path[-1][1] if path else 0) < end <= start and (found is None or found.start < end):
                path.append((prefix, end))
        return path

    def _begin_below(self, conversation: Conversation, start: int) -> _PrefixNode | None:
        """The node below which the conversation's line begins, after ``start`` tokens; None: no prefix is so short."""
        path = self._prefix_path(conversation, start)
        if not path:
            return None
        last = Leaf(0, start, start, float(self._served), conversation)
        first = len(path) - 1
        while first and self._is_below(path[first][0].number, path[first - 1][0].number, path[first - 1][1]):
            first -= 1
        above, begin = None, 0
        for prefix, end in path[first:]:
            weight = 1 if prefix.is_common else self._one_in
            node = self._nodes.get(prefix.number)
            if node is None:
                node = self._nodes[prefix.number] = _PrefixNode(prefix.number, begin, weight)
                self._put_below(node, above)
                if end == start:
                    self._split_line(conversation.left, node, start)
            elif above is not None and node.parent is not above:
                self._move_below(node, above, begin, last)
            self._resident += (node.end - node.start) * (weight - node.weight)
            node.weight = weight
            above, begin = node, end
        assert above is not None, "a path has a node"
        self._begin_line(conversation.number, above)
        return above

    def _is_below(self, number: int, above: int, end: int) -> bool:
        """Whether the node of a prefix is, or has to be, below that of a shorter one."""
        node = self._nodes.get(number)
        return node is None or node.start < end or (node.parent is not None and node.parent.number == above)

    def _begin_line(self, number: int, node: _PrefixNode) -> None:
        self._node_above[number] = node
        self._add_child(node)

    def _put_below(self, node: _PrefixNode, parent: _PrefixNode | None) -> None:
        node.parent = parent
        if parent is not None:
            self._add_child(parent)

    def _add_child(self, node: _PrefixNode) -> None:
        """While it has one, the node cannot be evicted."""
        node.children += 1
        if node.leaf_id:
            self._withdraw(node.leaf_id)
            del self._childless[node.leaf_id]
            node.leaf_id = 0

    def _drop_child(self, node: _PrefixNode | None, last: Leaf) -> None:
        """A child is gone. If ``last`` was the last one, the node can be evicted, and was used when that was."""
        while node is not None:
            node.children -= 1
            node.history = max(node.history, last.history)
            if node.children:
                return
            if node.end > node.start:
                self._offer_node(node, last)
                return
            del self._nodes[node.number]
            node = node.parent

    def _offer_node(self, node: _PrefixNode, last: Leaf) -> None:
        history = max(node.history, node.end)
        node.leaf_id = self._offer(last._replace(start=node.start, end=node.end, history=history))
        self._childless[node.leaf_id] = node

    def _fill(self, node: _PrefixNode, end: int) -> None:
        """Hold all tokens down to ``end``, which is within a node or above it."""
        for each, to in node.missing(end):
            self._resident += (to - each.end) * each.weight
            each.end = to

    def _split_line(self, number: int, node: _PrefixNode, start: int) -> None:
        """Another conversation left the path of this one after ``start`` tokens: both go on below the new node."""
        leaf = self._leaves.get(self._ids.get(number, 0))
        if leaf is None:
            return
        before = self._node_above.get(number)
        if leaf.start >= start:  # within a node above the line: the new node is the upper part of that
            for each in before.way_up() if before is not None else ():
                if each.parent is node.parent and each.start == node.start and start <= each.end:
                    node.end = each.start = start
                    self._resident += (start - node.start) * (node.weight - each.weight)
                    self._put_below(each, node)
                    if node.parent is not None:
                        node.parent.children -= 1
                    return
            return
        self._withdraw(self._ids.pop(number))
        self._fill(node, min(leaf.end, start))
        alone = max(leaf.end - start, 0)
        self._resident += (alone - (leaf.end - leaf.start)) * self._one_in
        if alone:
            self._begin_line(number, node)
            self._ids[number] = self._offer(leaf._replace(start=start))
        else:
            self._node_above.pop(number, None)
        self._drop_child(before, leaf)

    def _move_below(self, node: _PrefixNode, parent: _PrefixNode, start: int, last: Leaf) -> None:
        """A shorter prefix was found on the path of a node, since that was made: it holds all down to ``start``."""
        before, held = node.parent, min(node.end, start)
        if any(each is node for each in parent.way_up()):
            return
        self._resident -= (held - node.start) * node.weight
        node.start, node.end = start, max(node.end, start)
        self._put_below(node, parent)
        self._fill(parent, held)
        self._drop_child(before, last)
