"""The audit of a hierarchical cache: two pools, copies between them, and what is in a page read from the page itself.

Each page of the device pool is filled with the number of the prefix that it was computed for, so that a copy to the
host, and back into whatever page is free then, shows what was copied. Nothing may be copied or dropped wrongly without
a page holding a number that is not that of its place in the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sglang.srt.disaggregation.kv_events import StorageMedium
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from eval.audit import NAMESPACES, AuditedCache, Context, Shape
from radix_tlru.config import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import WritePolicy, add_host_tier

__all__ = ["AuditedTiers", "TieredShape"]

FULL = ComponentType.FULL


@dataclass(frozen=True)
class TieredShape(Shape):
    """What kind of hierarchical cache is audited."""

    write_policy: WritePolicy = "write_through"
    ratio: float = 0.75
    """Size of the host pool, in pools of the device. Below 1, so that both are short of room."""

    host_budget: int = 6
    """ξ of the host in pages."""

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.write_policy}"


class AuditedTiers(AuditedCache):
    """An :class:`AuditedCache` with a host tier; what it copies is under way until :meth:`settle`."""

    shape: TieredShape

    def _build(self, params: CacheInitParams, config: Config) -> UnifiedRadixCache:
        config = replace(config, host_threshold=self.shape.host_budget * self.shape.page_size)
        cache = build_cache(params, config, hierarchical=True)
        add_host_tier(cache, params, self.shape.ratio, self.shape.write_policy)
        self._pool = params.token_to_kv_pool_allocator.get_kvcache()
        self._host_pool = cache.cache_controller.mem_pool_host.anchor_entry.host_pool
        return cache

    def _forget(self) -> None:
        super()._forget()
        self.host_holds: dict[int, int] = {}  # prefix → its page in the tree's part of the host pool
        self._host_blocks: Counter[int] = Counter()

    # ---- steps ----

    def settle(self) -> None:
        """The scheduler hears of the copies that are done, which here are all."""
        self.cache.check_hicache_events()
        self._after("settle")

    def drop(self, tokens: int) -> None:
        """Something else needs host memory: ``tokens`` tokens of it, to the page."""
        pages = -(-tokens // self.page_size)
        only = self._only_on_host()
        free = self._host_pool.available_size()
        dropped = self.cache.evict_host(tokens)
        assert dropped == self._host_pool.available_size() - free
        assert dropped >= min(pages, len(only)) * self.page_size, f"{dropped} dropped, {len(only)} pages could be"
        self._after("drop")

    def flush(self) -> None:
        while self.running:
            self.finish(0)
        self.settle()
        super().flush()

    def _match(self, context: Context, prefixes: Sequence[int]) -> tuple[int, int]:
        key = self._key(context, len(context.tokens))
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        found, known, page = self._found(prefixes), self._known(prefixes), self.page_size
        assert match.device_prefix_len == found * page, f"a match of {match.device_prefix_len}, {found} pages are there"
        assert match.host_hit_length == (known - found) * page, f"{match.host_hit_length} on the host, not {known}"
        node: int = match.last_device_node
        self._assert_path(node, prefixes[:found])
        if known > found and self.cache.load_back(match.best_match_node):
            self.cache.ready_to_load_host_cache()
            self._audit_pool()
            found, node = known, match.best_match_node
            assert self._found(prefixes) >= found, "what was loaded is not there"
            self._assert_path(node, prefixes[:found])
            self.steps["load back"] += 1
        return found, node

    # ---- the dictionary ----

    def _known(self, prefixes: Sequence[int]) -> int:
        return next(
            (at for at, prefix in enumerate(prefixes) if prefix not in self.holds and prefix not in self.host_holds),
            len(prefixes),
        )

    def _fill(self, pages: Sequence[int], prefixes: Sequence[int]) -> None:
        for page, prefix in zip(pages, prefixes, strict=True):
            for buffer in (*self._pool.k_buffer, *self._pool.v_buffer):
                buffer[page * self.page_size : (page + 1) * self.page_size] = prefix

    def _filled_for(self, pages: Sequence[int]) -> list[int]:
        return self._contents([*self._pool.k_buffer, *self._pool.v_buffer], pages)

    def _contents(self, layers: Sequence[torch.Tensor], pages: Sequence[int]) -> list[int]:
        slots = self._slots(pages)
        rows = torch.stack([layer[slots].reshape(len(pages), self.page_size) for layer in layers])
        assert (rows == rows[0, :, :1]).all(), "a page holds parts of several"
        prefixes: list[int] = rows[0, :, 0].int().tolist()
        return prefixes

    def _only_on_host(self) -> set[int]:
        return self.host_holds.keys() - self.holds.keys()

    # ---- the audit ----

    def audit(self) -> None:
        super().audit()
        if not self.cache.ongoing_write_through:  # a subscriber hears of a copy when it is done
            told = Counter(self._told[prefix] for prefix in self.host_holds)
            assert +self._host_blocks == told, "a subscriber knows other blocks than those on the host"

    def _audit_pool(self) -> None:
        super()._audit_pool()
        pool = self._host_pool
        free = torch.cat([pool.free_slots, *pool.release_slots]).tolist()
        slots = [node.component_data[FULL].host_value for node in self._nodes()]
        held = [page for value in slots if value is not None for page in self._pages(value)]
        assert sorted([*free, *self._slots(held).tolist()]) == list(range(pool.size)), "a host page is lost, or twice"
        # A copy that is under way was made when it was asked for or will be when it is submitted.
        self.cache.flush_pending_backups()
        layers = [*pool.k_buffer, *pool.v_buffer]
        self.host_holds = dict(zip(self._contents(layers, held), held, strict=True))
        assert len(self.host_holds) == len(held), "a prefix is on the host twice"
        for parent in map(self._parents.__getitem__, self.host_holds):
            above = self.host_holds.keys() | (self.holds.keys() if self.shape.write_policy == "write_back" else set())
            assert parent in above or parent < len(NAMESPACES), "a prefix lost the one before it"

    def _locked_by_cache(self) -> set[int]:
        ongoing: list[Any] = [*self.cache.ongoing_write_through.values(), *self.cache.ongoing_load_back.values()]
        paths = [self.cache.path_device_indices(each.node_id) for each in ongoing if each.lock_params is not None]
        return {prefix for path in paths for prefix in self._filled_for(self._pages(path))}

    def _audit_order(self) -> None:
        super()._audit_order()
        tail, core = self.cache.tail, self.cache.tree_core
        leaves = [tail.leaf(node) for node in core.evictable_host_leaves]
        assert len(tail.host.order) == len(leaves)
        assert bool(leaves) == bool(self._only_on_host()), "what is on the host alone cannot be dropped"
        assert sum(leaf.end - leaf.start for leaf in leaves) <= len(self._only_on_host()) * self.page_size
        for node in self._nodes():
            leaf = tail.leaf(node)
            assert 0 <= leaf.start < leaf.end <= leaf.history
            if node.evicted and node.parent is not core.root_node:
                assert tail.leaf(node.parent).history >= leaf.history, "a path forgot how deep it was"

    def _blocks_on(self, medium: str | None) -> Counter[int]:
        return self._host_blocks if medium == StorageMedium.CPU else self._blocks

    def _nodes(self) -> Iterator[Any]:
        core = self.cache.tree_core
        return (node for node in core._collect_all_nodes() if node is not core.root_node)
