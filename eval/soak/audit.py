"""A real cache that is audited after every step, by a dictionary of which prefix each page was filled for.

Who has a page of the pool is known without looking into the tree: it is free, a request holds it, or the tree does.
So the resident prefixes are known, and with them what every match has to find, what is protected, and what can go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.soak.prefixes import NAMESPACES, Context, Prefixes, PrefixIndex, Subscriber
from eval.soak.sessions import OpenSessions
from radix_tlru.config import Config
from radix_tlru.policy.tel import round_up
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.sessions import SessionOrder
from radix_tlru.sglang.offline.caches import Core, OfflineCache, cache_params

__all__ = ["AuditedCache", "Running", "Shape"]

MAX_REQUESTS = 4  # that hold a lock at a time


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
    beside: tuple[Literal["swa", "mamba"], ...] = ()
    """What a hybrid model caches beside the KV of full attention."""

    sessions: int = 0
    """That clients name, and close; 0: the cache knows of none (``--enable-session-radix-cache``)."""

    def __str__(self) -> str:
        weight = f"-w{self.median_weight:g}" if self.median_weight else ""
        trim = f"-trim{self.trim_pages}" if self.trim_pages > 1 else ""
        beside = "".join(f"-{each}" for each in self.beside)
        sessions = "-sessions" if self.sessions else ""
        keys = "pairs" if self.is_eagle else "tokens"
        return f"{self.core}-{keys}-page{self.page_size}{weight}{trim}{beside}{sessions}"

    @property
    def capacity(self) -> int:
        """Tokens of the pool."""
        return self.pages * self.page_size

    @property
    def trim_chunk(self) -> int:
        """Tokens."""
        return self.trim_pages * self.page_size


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
        params = self._params()
        params.is_eagle, params.enable_kv_cache_events = shape.is_eagle, True
        params.enable_session_radix_cache = shape.sessions > 0
        page = shape.page_size
        self.estimate = page + page // 2
        weight, chunk = shape.median_weight, shape.trim_chunk
        config = Config("tlru", 6 * page, self.estimate, median_weight=weight, trim_chunk=chunk)
        super().__init__(build_cache(params, config))
        self.running: list[Running] = []
        self.contexts = PrefixIndex(shape.capacity)
        self.steps: Counter[str] = Counter()
        self._forget()
        self.audit()

    def _params(self) -> CacheInitParams:
        return cache_params(self.shape.capacity, self.shape.page_size, self.shape.core)

    def _forget(self) -> None:
        self.prefixes = Prefixes(self.page_size, self.shape.is_eagle)
        self.subscriber = Subscriber(self.prefixes)
        self._filled: dict[int, int] = {}  # page → the prefix that it was filled for
        self.holds: dict[int, int] = {}  # prefix → its page in the tree
        self.sessions = OpenSessions()

    # ---- the dictionary ----

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

    # ---- steps ----

    def start(self, number: int, pages: int) -> None:
        """A request arrives: what is cached of it is found, and locked."""
        if len(self.running) == MAX_REQUESTS:
            return
        context = self.contexts.next(number, max(pages, 1) * self.page_size)
        prefixes = self.prefixes.of(context)
        found, node = self._match(context, prefixes)
        lock = self.cache.lock(node)
        prompt = Random(number).randrange(1, len(context.tokens) + 1)
        self.running.append(Running(context, prompt, prefixes, found, node, lock, found * self.page_size))
        self._after("start")

    def look_up(self, number: int, pages: int) -> None:
        """A look at what is cached of a context, which is a use of it."""
        context = self.contexts.next(number, max(pages, 1) * self.page_size)
        self._match(context, self.prefixes.of(context))
        self._after("match")

    def _match(self, context: Context, prefixes: Sequence[int]) -> tuple[int, int]:
        key = self.prefixes.key(context, len(context.tokens))
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        matched, found = match.device_prefix_len, self._usable(key, prefixes)
        assert matched == found * self.page_size, f"a match of {matched} tokens, {found} pages are of use"
        node: int = match.last_device_node
        self._assert_path(node, prefixes[:found])
        return found, node

    def _usable(self, key: RadixKey, prefixes: Sequence[int]) -> int:
        """Pages that a match has to find, of those that are resident."""
        return self._found(prefixes)

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
            prompt = self.prefixes.key(request.context, request.prompt)
            if 0 < len(prompt) < request.done * self.page_size:  # SGLang splits there: an answer can go alone
                values = self.cache.path_device_indices(request.node)[: len(prompt)]
                self.insert(InsertParams(key=prompt, value=values, prev_prefix_len=len(prompt)))
            if self.shape.sessions and number % 4 and request.done:
                session = f"session {number % self.shape.sessions}"
                self.name_session(session, request.node)
                self.sessions.refer(session, request.prefixes[: request.done])
            self._drop(request)
        self._after("finish")

    def close_one(self, number: int) -> None:
        """A client closes its session, which may be none."""
        if self.shape.sessions:
            session = f"session {number % self.shape.sessions}"
            self.close_session(session)
            self.sessions.close(session)
            self._after("close")

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
        key = self.prefixes.key(request.context, request.computed)
        done = len(key) // self.page_size
        if done <= request.done:
            return
        self._audit_pool()  # there may be less than before, as room was made
        own, request.pages = request.pages[: done - request.done], request.pages[done - request.done :]
        self._filled.update(zip(own, request.prefixes[request.done : done], strict=True))
        values = torch.cat([self.cache.path_device_indices(request.node), self._slots(own)])
        params = InsertParams(key=key, value=values, prev_prefix_len=request.done * self.page_size)
        result = self.insert(params)
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
        free, evictable = self.free_tokens, self.cache.full_evictable_size()
        try:
            slots = self.allocate(tokens)
        except MemoryError:
            self._assert_refused(tokens)
            return None
        missing = max(tokens - free, 0)
        wanted = min(max(missing, self.shape.trim_chunk), evictable) if missing else 0
        evicted = evictable - self.cache.full_evictable_size()
        self._assert_evicted(evicted, wanted)
        return self._pages(slots)

    @property
    def free_tokens(self) -> int:
        """Tokens of full attention that nothing has."""
        return len(self._free_pages) * self.page_size

    @property
    def _free_pages(self) -> list[int]:
        return list(self.allocator.free_pages.tolist())

    def _assert_refused(self, tokens: int) -> None:
        self._dereference()
        free, evictable = self.free_tokens, self.cache.full_evictable_size()
        assert free + evictable < tokens, f"{tokens} tokens refused, {free} are free and {evictable} evictable"

    def evict_some(self, tokens: int) -> None:
        """Evict at least so many tokens, to the page, or to the trim chunk if there is one."""
        free, evictable = self.free_tokens, self.cache.full_evictable_size()
        evicted = self.evict(tokens)
        freed = self.free_tokens - free
        assert evicted == freed, f"{evicted} tokens evicted and {freed} freed"
        self._assert_evicted(evicted, min(round_up(tokens, self.page_size), evictable))
        self._after("evict")

    def _assert_evicted(self, evicted: int, wanted: int) -> None:
        """What is wanted is evicted, and of the last leaf up to a trim chunk: to the page if that is one page."""
        beyond = evicted - wanted
        assert 0 <= beyond < self.shape.trim_chunk, f"{evicted} tokens evicted, where {wanted} were wanted"
        assert beyond % self.page_size == 0, f"{evicted} tokens evicted, which are no whole pages"
        resident = self._dereference()
        left = resident - self._locked - self.sessions.referred if resident is not None else None
        assert not left, "what a session refers to did not go last"

    def _dereference(self) -> set[int] | None:
        """Forget what sessions referred to and is no more; if there was any, returns what is still resident."""
        if not self.sessions:
            return None
        slots = self.cache.tree_core.all_values_flatten().sort().values
        resident = {self._filled[page] for page in self._pages(slots)}
        if self.sessions.referred <= resident:
            return None
        self.sessions.keep_only(resident)
        return resident

    def flush(self) -> None:
        """Drop everything, once the requests that run have ended."""
        while self.running:
            self.finish(0)
        self.cache.reset()
        self.cache.req_to_token_pool.clear()
        self.allocator.clear()
        self.subscriber.read(self.cache.take_events())
        assert not self.subscriber.blocks, "a subscriber was not told of the flush"
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
        self.subscriber.read(self.cache.take_events())
        told = Counter(self.prefixes.told[prefix] for prefix in self.holds)
        assert +self.subscriber.blocks == told, "a subscriber knows other blocks than those that are resident"
        self.cache.sanity_check()

    def _audit_pool(self) -> None:
        self._dereference()
        free = self._free_pages
        held = [page for request in self.running for page in request.pages]
        elsewhere = {*free, *held}
        assert len(elsewhere) == len(free) + len(held), "a page is free twice, or free and in a request"
        pages = [page for page in range(1, self.shape.pages + 1) if page not in elsewhere]
        slots = self.cache.tree_core.all_values_flatten().sort().values
        assert self._pages(slots) == pages, "the tree does not hold what nobody else does"
        self.holds = {self._filled[page]: page for page in pages}
        assert len(self.holds) == len(pages), "a prefix is resident twice"
        for parent in map(self.prefixes.parents.__getitem__, self.holds):
            assert parent in self.holds or parent < len(NAMESPACES), "a prefix lost the one before it"

    @property
    def _locked(self) -> set[int]:
        return {prefix for request in self.running for prefix in request.prefixes[: request.done]}

    def _audit_locks(self) -> None:
        locked = self._locked
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
        assert order.over_budget == sum(map(order.tel_safe_tokens, leaves))
        if self.shape.sessions:
            self._audit_sessions()
        for leaf in leaves:
            assert leaf.start % self.page_size == leaf.end % self.page_size == 0
            assert 0 <= leaf.start < leaf.end <= leaf.history

    def _audit_sessions(self) -> None:
        """Each leaf is in the part of the order that it belongs to."""
        core, order = self.cache.tree_core, self.cache.tail.order
        assert isinstance(order, SessionOrder)
        prefix_of = {page: prefix for prefix, page in self.holds.items()}
        referred = self.sessions.referred
        held = set()
        for node in core.evictable_device_leaves:
            last = self._pages(self.cache.path_device_indices(node.id))[-1]
            if prefix_of[last] in referred:
                held.add(node.id)
        assert order.referred == held, "the order does not know what sessions refer to"
