"""A radix tree that evicts whole nodes, as SGLang's does: for rules that look at a node's size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from eval.caches.blocks import PageCache
from eval.traces.request import Request


@dataclass(eq=False, slots=True)
class Node:
    """A stretch of pages that one request, or one chunk of its prefill, has cached."""

    names: Sequence[int]
    parent: Node | None
    hits: int = 0  # requests that have used it, the first one included
    last_use: int = 0  # in the cache's own clock
    children: dict[int, Node] = field(default_factory=dict)  # by their first page


class NodeCache(PageCache):
    """SGLang's tree of nodes under a rule that ranks them.

    A prompt that leaves a node in its middle splits it: the upper part keeps the count of hits, the lower part counts
    as used, as in SGLang. Each chunk of a prefill makes room for itself and becomes a node. Leaves go whole, so there
    may be more room than was asked for. The path of the request that is being served stays.

    Source: SGLang 0.5.23, ``srt/mem_cache/unified_cache/unified_tree_core.py`` (``_split_node``,
    ``_inc_hit_count_and_check``), ``srt/mem_cache/evict_policy.py``.

    Args:
        rank: what is compared of two leaves: the least goes first. Of equal ones the least recently used goes.
        chunk: tokens prefilled at a time.
    """

    def __init__(self, capacity: int, page_size: int, rank: Callable[[Node], float], chunk: int) -> None:
        super().__init__(capacity, page_size)
        self._rank = rank
        self._chunk = max(chunk // page_size, 1)  # pages
        self._root = Node((), None)
        self._cached: set[int] = set()
        self._locked = self._root  # the path to here is in use
        self._leaves: list[tuple[float, int, Node]] = []  # heap; an entry is void once its node was used, or is gone
        self._clock = 0

    @property
    def cached(self) -> Collection[int]:
        return self._cached

    def _serve(self, request: Request, names: Sequence[int], hits: int) -> None:
        path = self._match(names)
        done = hits
        self._use(path)
        while True:
            end = min(done + self._chunk, len(names))
            self._locked = path[-1]
            self._make_room(end - done)
            if done == hits:
                for node in path[1:]:
                    node.hits += 1
            if end > done:
                path.append(self._append(path[-1], names[done:end]))
            done = end
            if done == len(names):
                break
        self._locked = self._root
        self._offer(path[-1])

    def _match(self, names: Sequence[int]) -> list[Node]:
        """The nodes of the longest cached prefix, from the root; the last one is split where the prefix ends."""
        path, start = [self._root], 0
        while start < len(names) and (child := path[-1].children.get(names[start])) is not None:
            rest = names[start : start + len(child.names)]
            shared = sum(one == other for one, other in zip(child.names, rest, strict=False))
            path.append(child if shared == len(child.names) else self._split(child, shared))
            start += shared
        return path

    def _split(self, node: Node, pages: int) -> Node:
        upper = Node(node.names[:pages], node.parent, node.hits)
        assert node.parent is not None, "the root has no pages"
        node.parent.children[node.names[0]] = upper
        node.names, node.parent = node.names[pages:], upper
        upper.children[node.names[0]] = node
        self._use([node])
        self._offer(node)
        return upper

    def _append(self, parent: Node, names: Sequence[int]) -> Node:
        node = Node(names, parent, hits=1)
        parent.children[names[0]] = node
        self._cached.update(names)
        self._use([node])
        return node

    def _use(self, path: Sequence[Node]) -> None:
        self._clock += 1
        for node in path:
            node.last_use = self._clock

    def _offer(self, node: Node) -> None:
        if not node.children and node is not self._root:
            heappush(self._leaves, (self._rank(node), node.last_use, node))

    def _make_room(self, pages: int) -> None:
        while len(self._cached) + pages > self._pages:
            _, last_use, node = heappop(self._leaves)
            parent = node.parent
            assert parent is not None, "the root is never offered"
            is_gone = parent.children.get(node.names[0]) is not node
            if is_gone or node.children or node.last_use != last_use:
                continue
            del parent.children[node.names[0]]
            self._cached.difference_update(node.names)
            if parent is not self._locked:
                self._offer(parent)
