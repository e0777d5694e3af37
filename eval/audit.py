"""A real cache that is audited after every step, by a dictionary of which prefix each page was filled for.

Who has a page of the pool is known without looking into the tree: it is free, a request holds it, or the tree does.
So the resident prefixes are known, and with them what every match has to find, what is protected, and what can go.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import torch
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix_tlru.config import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params
from radix_tlru.tel import round_up

__all__ = ["AuditedCache", "Shape"]

MAX_REQUESTS = 4  # that hold a lock at a time
LETTERS = range(3)  # few, so that contexts share prefixes of any length
REMEMBERED = 16  # contexts that a new one may go on from

# (extra_key, cache_salt): contexts of two of them share nothing, though they be of the same tokens.
NAMESPACES: tuple[tuple[str | None, str | None], ...] = (
    (None, None),
    ("adapter", None),
    (None, "tenant"),
    ("adapter", "tenant"),
)


@dataclass(frozen=True)
class Shape:
    """What kind of cache is audited."""

    core: Core
    page_size: int
    is_eagle: bool = False
    """Keys are pairs of tokens, as speculative decoding with EAGLE wants them."""

    median_weight: float = 0.0
    trim_pages: int = 1
    """Pages that are made room for, and taken from a leaf, at a time."""

    pages: int = 48

    def __str__(self) -> str:
        weight = f"-w{self.median_weight:g}" if self.median_weight else ""
        trim = f"-trim{self.trim_pages}" if self.trim_pages > 1 else ""
        return f"{self.core}-{'pairs' if self.is_eagle else 'tokens'}-page{self.page_size}{weight}{trim}"

    @property
    def capacity(self) -> int:
        """Tokens of the pool."""
        return self.pages * self.page_size

    @property
    def trim_chunk(self) -> int:
        """Tokens."""
        return self.trim_pages * self.page_size


class Context(NamedTuple):
    """Tokens in a namespace."""

    tokens: tuple[int, ...]
    namespace: tuple[str | None, str | None]


@dataclass
class Running:
    """A request between its match and its end."""

    context: Context
    prompt: int  # tokens of the context that were asked; the rest is the answer
    prefixes: Sequence[int]  # of its whole pages
    done: int  # pages that are in the tree, and locked there
    node: int
    lock: Any
    computed: int = 0  # tokens with a slot, those of the tree included
    pages: list[int] = field(default_factory=list)  # its own, behind those in the tree


class AuditedCache(OfflineCache):
    """Steps of a scheduler on a real cache, each followed by :meth:`audit`; arguments are any whole numbers, 0 or more.

    Raises AssertionError as soon as anything is lost, found twice, or not where the dictionary has it.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        params = cache_params(shape.capacity, shape.page_size, shape.core)
        params.is_eagle, params.enable_kv_cache_events = shape.is_eagle, True
        page = shape.page_size
        self.estimate = page + page // 2
        weight, chunk = shape.median_weight, shape.trim_chunk
        config = Config("tlru", 6 * page, self.estimate, median_weight=weight, trim_chunk=chunk)
        super().__init__(build_cache(params, config))
        self.running: list[Running] = []
        self.contexts: list[Context] = [Context((), namespace) for namespace in NAMESPACES]
        self.steps: Counter[str] = Counter()
        self._forget()
        self.audit()

    def _forget(self) -> None:
        # Prefixes are numbered: two pages have the same number if all that was said up to their ends is the same.
        self._numbers: dict[tuple[int, object], int] = {}
        self._parents = list(range(len(NAMESPACES)))  # the empty prefixes are their own
        # What events tell of a namespace is its salt alone: the prefix that a subscriber takes this one for.
        self._told = [NAMESPACES.index((None, cache_salt)) for _, cache_salt in NAMESPACES]
        self._filled: dict[int, int] = {}  # page → the prefix that it was filled for
        self.holds: dict[int, int] = {}  # prefix → its page in the tree
        self._subscribed: dict[int, int] = {}  # hash of a block → the prefix that it ends
        self._blocks: Counter[int] = Counter()  # prefixes that a subscriber takes to be resident

    # ---- the dictionary ----

    def _next(self, prefix: int, said: object) -> int:
        number = self._numbers.setdefault((prefix, said), len(self._parents))
        if number == len(self._parents):
            self._parents.append(prefix)
            told = self._told[prefix]
            self._told.append(number)
            if told != prefix:
                self._told[number] = self._next(told, said)
        return number

    def _prefixes(self, context: Context) -> list[int]:
        """The prefixes that the whole pages of a context end."""
        said: Sequence[object] = context.tokens
        if self.shape.is_eagle:
            said = list(pairwise(context.tokens))
        prefixes, prefix, page = [], NAMESPACES.index(context.namespace), self.page_size
        for start in range(0, len(said) - page + 1, page):
            prefix = self._next(prefix, tuple(said[start : start + page]))
            prefixes.append(prefix)
        return prefixes

    def _found(self, prefixes: Sequence[int]) -> int:
        """Pages of the longest resident prefix."""
        return next((at for at, prefix in enumerate(prefixes) if prefix not in self.holds), len(prefixes))

    def _slots(self, pages: Sequence[int]) -> torch.Tensor:
        slots = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size + torch.arange(self.page_size)
        return slots.reshape(-1)

    def _pages(self, slots: torch.Tensor) -> list[int]:
        """The pages that slots make up, which must be whole."""
        pages: list[int] = (slots[:: self.page_size] // self.page_size).tolist()
        assert torch.equal(slots, self._slots(pages)), "a page is in pieces"
        return pages

    def _key(self, context: Context, tokens: int) -> RadixKey:
        extra_key, cache_salt = context.namespace
        said = array("q", context.tokens[:tokens])
        key = RadixKey(said, extra_key, is_bigram=self.shape.is_eagle, cache_salt=cache_salt)
        return key.page_aligned(self.page_size)

    def _context(self, number: int, pages: int) -> Context:
        """A context that goes on from where an earlier one was, or from within it, by up to so many pages."""
        rng = Random(number)
        before = rng.choice(self.contexts[-REMEMBERED:])
        tokens = before.tokens[: rng.choice([len(before.tokens), rng.randrange(len(before.tokens) + 1)])]
        tokens += tuple(rng.choices(LETTERS, k=rng.randrange(1, max(pages, 1) * self.page_size + 1)))
        context = Context(tokens[: 2 * self.shape.capacity], before.namespace)
        # None goes on for ever, or nothing else would be asked for any more.
        follows = context if len(tokens) < self.shape.capacity // 2 else Context((), rng.choice(NAMESPACES))
        self.contexts = [*self.contexts[-REMEMBERED:], follows]
        return context

    # ---- steps ----

    def start(self, number: int, pages: int) -> None:
        """A request arrives: what is cached of it is found, and locked."""
        if len(self.running) == MAX_REQUESTS:
            return
        context = self._context(number, pages)
        prefixes = self._prefixes(context)
        found, node = self._match(context, prefixes)
        lock = self.cache.lock(node)
        prompt = Random(number).randrange(1, len(context.tokens) + 1)
        self.running.append(Running(context, prompt, prefixes, found, node, lock, found * self.page_size))
        self._after("start")

    def look_up(self, number: int, pages: int) -> None:
        """A look at what is cached of a context, which is a use of it."""
        context = self._context(number, pages)
        self._match(context, self._prefixes(context))
        self._after("match")

    def _match(self, context: Context, prefixes: Sequence[int]) -> tuple[int, int]:
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(context, len(context.tokens))))
        matched, found = match.device_prefix_len, self._found(prefixes)
        assert matched == found * self.page_size, f"a match of {matched} tokens, {found} pages are resident"
        node: int = match.last_device_node
        self._assert_path(node, prefixes[:found])
        return found, node

    def prefill(self, number: int, pages: int) -> None:
        """A chunk of a request is computed, and cached."""
        if self.running:
            request = self.running[number % len(self.running)]
            if self._compute(request, number % (max(pages, 1) * self.page_size) + 1):
                self._insert(request)
            self._after("prefill")

    def decode(self, number: int) -> None:
        """A token or two for every request, cached when the request is."""
        for request in list(self.running):
            self._compute(request, 1 + number % 2)
        self._after("decode")

    def finish(self, number: int) -> None:
        """A request ends well: all of it is cached, its lock goes, and so does the page that it left open."""
        if not self.running:
            return
        request = self.running[number % len(self.running)]
        if self._compute(request, len(request.context.tokens)):
            self._insert(request)
            prompt = self._key(request.context, request.prompt)
            if 0 < len(prompt) < request.done * self.page_size:  # SGLang splits there: an answer can go alone
                values = self.cache.path_device_indices(request.node)[: len(prompt)]
                self.cache.insert(InsertParams(key=prompt, value=values, prev_prefix_len=len(prompt)))
            self._drop(request)
        self._after("finish")

    def abort(self, number: int) -> None:
        """A request ends at once: what it computed and did not cache yet is lost."""
        if self.running:
            self._drop(self.running[number % len(self.running)])
            self._after("abort")

    def _drop(self, request: Running) -> None:
        if request.pages:
            self.allocator.free_segment(self._slots(request.pages), start_pos=request.done * self.page_size)
        self.cache.unlock(request.lock)
        self.running.remove(request)

    def _compute(self, request: Running, tokens: int) -> bool:
        """Give slots to the next tokens of a request; if there is no room for them, it is aborted."""
        computed = min(request.computed + tokens, len(request.context.tokens))
        pages = self._allocate(-(-computed // self.page_size) - request.done - len(request.pages))
        if pages is None:
            self._drop(request)
            return False
        request.pages += pages
        request.computed = computed
        return True

    def _insert(self, request: Running) -> None:
        key = self._key(request.context, request.computed)
        done = len(key) // self.page_size
        if done <= request.done:
            return
        self._audit_pool()  # there may be less than before, as room was made
        own, request.pages = request.pages[: done - request.done], request.pages[done - request.done :]
        self._filled.update(zip(own, request.prefixes[request.done : done], strict=True))
        values = torch.cat([self.cache.path_device_indices(request.node), self._slots(own)])
        params = InsertParams(key=key, value=values, prev_prefix_len=request.done * self.page_size)
        result = self.cache.insert(params)
        found = self._found(request.prefixes[:done])
        assert result.prefix_len == found * self.page_size, f"{result.prefix_len} tokens known, {found} pages were"
        lock = self.cache.lock(result.last_device_node)
        self.cache.unlock(request.lock)
        request.done, request.node, request.lock = done, result.last_device_node, lock

    def press(self, pages: int) -> None:
        """Something else needs room for a moment."""
        held = self._allocate(pages)
        if held:
            self.allocator.free_segment(self._slots(held), start_pos=0)
        self._after("press")

    def _allocate(self, pages: int) -> list[int] | None:
        """So many pages; None if they cannot be had, which must be so only if too few are free and evictable."""
        tokens = max(pages, 0) * self.page_size
        free, evictable = self.allocator.available_size(), self.cache.full_evictable_size()
        try:
            slots = self.allocate(tokens)
        except MemoryError:
            assert free + evictable < tokens, f"{tokens} tokens refused, {free} were free and {evictable} evictable"
            return None
        missing = max(tokens - free, 0)
        wanted = min(max(missing, self.shape.trim_chunk), evictable) if missing else 0
        evicted = evictable - self.cache.full_evictable_size()
        self._assert_evicted(evicted, wanted)
        return self._pages(slots)

    def evict_some(self, tokens: int) -> None:
        """Evict at least so many tokens, to the page, or to the trim chunk if there is one."""
        free, evictable = self.allocator.available_size(), self.cache.full_evictable_size()
        evicted = self.evict(tokens)
        freed = self.allocator.available_size() - free
        assert evicted == freed, f"{evicted} tokens evicted and {freed} freed"
        self._assert_evicted(evicted, min(round_up(tokens, self.page_size), evictable))
        self._after("evict")

    def _assert_evicted(self, evicted: int, wanted: int) -> None:
        """What is wanted is evicted, and of the last leaf up to a trim chunk: to the page if that is one page."""
        beyond = evicted - wanted
        assert 0 <= beyond < self.shape.trim_chunk, f"{evicted} tokens evicted, where {wanted} were wanted"
        assert beyond % self.page_size == 0, f"{evicted} tokens evicted, which are no whole pages"

    def flush(self) -> None:
        """Drop everything, once the requests that run have ended."""
        while self.running:
            self.finish(0)
        self.cache.reset()
        self.allocator.clear()
        self._audit_events()
        assert not self._blocks, "a subscriber was not told of the flush"
        self._forget()
        self._after("flush")

    def move_threshold(self, pages: int) -> None:
        """Another ξ from now on."""
        self.cache.tail.use_threshold(self.estimate + 1 + pages * self.page_size)
        self._after("threshold")

    # ---- the audit ----

    def _after(self, step: str) -> None:
        self.steps[step] += 1
        self.audit()

    def audit(self) -> None:
        """Raise AssertionError unless every page, lock, size, leaf and event is accounted for."""
        self._audit_pool()
        self._audit_locks()
        self._audit_order()
        self._audit_events()
        told = Counter(self._told[prefix] for prefix in self.holds)
        assert +self._blocks == told, "a subscriber knows other blocks than those that are resident"
        self.cache.sanity_check()

    def _audit_pool(self) -> None:
        free: list[int] = self.allocator.free_pages.tolist()
        held = [page for request in self.running for page in request.pages]
        elsewhere = {*free, *held}
        assert len(elsewhere) == len(free) + len(held), "a page is free twice, or free and in a request"
        pages = [page for page in range(1, self.shape.pages + 1) if page not in elsewhere]
        slots = self.cache.tree_core.all_values_flatten().sort().values
        assert self._pages(slots) == pages, "the tree does not hold what nobody else does"
        self.holds = {self._filled[page]: page for page in pages}
        assert len(self.holds) == len(pages), "a prefix is resident twice"
        for parent in map(self._parents.__getitem__, self.holds):
            assert parent in self.holds or parent < len(NAMESPACES), "a prefix lost the one before it"

    def _audit_locks(self) -> None:
        locked = {prefix for request in self.running for prefix in request.prefixes[: request.done]}
        assert locked <= self.holds.keys(), "a locked prefix was evicted"
        sizes = self.cache.full_protected_size(), self.cache.full_evictable_size()
        counted = len(locked) * self.page_size, (len(self.holds) - len(locked)) * self.page_size
        assert sizes == counted, f"protected and evictable are said to be {sizes}, and are {counted}"
        for request in self.running:
            self._assert_path(request.node, request.prefixes[: request.done])

    def _assert_path(self, node: int, prefixes: Sequence[int]) -> None:
        pages = self._pages(self.cache.path_device_indices(node))
        assert pages == [self.holds[prefix] for prefix in prefixes], "a path holds what it was not filled with"

    def _audit_order(self) -> None:
        order, leaves = self.cache.tail.order, list(self.cache.tail.leaves())
        assert len(order) == len(leaves)
        assert bool(leaves) == bool(self.cache.full_evictable_size())
        assert sum(leaf.end - leaf.start for leaf in leaves) <= self.cache.full_evictable_size()
        for leaf in leaves:
            assert leaf.start % self.page_size == leaf.end % self.page_size == 0
            assert 0 <= leaf.start < leaf.end <= leaf.history

    def _audit_events(self) -> None:
        """Read what a subscriber is told, who cannot see a split."""
        for event in self.cache.take_events():
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        prefix = self._subscribed[block]
                        self._blocks[prefix] -= 1
                        assert self._blocks[prefix] >= 0, "a block is removed that was not there"
                case AllBlocksCleared():
                    self._blocks.clear()

    def _store(self, event: BlockStored) -> None:
        prefix = NAMESPACES.index((None, event.cache_salt))
        if event.parent_block_hash is not None:
            prefix = self._subscribed[event.parent_block_hash]
        size = event.block_size
        for number, block in enumerate(event.block_hashes):
            prefix = self._next(prefix, tuple(event.token_ids[number * size : (number + 1) * size]))
            assert self._subscribed.setdefault(block, prefix) == prefix, "one hash for two blocks"
            self._blocks[prefix] += 1
