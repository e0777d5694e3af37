"""What SGLang's Rust tree core does not tell of its nodes, in some 130 bytes each."""

from __future__ import annotations

from array import array
from typing import Any

from radix_tlru.models import Leaf

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

    def remove(self, node_id: int) -> None:
        """The node is gone."""
        row = self.rows.pop(node_id)
        self.known.pop(row, None)
        self._unused.append(row)

    def rename(self, node_id: int, other_id: int) -> None:
        """What is known of a node is known of another one from now on."""
        self.rows[other_id] = self.rows.pop(node_id)

    def evictable(self, row: int) -> bool:
        """Whether the node is in the order: a leaf that nobody keeps."""
        return not (self.locks[row] or self.children[row])

    def leaf(self, row: int, start: int = 0) -> Leaf:
        """The node as the order sees it."""
        return Leaf(start, self.end[row], self.history[row], self.access[row], self.known.get(row))

    def learn(self, row: int, known: Any) -> None:
        """What the learner said of the last use; None: nothing."""
        if known is not None:
            self.known[row] = known
        else:
            self.known.pop(row, None)

    def inherit(self, row: int, gone: int) -> None:
        """The row of a parent takes over what is known of a child that is evicted."""
        self.history[row] = max(self.history[row], self.history[gone])
        if self.access[gone] >= self.access[row] or row not in self.known:
            self.learn(row, self.known.get(gone))
        self.access[row] = max(self.access[row], self.access[gone])
        self.children[row] -= 1
