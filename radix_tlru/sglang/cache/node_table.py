"""What SGLang's Rust tree core does not tell of its nodes: a table of some 130 bytes a node."""

from __future__ import annotations

from array import array
from typing import Any

from radix_tlru.learning.records import is_later
from radix_tlru.policy.sharded_dict import ShardedDict

__all__ = ["NodeTable"]


class NodeTable:
    """A row for each node, in columns of machine integers. Depths in tokens from the root."""

    def __init__(self) -> None:
        self.rows = ShardedDict[int]()
        """The row of a node, by its id."""
        self.end = array("q")
        """X: the depth at which the node ends."""
        self.history = array("q")
        """L: the deepest that its path has been, as far as nothing below it is resident."""
        self.access = array("q")
        """When it was last used, in the cache's clock."""
        self.children: list[int] = []  # small numbers are objects already
        self.locks: list[int] = []
        """Those on the node itself. Those on nodes below need no count, because they keep the nodes there."""
        self.conversations = ShardedDict[Any]()
        """The conversation whose turn was the last use, by row, where one is known."""
        self._unused: list[int] = []

    def add_node(self, node_id: int, end: int, children: int) -> int:
        """A row for a new node, never used. Returns the row."""
        if self._unused:
            row = self._unused.pop()
            self.end[row] = self.history[row] = end
            self.children[row], self.access[row], self.locks[row] = children, 0, 0
        else:
            row = len(self.end)
            self.end.append(end)
            self.history.append(end)
            self.access.append(0)
            self.children.append(children)
            self.locks.append(0)
        self.rows[node_id] = row
        return row

    def split_node(self, node_id: int, front_id: int, end: int) -> int:
        """The tail of a node is evicted; its row goes to the front, which ends at ``end``. Returns the row."""
        row = self.rows[front_id] = self.rows.pop(node_id)
        self.end[row] = end
        return row

    def evict_leaf(self, node_id: int, parent_id: int) -> int | None:
        """A leaf is evicted; its parent takes over its history and last use. Returns the parent's row; None: a root."""
        row, parent = self.rows.pop(node_id), self.rows.get(parent_id)
        if parent is not None:
            access, history = self.access[row], self.history[row]
            if self.conversations:
                own = self.conversations.get(row)
                if is_later(own, self.conversations.get(parent)):
                    self.set_conversation(parent, own)
            if access > self.access[parent]:
                self.access[parent] = access
            if history > self.history[parent]:
                self.history[parent] = history
            self.children[parent] -= 1
        if self.conversations:
            self.conversations.pop(row, None)
        self._unused.append(row)
        return parent

    def set_conversation(self, row: int, conversation: Any) -> None:
        """The conversation whose turn was the last use; None: not known."""
        if conversation is not None:
            self.conversations[row] = conversation
        else:
            self.conversations.pop(row, None)
