"""One request after the other through a real cache, as a scheduler would serve it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from radix_tlru.learning.records import Turn
from radix_tlru.sglang.releases import insert_params
from radix_tlru.sglang.requests.turns import fingerprint_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult

__all__ = ["Lock", "OfflineCache"]


class Lock(NamedTuple):
    """A lock that is held on a path."""

    node: Any  # that the path ends at
    receipt: Any  # what SGLang wants back when it is released


class OfflineCache:
    """Serves requests one at a time through a real cache.

    Args:
        chunk: tokens that the server prefills at a time (``--chunked-prefill-size``), a multiple of the page size;
            None: all at once. Each chunk becomes a node of the tree, which is what stock eviction takes whole.
    """

    def __init__(self, cache: UnifiedRadixCache, chunk: int | None = None) -> None:
        self.cache = cache
        self.page_size: int = cache.page_size
        self.chunk = chunk

    @property
    def allocator(self) -> BaseTokenToKVPoolAllocator:
        """The pool's allocator."""
        return self.cache.token_to_kv_pool_allocator

    def request(
        self,
        tokens: Iterable[int],
        prompt: int = 0,
        stamp: float | None = None,
        answer: int | None = None,
        thought: int = 0,
        ending: Sequence[int] = (),
        session: str | None = None,
        finish: str | None = None,
        rid: str = "",
    ) -> int:
        """Serve a request and cache the whole pages of its context; returns the tokens it found cached.

        Args:
            tokens: of the context.
            prompt: how many tokens the prompt has: the first of them.
            stamp: when the request came, s. With it, a cache of ours is told of the turn that it was.
            answer: how many the answer has; None: the others.
            thought: of them, how many are reasoning, which no later prompt repeats.
            ending: the last of them, where they are known.
            session: that the client names. Where the cache has sessions, it is open from then on.
            finish: OpenAI's ``finish_reason`` of the answer, where it is known.
            rid: id of the request, by which it can be explained.

        Raises:
            MemoryError: the context is larger than the pool.
        """
        context = array("q", tokens)
        key = RadixKey(context).page_aligned(self.page_size)
        tail: Any = self.cache.components[ComponentType.FULL] if stamp is not None and len(key) else None
        with tail.learning_later() if tail is not None else nullcontext():
            node = self.cache.match_prefix(MatchPrefixParams(key=key)).last_device_node
            slots = self.slots(node)
            cached: int = slots.numel()
            lock = self._insert_chunks(key, slots, self.lock(node))
            try:
                if stamp is not None and len(key):
                    turn = Turn(
                        stamp,
                        prompt,
                        answer_len=len(context) - prompt if answer is None else answer,
                        context_len=len(key),
                        cached_len=min(cached, prompt),
                        fingerprint=fingerprint_of(key),
                        answer_ids=ending,
                        thought_len=thought,
                        session=session,
                        finish=finish,
                    )
                    tail.record_turn(lock.node, turn, rid)
                if session is not None and self.cache.enable_session_radix_cache:
                    self.name_session(session, lock.node)
            finally:
                self.unlock(lock)
        if tail is not None and not tail.learns_later:
            self.cache.use_idle_time()
        return cached

    def _insert_chunks(self, key: RadixKey, slots: torch.Tensor, lock: Lock) -> Lock:
        """Cache a context behind a locked path, whose slots are given, chunk by chunk. Returns the lock on all of it.

        If it does not fit, no lock is left.
        """
        done, inserted, length = slots.numel(), 0, len(key)
        try:
            while inserted < length:  # once at least: a request that finds all of itself cached still uses it
                end = min(done + (self.chunk or length), length)
                slots = torch.cat([slots, self.allocate(end - done)])
                so_far = key if end == length else key[:end]
                # What this request inserted before is no further use of it: lfu and slru count uses.
                params = insert_params(key=so_far, value=slots, prev_prefix_len=done, inserted_len=inserted)
                node = self.insert(params).last_device_node
                self.unlock(lock)
                done = inserted = end
                lock = self.lock(node)
        except BaseException:
            self.unlock(lock)
            raise
        return lock

    def touch(self, tokens: Iterable[int]) -> int:
        """A request with that prompt waits, and SGLang has what is cached of it used; returns how much that is.

        As ``touch_prefix`` of SGLang 0.5.23.
        """
        key = RadixKey(array("q", tokens)).page_aligned(self.page_size)
        found: int = self.cache.tree_core.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
        return found

    def name_session(self, session: str, node: Any) -> None:
        """The context that ends at a node was of that session, which is open from now on, if it was not."""
        generation = self.cache.ensure_session_generation(session)
        req = SimpleNamespace(session=None, session_id=session, session_generation=generation)
        self.cache.session_refs.register_session_ref(req, leaf=node)

    def close_session(self, session: str) -> None:
        """A client closes its session."""
        self.cache.release_radix_session(session)

    def insert(self, params: InsertParams) -> InsertResult:
        """Cache a context down to its end."""
        result: InsertResult = self.cache.insert(params)
        return result

    def slots(self, node: Any) -> torch.Tensor:
        """The slots of the pool that hold the tokens from the root to the end of a node."""
        return self.cache.tree_core.collect_full_device_indices(node, self.cache.root_node_handle())

    def lock(self, node: Any) -> Lock:
        """Keep the path to a node until it is unlocked."""
        return Lock(node, self.cache.inc_lock_ref(node).to_dec_params())

    def unlock(self, lock: Lock) -> None:
        """Give back a lock, once."""
        self.cache.dec_lock_ref(lock.node, lock.receipt)

    def allocate(self, tokens: int) -> torch.Tensor:
        """Slots for ``tokens``; evicts what is missing as SGLang's allocators do (``evict_for_alloc``)."""
        if not tokens:
            return torch.empty(0, dtype=torch.int64)
        missing = tokens - self.allocator.available_size()
        if missing > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=missing))
        slots = self.allocator.alloc(tokens)
        if slots is None:
            raise MemoryError(f"{tokens} tokens do not fit: {self.allocator.available_size()} are free")
        return slots

    def evict(self, tokens: int) -> int:
        """Evict at least ``tokens`` if there are as many; returns how many were."""
        return int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)

    def match(self, tokens: Iterable[int]) -> MatchResult:
        """Look up a prefix, which is a use of it."""
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def resident(self, tokens: Iterable[int]) -> int:
        """Tokens of the longest cached prefix, without using it."""
        matched, _, _ = self.cache.tree_core.match_full_device_prefix(RadixKey(array("q", tokens)))
        return int(matched)
