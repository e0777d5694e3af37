"""Algorithm 1 of the paper (T-LRU, forced caching) in the plainest Python there is, one page at a time, on a trie.

Written from the paper and from nothing in this package, to hold the real cache against. Slow on purpose: each page is
a node, each eviction looks at every leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Page:
    tokens: tuple[int, ...]
    parent: Page | None
    depth: int  # tokens from the root, this page included
    last_request: int = -1
    history: int = 0  # deepest that a path through this page has been, as far as nothing below is resident
    children: dict[tuple[int, ...], Page] = field(default_factory=dict)


class PageTrie:
    """Tokens cached by T-LRU: ``threshold`` None never finds a page TEL-safe, which makes it LRU."""

    def __init__(self, capacity: int, page_size: int, threshold: int | None, next_prompt: int) -> None:
        self.capacity, self.page_size = capacity, page_size
        self.threshold, self.next_prompt = threshold, next_prompt
        self.root = Page((), None, 0)
        self.pages: list[Page] = []
        self.requests = 0

    def request(self, tokens: Sequence[int]) -> int:
        """Serve one request; returns the tokens it found cached."""
        wanted = [
            tuple(tokens[start : start + self.page_size])
            for start in range(0, len(tokens) - self.page_size + 1, self.page_size)
        ]
        self.requests += 1
        path = [self.root]
        for page in wanted:
            child = path[-1].children.get(page)
            if child is None:
                break
            path.append(child)
        cached = path[-1].depth
        missing = wanted[len(path) - 1 :]
        while len(self.pages) + len(missing) > self.capacity // self.page_size:
            self._evict_one(in_use={id(page) for page in path})
        for page in missing:
            node = Page(page, path[-1], path[-1].depth + self.page_size)
            path[-1].children[page] = node
            self.pages.append(node)
            path.append(node)
        for node in path:
            node.last_request = self.requests
            node.history = max(node.history, node.depth)
        return cached

    def _evict_one(self, in_use: set[int]) -> None:
        leaves = [page for page in self.pages if not page.children and id(page) not in in_use]
        # Phase 1: any page beyond the budget. Phase 2: the least recent. Within each, the least recent first.
        victim = min(leaves, key=lambda page: (not self._tel_safe(page), page.last_request))
        parent = victim.parent
        parent.history = max(parent.history, victim.history)
        del parent.children[victim.tokens]
        self.pages.remove(victim)

    def _tel_safe(self, page: Page) -> bool:
        """Without this page, would the next turn still have to prefill no more than the threshold?"""
        if self.threshold is None:
            return False
        left = page.depth - self.page_size
        return page.history - left + self.next_prompt <= self.threshold
