"""A real cache with a dictionary beside it: which prefix each page of the pool was filled for.

It is known without looking into the tree who has a page: it is free, a request holds it, or it is in the tree. So the
resident prefixes are known, and with them what every match has to find, what is protected, and what can be evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.cache_init_params import CacheInitParams

from eval.caches.simulator import known_prefix
from eval.soak.prefixes import NAMESPACES, Prefixes, RandomContexts, Subscriber
from eval.soak.sessions import OpenSessions
from eval.soak.shape import Running, Shape
from radix_tlru.config import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.sessions import SessionOrder
from radix_tlru.sglang.offline import OfflineCache, cache_params


class Ledger(OfflineCache):
    """A real cache, the dictionary, and :meth:`audit`, which compares the two."""

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
        self.contexts = RandomContexts(shape.capacity)
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
        self._histories: dict[int, int] = {}  # prefix in the tree → pages of the longest path through it so far
        self.sessions = OpenSessions()

    # ---- the dictionary ----

    def _found(self, prefixes: Sequence[int]) -> int:
        """Pages of the longest resident prefix."""
        return known_prefix(prefixes, self.holds)

    def _slots(self, pages: Sequence[int]) -> torch.Tensor:
        slots = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size + torch.arange(self.page_size)
        return slots.reshape(-1)

    def _pages(self, slots: torch.Tensor) -> list[int]:
        """The pages that slots make up, which must be whole."""
        pages: list[int] = (slots[:: self.page_size] // self.page_size).tolist()
        assert torch.equal(slots, self._slots(pages)), "a page is in pieces"
        return pages

    @property
    def free_tokens(self) -> int:
        """Tokens of full attention that nothing has."""
        return len(self._free_pages) * self.page_size

    @property
    def _free_pages(self) -> list[int]:
        return list(self.allocator.free_pages.tolist())

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

    # ---- the audit ----

    def audit(self) -> None:
        """Check every page, lock, size, leaf and event.

        Raises:
            AssertionError: something is lost, found twice, or not as the dictionary has it.
        """
        self._audit_pool()
        self._audit_locks()
        self._audit_order()
        self.subscriber.read(self.cache.take_events())
        expected = Counter(self.prefixes.told[prefix] for prefix in self.holds)
        assert +self.subscriber.blocks == expected, "a subscriber knows other blocks than those that are resident"
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
        self._note_histories()

    def _note_histories(self) -> None:
        """Of what is gone the part that is left remembers how long it was; called before each insert, too."""
        parents = self.prefixes.parents
        self._histories = {prefix: self._histories.get(prefix, 0) for prefix in self.holds}
        for end in self.holds:
            prefix, pages = end, self.prefixes.pages[end]
            while self._histories.get(prefix, pages) < pages:
                self._histories[prefix] = pages
                prefix = parents[prefix]

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
        pages, page = self.prefixes.pages, self.page_size
        ends = self.holds.keys() - {self.prefixes.parents[prefix] for prefix in self.holds} - self._locked
        known = sorted((pages[end] * page, self._histories[end] * page) for end in ends)
        found = sorted((leaf.end, leaf.history) for leaf in leaves)
        assert found == known, f"leaves end, and their paths have ended, at {found} and not at {known}"
        assert sum(leaf.end - leaf.start for leaf in leaves) <= self.cache.full_evictable_size()
        tel_safe = sum(map(order.tel_safe_tokens, leaves)) if order.policy.sees_threshold else None
        assert order.over_budget == tel_safe
        if self.shape.sessions:
            self._audit_sessions()
        for leaf in leaves:
            assert leaf.start % page == 0
            assert 0 <= leaf.start < leaf.end

    def _audit_sessions(self) -> None:
        """Each leaf is in the right one of the two orders: referred to by a session, or not."""
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
