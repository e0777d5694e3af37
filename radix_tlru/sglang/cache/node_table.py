"""What SGLang's Rust tree core does not tell of its nodes, in some 130 bytes each."""

from __future__ import annotations

from array import array
from typing import Any

__all__ = ["NodeTable"]


class NodeTable:
    """A row for each node, in columns of machine integers. Depths in tokens from the root."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        """The row of a node, by its id."""
        self.end = array("q")
        """X: the depth at which the node ends."""
        self.history = array("q")
        """L: the deepest that its path has been, as far as nothing below it is resident."""
        self.access = array("q")
        """When it was last used, in the cache's clock."""
        self.children: list[int] = []  # small numbers are objects already
        self.locks: list[int] = []
        """Those on the node itself; those on nodes below need no count, as they keep the nodes there."""
        self.known: dict[int, Any] = {}
        """What the learner said of the last use, by row, of those of which it said something."""
        self._unused: list[int] = []

    def add(self, node_id: int, end: int, children: int) -> int:
        """A row for a new node, never used."""
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

    def shorten(self, node_id: int, front_id: int, end: int) -> int:
        """A node is cut, and what is known of it is known of its front. Returns the row."""
        row = self.rows[front_id] = self.rows.pop(node_id)
        self.end[row] = end
        return row

    def remove(self, node_id: int, parent_id: int) -> int | None:
        """A leaf is evicted, and what is known of it is known of its parent. Returns the parent's row; None: a root."""
        row, parent = self.rows.pop(node_id), self.rows.get(parent_id)
        if parent is not None:
            access, history = self.access[row], self.history[row]
            if self.known and (access >= self.access[parent] or parent not in self.known):
                self.learn(parent, self.known.get(row))
            if access > self.access[parent]:
                self.access[parent] = access
            if history > self.history[parent]:
                self.history[parent] = history
            self.children[parent] -= 1
        if self.known:
            self.known.pop(row, None)
        self._unused.append(row)
        return parent

    def learn(self, row: int, known: Any) -> None:
        """What the learner said of the last use; None: nothing."""
        if known is not None:
            self.known[row] = known
        else:
            self.known.pop(row, None)
