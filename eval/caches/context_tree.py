"""A radix tree of contexts, in whole pages: which nodes a context runs through. Nothing is evicted here.

A context is a few units and not thousands of tokens, so a look-up takes microseconds, whatever the context's length.
"""

from __future__ import annotations

from typing import Any

from eval.traces.request import Path
from radix_tlru import Leaf


class Node:
    """A stretch of a context, tokens [start, end) from the root, with what a policy may ask of it."""

    __slots__ = (
        *("children", "conversation", "end", "history", "holders", "last_access", "leaf_id", "parent", "path", "start"),
    )

    def __init__(self, path: Path, start: int, end: int, parent: Node | None) -> None:
        self.path = path  # of the request that brought the tokens: they are path[start:end]
        self.start, self.end = start, end
        self.parent = parent
        self.children: dict[int, Node] = {}  # by the unit that holds the last token of a child's first page
        self.history = end
        self.last_access = 0.0
        self.conversation: Any = None  # or what is known of the future
        self.leaf_id = 0  # in the order; 0 while it is not evictable
        self.holders = 0  # running requests whose context it is a part of

    def as_leaf(self) -> Leaf:
        """The node as an order sees it."""
        return Leaf(self.start, self.end, self.history, self.last_access, self.conversation)


class ContextTree:
    """Contexts that share their beginnings, page by page."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(Path((), ()), 0, 0, None)

    def whole_pages(self, tokens: int) -> int:
        """Tokens in the whole pages of that many."""
        return tokens // self.page_size * self.page_size

    def match(self, context: Path) -> list[Node]:
        """The nodes of the longest cached prefix, from the root. A node that goes on beyond it is split there."""
        node, path = self.root, [self.root]
        while (child := self._next(node, context)) is not None:
            if self._covers(context, child):
                node = child
                path.append(node)
                continue
            shared = self.whole_pages(min(child.path.common(context), child.end))
            path.append(self.split(child, shared))
            break
        return path

    def deepest(self, context: Path) -> Node:
        """The last node that a context has all of."""
        node = self.root
        while (child := self._next(node, context)) is not None and self._covers(context, child):
            node = child
        return node

    def append(self, parent: Node, context: Path, end: int) -> Node:
        """Add a node for a context's tokens from the end of ``parent`` to ``end``."""
        node = Node(context, parent.end, end, parent)
        self._adopt(node)
        return node

    def split(self, node: Node, depth: int) -> Node:
        """Split a node and return the upper half. The lower half keeps identity, history and recency."""
        upper = Node(node.path, node.start, depth, node.parent)
        upper.last_access, upper.conversation, upper.holders = node.last_access, node.conversation, node.holders
        self._adopt(upper)
        node.start, node.parent = depth, upper
        self._adopt(node)
        return upper

    def remove(self, node: Node) -> Node:
        """Take a node without children out of the tree; returns its parent."""
        assert node.parent is not None, "the root stays"
        del node.parent.children[self._child_key(node)]
        return node.parent

    def _next(self, node: Node, context: Path) -> Node | None:
        """The child that shares at least the next page with a context."""
        end = node.end + self.page_size
        return node.children.get(context.ids[context.unit_at(end - 1)]) if end <= len(context) else None

    def _covers(self, context: Path, node: Node) -> bool:
        """Whether a context that shares a node's first page shares all of it."""
        last = node.path.unit_at(node.end - 1)
        return node.end <= len(context) and last < len(context.ids) and node.path.ids[last] == context.ids[last]

    def _adopt(self, node: Node) -> None:
        node.parent.children[self._child_key(node)] = node  # type: ignore[union-attr]

    def _child_key(self, node: Node) -> int:
        return node.path.ids[node.path.unit_at(node.start + self.page_size - 1)]
