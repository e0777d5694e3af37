"""Conversations on a real cache of several tiers: device and host, and SGLang's file storage behind them.

A token's KV is a number here, which depends on all tokens up to it, as KV does: so every slot says what it holds,
wherever it was copied, and a page that came back under another prefix is noticed.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.mem_cache.utils import get_storage_hash_str

from radix_tlru import Config
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.tel import keep_within_budget
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.radix_cache import TailRadixCache
from radix_tlru.sglang.offline import WritePolicy, add_host_tier, cache_params
from tests.helpers.caches import Driver

THRESHOLD, NEXT_PROMPT = 600, 100
CONFIG = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)

FULL = ComponentType.FULL
PATIENCE_S = 60.0  # with threads that have nothing else to do

_MODULUS = 16_777_213  # a prime that float32 holds exactly


def kv_of(tokens: Iterable[int]) -> torch.Tensor:
    """What is computed for each of the tokens of a context."""
    states = accumulate(tokens, lambda state, token: (state * 8_191 + token + 1) % _MODULUS, initial=0)
    return torch.tensor(list(states)[1:], dtype=torch.float32)


def page_names(tokens: Sequence[int], page_size: int) -> list[str]:
    """What storage calls the whole pages of a context."""
    return get_storage_hash_str(array("q", tokens), None, page_size=page_size)


class Held(NamedTuple):
    """A node of the tree, and where it is held."""

    node: Any
    path: tuple[int, ...]  # tokens from the root to its end
    device: torch.Tensor | None  # slots
    host: torch.Tensor | None  # slots


class Waiting(NamedTuple):
    """A request in the queue, for which storage is being read."""

    handle: CacheRequestHandle
    tokens: Sequence[int]


class TieredDriver(Driver):
    """Conversations on a cache with a host tier of ``host`` tokens, and storage if it is given a directory.

    Args:
        ours: the configuration of our order; None: the unmodified cache of SGLang.
    """

    def __init__(
        self,
        pool: int,
        host: int,
        write_policy: WritePolicy = "write_through",
        ours: Config | None = CONFIG,
        page_size: int = 1,
        storage: Path | None = None,
    ) -> None:
        params = self._cache_params(pool, page_size)
        super().__init__(stock_cache(params) if ours is None else build_cache(params, ours, hierarchical=True))
        # SGLang rounds the host tier down, and adds a page.
        add_host_tier(self.cache, params, (host - page_size / 2) / pool, write_policy, storage)
        assert self.host_free == host
        self.storage, self.host_size = storage, host
        self._requests = 0

    def _cache_params(self, pool: int, page_size: int) -> CacheInitParams:
        return cache_params(pool, page_size)

    @property
    def host_pool(self) -> Any:
        """SGLang's pool of host memory."""
        return self.cache.cache_controller.mem_pool_host.anchor_entry.host_pool

    @property
    def host_free(self) -> int:
        return self.cache.cache_controller.mem_pool_host.available_size()

    @property
    def keys(self) -> torch.Tensor:
        """The keys of the device's KV pool, by slot."""
        return self.allocator.get_kvcache().k_buffer[0].view(-1)

    @property
    def host_keys(self) -> torch.Tensor:
        """Those of the host's."""
        return self.host_pool.k_buffer[0].view(-1)

    # ---- what a scheduler does ----

    def request(
        self, tokens: Iterable[int], prompt: int = 0, stamp: float | None = None, answer: int | None = None
    ) -> int:
        """Serve a request whose KV is computed where it is not on the device."""
        tokens = list(tokens)
        self._missing = kv_of(tokens)[self.resident(tokens) :]
        return super().request(tokens, prompt, stamp, answer)

    def allocate(self, tokens: int) -> torch.Tensor:
        """Slots for the next of the tokens of the request, computed."""
        slots = super().allocate(tokens)
        self.keys[slots], self._missing = self._missing[:tokens], self._missing[tokens:]
        return slots

    def turn(self, conversation: str, tokens: int) -> int:
        cached = super().turn(conversation, tokens)
        self.cache.check_hicache_events()
        return cached

    def load_back(self, tokens: Iterable[int]) -> bool:
        """From the host to the device; False if it is too little, or there is no room."""
        loaded = self.cache.load_back(self.match(tokens).best_match_node)
        self.cache.ready_to_load_host_cache()
        self.cache.check_hicache_events()
        return bool(loaded)

    def ask_storage(self, tokens: Sequence[int]) -> Waiting | None:
        """A request comes in: storage is asked for what the tree does not have of it, if it may be."""
        match = self.match(tokens)
        anchor = match.last_host_node
        if not (self.cache.is_backuped(anchor) or self.cache.is_root(anchor)):
            return None  # as SGLang's scheduler has it
        found = match.device_prefix_len + match.host_hit_length
        self._requests += 1
        waiting = Waiting(CacheRequestHandle(f"request-{self._requests}", 0), tokens)
        missing, last_hash = array("q", tokens[found:]), self.cache.get_last_hash_value(anchor)
        self.cache.prefetch_from_storage(
            waiting.handle, anchor, missing, last_hash, matched_prefix_tokens=tokens[:found]
        )
        return waiting

    def answered(self, waiting: Waiting) -> bool:
        """Whether storage has answered, and the answer is in the tree."""
        self.cache.check_hicache_events()
        return bool(self.cache.check_prefetch_progress(waiting.handle))

    def abort(self, waiting: Waiting) -> None:
        """The client is gone; what is still being read for it comes back to the host pool when it is read."""
        self.cache.release_aborted_request(waiting.handle)
        self.wait_until(self.knows_its_host_slots)

    def knows_its_host_slots(self) -> bool:
        """Whether none is with a thread that reads into it although nobody waits any more."""
        return sum(map(len, self._host_slots())) + self.host_free == self.host_size

    def serve(self, tokens: Sequence[int]) -> tuple[int, int]:
        """A whole request, every tier asked in turn; returns the tokens found cached, and those of them in storage."""
        waiting, stored = self.ask_storage(tokens), 0
        if waiting is not None:
            self.wait_until(lambda: self.answered(waiting))
            stored, _ = self.cache.pop_prefetch_loaded_span(waiting.handle)
        self.load_back(tokens)
        cached = self.request(tokens)
        self.cache.check_hicache_events()
        return cached, stored

    def settle(self) -> None:
        """Until everything that is to be copied is copied, down to storage."""
        under_way = self.cache.ongoing_write_through, self.cache.ongoing_load_back, self.cache.ongoing_backup
        self.wait_until(lambda: not any(under_way) and not self._to_be_released())

    def wait_until(self, done: Any) -> None:
        """Turn the event loop until something is so."""
        until = time.monotonic() + PATIENCE_S
        self.cache.check_hicache_events()
        while not done():
            assert time.monotonic() < until, "a thread of SGLang's does not answer"
            time.sleep(0.0005)
            self.cache.check_hicache_events()

    def _to_be_released(self) -> bool:
        """Whether host memory is on its way back to the pool."""
        return self.cache.enable_storage and not self.cache.cache_controller.host_mem_release_queue.empty()

    # ---- looking ----

    def leaf_of(self, conversation: str) -> Leaf:
        """The node that a conversation ends at, on whatever tier, as an order would see it."""
        tail, core = self.cache.tail, self.cache.tree_core
        return tail.leaf(core.node_by_id(self.match_conversation(conversation).best_match_node))

    def slots_of(self, conversation: str) -> torch.Tensor:
        """Where its tokens are that are on the device."""
        return self.slots(self.match_conversation(conversation).last_device_node)

    def tiers(self, conversation: str) -> tuple[int, int]:
        """Tokens on the device, and those behind them that are on the host alone. A use, as every match is."""
        match = self.match_conversation(conversation)
        return match.device_prefix_len, match.host_hit_length

    def held(self) -> Iterator[Held]:
        """Every node of the tree."""
        unvisited = [(self.cache.tree_core.root_node, ())]
        while unvisited:
            parent, above = unvisited.pop()
            for node in parent.children.values():
                path = above + tuple(node.key.token_ids)
                data = node.component_data[FULL]
                yield Held(node, path, data.value, data.host_value)
                unvisited.append((node, path))

    # ---- the audit ----

    def audit(self) -> None:
        """Raise AssertionError unless every tier holds what was computed, and every slot is accounted for."""
        on_device = []
        for node, path, device, host in self.held():
            computed = kv_of(path)[-len(node.key) :]
            if device is not None:
                on_device.append(device)
                if node.load_back_pending_id is None and not self.cache.ongoing_load_back:
                    assert torch.equal(self.keys[device], computed), "the device holds what was not computed"
            if host is not None and node.write_through_pending_id is None:
                assert torch.equal(self.host_keys[host], computed), "the host holds what was not computed"
            if node.hash_value is not None:
                assert node.hash_value == page_names(path, self.page_size)[-len(node.hash_value) :], (
                    "a page has another's name"
                )
        self._assert_once("device", on_device, self.allocator.available_size(), self.allocator.size)
        self._assert_once("host", self._host_slots(), self.host_free, self.host_size)
        self.cache.sanity_check()
        if isinstance(self.cache, TailRadixCache):
            self._audit_orders()

    def _audit_orders(self) -> None:
        """Each order has the leaves of its tier, and a leaf of the device knows how deep it goes on below."""
        tail, core = self.cache.tail, self.cache.tree_core
        config, device_leaves = tail.config, core.evictable_device_leaves
        for order, nodes in ((tail.order, device_leaves), (tail.host.order, core.evictable_host_leaves)):
            over_budget = 0
            for leaf in map(tail.leaf, nodes):
                assert leaf.start % self.page_size == leaf.end % self.page_size == 0
                assert 0 <= leaf.start < leaf.end <= leaf.history
                budget = leaf.history, config.next_prompt, order.policy.threshold, self.page_size
                over_budget += max(leaf.end - keep_within_budget(*budget), 0)
            assert (len(order), order.over_budget) == (len(nodes), over_budget)
        for node, path, _, _ in self.held():
            assert tail.leaf(node).end == len(path)
            while (node := node.parent) is not None:
                assert node not in device_leaves or tail.leaf(node).history >= len(path)

    def audit_storage(self) -> int:
        """Whether the pages in storage that the tree has, too, are as computed; returns how many those are."""
        pages = 0
        for node, path, _, _ in self.held():
            computed = kv_of(path)[-len(node.key) :].view(-1, self.page_size)
            for name, kv in zip(node.hash_value, computed, strict=True):
                for file in self.storage.glob(f"{name}_*.bin"):
                    keys = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32)[: self.page_size]
                    assert torch.equal(keys, kv), "storage holds what was not computed"
                    pages += 1
        return pages

    def _host_slots(self) -> list[torch.Tensor]:
        """Slots of the host in the tree, with those that storage is read into and those on their way back."""
        held = [host for _, _, _, host in self.held() if host is not None]
        reads = [info.host_indices for info in self.cache.ongoing_prefetch.values() if info.host_indices is not None]
        queue = list(self.cache.cache_controller.host_mem_release_queue.queue) if self.cache.enable_storage else []
        return [*held, *reads, *queue]

    @staticmethod
    def _assert_once(tier: str, held: Sequence[torch.Tensor], free: int, size: int) -> None:
        slots = torch.cat(held) if held else torch.empty(0)
        assert len(slots.unique()) == len(slots), f"a slot of the {tier} is held twice"
        assert len(slots) + free == size, f"{len(slots)} slots of the {tier} are held and {free} free, of {size}"


def stock_cache(params: CacheInitParams) -> UnifiedRadixCache:
    """The unmodified cache of SGLang on its Python core, to be given a host tier."""
    params.tree_components, params.tree_core_backend = (FULL,), "python"
    return UnifiedRadixCache(params)
