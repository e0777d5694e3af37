"""Caches of single pages: what the rules of other engines and of published policies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from eval.caches.pages import page_ids
from eval.caches.simulator import known_prefix
from eval.traces.request import Request


class PageCache(ABC):
    """Finds and caches contexts page by page. A subclass says what it holds, and what makes room for what.

    Args:
        capacity, page_size: tokens.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        self.page_size = page_size
        self._pages = capacity // page_size  # that fit
        self._units: dict[int, int] = {}

    @property
    @abstractmethod
    def cached(self) -> Collection[int]:
        """Numbers of the cached pages."""

    @property
    def resident(self) -> int:
        """Tokens cached."""
        return len(self.cached) * self.page_size

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        names = page_ids(request.context, self.page_size, self._units)[: self._pages]
        hits = known_prefix(names, self.cached)
        self._serve(request, names, hits)
        return min(hits * self.page_size, len(request.prompt) // self.page_size * self.page_size)

    @abstractmethod
    def _serve(self, request: Request, names: Sequence[int], hits: int) -> None:
        """Cache the pages of a context, of which the first ``hits`` were found, and evict what must go for them."""


@dataclass(eq=False, slots=True)
class Block:
    """A cached page in the tree of prefixes."""

    name: int
    parent: Block | None
    depth: int  # pages above it
    children: int = 0  # cached pages right below it
    place: tuple[int, int] = (0, 0)  # where it stands in its queue: the least goes first


B = TypeVar("B", bound=Block)


class TreeCache(PageCache, Generic[B]):
    """A page cache that evicts leaves only, and never a page of the request that is being served.

    A rule is a subclass: it makes blocks, hears of what is found, missed and evicted, and chooses among the leaves that
    it was offered. An offer is void when the block has been used since, or is no leaf any more: see
    :class:`LeafQueue`.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._blocks: dict[int, B] = {}
        self._in_use: B | None = None  # deepest cached page of the request that is being served

    @property
    def cached(self) -> Collection[int]:
        return self._blocks

    def may_go(self, block: B) -> bool:
        """Whether a block can be evicted now."""
        return not block.children and block is not self._in_use and self._blocks.get(block.name) is block

    def _serve(self, request: Request, names: Sequence[int], hits: int) -> None:
        path = [self._blocks[name] for name in names[:hits]]
        self._in_use = path[-1] if path else None
        self._begin(request, path, names)
        for name in names[hits:]:
            self._miss(name)
            if len(self._blocks) == self._pages:
                self._evict()
            parent = self._in_use
            block = self._new(name, parent, len(path))
            if parent is not None:
                parent.children += 1
            self._blocks[name] = self._in_use = block
            path.append(block)
        self._in_use = None
        self._end(request, path, hits)
        if path and not path[-1].children:
            self._offer(path[-1])

    def _evict(self) -> None:
        block = self._victim()
        assert self.may_go(block), "only a leaf that is not in use can go"
        del self._blocks[block.name]
        self._evicted(block)
        parent: B | None = block.parent  # type: ignore[assignment]
        if parent is not None:
            parent.children -= 1
            if not parent.children and parent is not self._in_use:
                self._offer(parent)

    # ---- what a rule says ----

    def _begin(self, request: Request, path: Sequence[B], names: Sequence[int]) -> None:
        """A request has found the pages of ``path``; it will cache all of ``names``."""

    def _miss(self, name: int) -> None:
        """A page was not found. It will be cached as soon as there is room."""

    @abstractmethod
    def _new(self, name: int, parent: B | None, depth: int) -> B:
        """The block of a page that is cached now."""

    @abstractmethod
    def _end(self, request: Request, path: Sequence[B], hits: int) -> None:
        """A request is done with the pages of ``path``, of which the first ``hits`` were found."""

    @abstractmethod
    def _offer(self, block: B) -> None:
        """A block has become a leaf, or a leaf has been used: it may be evicted from now on."""

    @abstractmethod
    def _victim(self) -> B:
        """The leaf to evict."""

    def _evicted(self, block: B) -> None:
        """A block was evicted."""


class LeafQueue(Generic[B]):
    """Leaves of a cache by their places. Offers that are void are dropped when they come first."""

    def __init__(self, cache: TreeCache[B]) -> None:
        self._cache = cache
        self._offers: list[tuple[tuple[int, int], B]] = []

    def push(self, block: B) -> None:
        """Offer a leaf at its place. No two blocks of a cache have the same place."""
        heappush(self._offers, (block.place, block))

    def first(self) -> B | None:
        """The leaf with the least place; None: there is none."""
        while self._offers:
            place, block = self._offers[0]
            if block.place == place and self._cache.may_go(block):
                return block
            heappop(self._offers)
        return None

    def pop(self) -> None:
        """Take back the offer of the first leaf."""
        heappop(self._offers)


class GroupedCache(TreeCache[B]):
    """A tree cache whose leaves are in groups, each in the order of its places.

    The group whose first leaf has the least score gives it up. The scores of leaves may change from one request to the
    next, and not while one is served. Within a group they must rise with the place.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._groups: dict[Hashable, LeafQueue[B]] = {}
        self._scores: dict[Hashable, float] = {}  # of the first leaf of each group
        self._stale: dict[Hashable, None] = {}  # groups whose score has to be looked at, in a fixed order

    def _begin(self, request: Request, path: Sequence[B], names: Sequence[int]) -> None:
        self._stale.update(dict.fromkeys(self._groups))

    def _offer(self, block: B) -> None:
        group = self._group(block)
        if group not in self._groups:
            self._groups[group] = LeafQueue(self)
        self._groups[group].push(block)
        self._stale[group] = None

    def _victim(self) -> B:
        for group in self._stale:
            first = self._groups[group].first()
            if first is None:
                del self._groups[group]
                self._scores.pop(group, None)
            else:
                self._scores[group] = self._score(first)
        group = min(self._scores, key=self._scores.__getitem__)
        self._stale = {group: None}
        block = self._groups[group].first()
        assert block is not None, "a group with a score has a leaf"
        return block

    @abstractmethod
    def _group(self, block: B) -> Hashable:
        """The group that a leaf is in until it is used again."""

    @abstractmethod
    def _score(self, block: B) -> float:
        """What a leaf is worth now."""


@dataclass(eq=False, slots=True)
class QueuedBlock(Block):
    """A page that stands in a queue of its rule, whether it is a leaf or not."""

    is_due: bool = False  # it has left its queue to be evicted


Q = TypeVar("Q", bound=QueuedBlock)


class QueuedCache(TreeCache[Q]):
    """A tree cache under a rule that looks at its pages in turn, be they leaves or not.

    A page that the rule evicts leaves its queue at once: it is due. If it is no leaf it is freed as soon as it is one,
    before the rule looks at another page. A request that uses it before then caches it again, as one that was evicted.
    Pages of a request enter their queues when it is done, the deepest first.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._due: list[Q] = []  # leaves that are due; one may have been used since

    def _begin(self, request: Request, path: Sequence[Q], names: Sequence[int]) -> None:
        for block in path:
            if not block.is_due:
                self._use(block)

    def _end(self, request: Request, path: Sequence[Q], hits: int) -> None:
        for block in reversed(path):
            if block.is_due:
                block.is_due = False
                self._return(block)
            elif block.depth >= hits:
                self._enter(block)

    def _offer(self, block: Q) -> None:
        if block.is_due:
            self._due.append(block)

    def _victim(self) -> Q:
        while True:
            while self._due:
                block = self._due.pop()
                if block.is_due and self.may_go(block):
                    return block
            chosen = self._look()
            if chosen is not None:
                chosen.is_due = True
                self._due.append(chosen)

    # ---- what a rule of queues says ----

    @abstractmethod
    def _use(self, block: Q) -> None:
        """A request has found a page that stands in a queue."""

    @abstractmethod
    def _enter(self, block: Q) -> None:
        """Put a page that was cached into its queue."""

    @abstractmethod
    def _return(self, block: Q) -> None:
        """Put a page that was due when a request used it into the queue where it enters after an eviction."""

    @abstractmethod
    def _look(self) -> Q | None:
        """Look at the next page: take it out of its queue if it is to be evicted; None: it stays."""
