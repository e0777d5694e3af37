"""The audit of a hybrid model's cache: also which prefixes have a window or a state, and what a match can continue.

The pool of the windows is audited like that of full attention, through the map from the slots of one to the slots of
the other. A state is audited by the prefix that it was handed over with.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertResult
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.soak.audit import AuditedCache
from eval.soak.prefixes import Context
from eval.soak.shape import Running, Shape
from radix_tlru.sglang.offline.hybrids import Hybrid, HybridCache, hybrid_params

WINDOW = 3  # pages, less half a one
STATES = 16  # more than can be locked at a time


def audited(shape: Shape) -> AuditedCache:
    """The audited cache of a shape."""
    return AuditedHybrid(shape) if shape.hybrid else AuditedCache(shape)


class AuditedHybrid(AuditedCache, HybridCache):
    """The steps of an :class:`~eval.soak.audit.AuditedCache` on the cache of a hybrid model."""

    def _params(self) -> CacheInitParams:
        shape, page = self.shape, self.shape.page_size
        window, states = "swa" in shape.hybrid, "mamba" in shape.hybrid
        hybrid = Hybrid(
            window=(WINDOW * page - page // 2) * window,
            window_pool=shape.capacity * 3 // 4 // page * page,
            states=STATES * states,
        )
        return hybrid_params(shape.capacity, hybrid, page, shape.core)

    def _forget(self) -> None:
        super()._forget()
        self.windows: dict[int, int] = {}  # prefix in the tree → the page of its windowed layers
        self._handed_over: dict[int, int] = {}  # state → the prefix that it was handed over with
        self.stated: set[int] = set()  # prefixes with a state in the tree
        self._spare: torch.Tensor | None = None

    # ---- steps ----

    def _insert(self, request: Running) -> None:
        if self.cache.supports_mamba():  # first, as it may evict what the request would find
            self._spare = super().allocate_state()
        super()._insert(request)
        if self._spare is not None:
            self.states.free(self._spare)
            self._spare = None

    def allocate_state(self) -> torch.Tensor:
        """The spare state if there is one, else a new one."""
        spare, self._spare = self._spare, None
        return super().allocate_state() if spare is None else spare

    def insert(self, params: Any) -> InsertResult:
        """Insert, and note which prefix the state is of."""
        result = super().insert(params)
        if params.mamba_value is not None and not result.mamba_exist:
            key = params.key
            context = Context(tuple(key.token_ids[: len(key)]), (key.extra_key, key.cache_salt))
            self._handed_over[int(params.mamba_value)] = self.prefixes.of(context)[-1]
        return result

    def evict_some(self, tokens: int) -> None:
        """Evict tokens, then windows and states, with the leaves that need them."""
        super().evict_some(tokens)
        wanted = EvictParams(
            swa_num_tokens=tokens * self.cache.supports_swa(), mamba_num=tokens % 3 * self.cache.supports_mamba()
        )
        self.cache.evict(wanted)
        self._after("evict hybrid")

    def _assert_evicted(self, evicted: int, wanted: int) -> None:
        assert evicted >= wanted, f"{evicted} tokens evicted, where {wanted} were wanted"
        assert evicted % self.page_size == 0, f"{evicted} tokens evicted, which are no whole pages"

    def _assert_refused(self, tokens: int) -> None:
        windowed = self.cache.swa_evictable_size() if self.cache.supports_swa() else 0
        if not self.cache.supports_swa() or self.allocator.swa_available_size() + windowed >= tokens:
            super()._assert_refused(tokens)

    def _usable(self, key: RadixKey, prefixes: Sequence[int]) -> int:
        lengths: list[int] = []  # of the nodes that are resident, from the last one
        core = self.cache.tree_core
        _, last, _ = core.match_full_device_prefix(key)
        node = core.node_by_id(last)
        while node is not core.root_node:
            lengths.append(len(node.key) // self.page_size)
            node = node.parent
        ends = list(accumulate(reversed(lengths)))
        assert max(ends, default=0) == self._found(prefixes), "a match did not end a node where what is resident ends"
        return max((end for end in ends if self._can_go_on(prefixes[:end])), default=0)

    def _can_go_on(self, prefixes: Sequence[int]) -> bool:
        """Whether a turn can continue a prefix: its window and its state are there."""
        has_state = not self.cache.supports_mamba() or prefixes[-1] in self.stated
        has_window = not self.cache.supports_swa() or self.windows.keys() >= set(prefixes[-WINDOW:])
        return has_state and has_window

    # ---- the audit ----

    @property
    def _free_pages(self) -> list[int]:
        if not self.cache.supports_swa():
            return super()._free_pages
        return list(self.allocator.full_attn_allocator.free_pages.tolist())

    def _audit_pool(self) -> None:
        super()._audit_pool()
        if self.cache.supports_swa():
            self._audit_windows()
        if self.cache.supports_mamba():
            self._audit_states()

    def _audit_windows(self) -> None:
        free: list[int] = self.allocator.swa_attn_allocator.free_pages.tolist()
        self.windows = {prefix: own for prefix, page in self.holds.items() if (own := self._windowed(page))}
        held = [own for request in self.running for page in request.pages if (own := self._windowed(page))]
        pages = [*free, *held, *self.windows.values()]
        assert sorted(pages) == list(range(1, self.allocator.size_swa // self.page_size + 1)), "a page of windows"
        sizes = self.cache.swa_protected_size() + self.cache.swa_evictable_size()
        assert sizes == len(self.windows) * self.page_size, f"{sizes} tokens of windows, and {len(self.windows)} pages"

    def _windowed(self, page: int) -> int:
        """The page of the windowed layers for a page of full attention; 0: none any more."""
        slots = self.allocator.full_to_swa_index_mapping[self._slots([page])]
        return self._pages(slots)[0] if bool(slots.any()) else 0

    def _audit_states(self) -> None:
        kept: list[int] = self.cache.all_mamba_values_flatten().tolist()
        spare = [] if self._spare is None else self._spare.tolist()
        states = [*self.states.free_slots.tolist(), *kept, *spare]
        assert len(set(states)) == len(states) == STATES, "a state is lost, or found twice"
        self.stated = {self._handed_over[state] for state in kept}
        assert len(self.stated) == len(kept), "two states of one prefix"
        assert self.stated <= self.holds.keys(), "a state of what is not resident"
        assert self.cache.mamba_protected_size() + self.cache.mamba_evictable_size() == len(kept)
