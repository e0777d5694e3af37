"""The steps of a scheduler on a real cache, each followed by an audit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.soak.ledger import Ledger
from eval.soak.prefixes import Context
from eval.soak.shape import Running
from radix_tlru.policy.tel import round_up

MAX_REQUESTS = 4  # that hold a lock at a time


class AuditedCache(Ledger):
    """Steps of a scheduler, each followed by :meth:`audit`. Arguments are any whole numbers, 0 or more.

    A step raises AssertionError as soon as something is lost, found twice, or not as the dictionary has it.
    """

    def _after(self, step: str) -> None:
        self.steps[step] += 1
        self.audit()

    def start(self, number: int, pages: int) -> None:
        """A request arrives: what is cached of it is matched and locked."""
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
        """Match a context, which counts as a use of it."""
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
        """Resident pages that a match has to find."""
        return self._found(prefixes)

    def prefill(self, number: int, pages: int) -> None:
        """A chunk of a request is computed and cached."""
        if self.running:
            request = self.running[number % len(self.running)]
            if self._compute(request, number % (max(pages, 1) * self.page_size) + 1):
                self._insert(request)
            self._after("prefill")

    def decode(self, number: int) -> None:
        """One or two tokens for every request; they are cached with the request."""
        for request in list(self.running):
            self._compute(request, 1 + number % 2)
        self._after("decode")

    def finish(self, number: int) -> None:
        """A request ends well: it is cached whole, and its lock and its last partial page are released."""
        if not self.running:
            return
        request = self.running[number % len(self.running)]
        if self._compute(request, len(request.context.tokens)):
            self._insert(request)
            prompt = self.prefixes.key(request.context, request.prompt)
            if 0 < len(prompt) < request.done * self.page_size:  # SGLang splits there, so the answer is a leaf
                values = self.cache.path_device_indices(request.node)[: len(prompt)]
                self.insert(InsertParams(key=prompt, value=values, prev_prefix_len=len(prompt)))
            if self.shape.sessions and number % 4 and request.done:
                session = f"session {number % self.shape.sessions}"
                self.name_session(session, request.node)
                self.sessions.refer(session, request.prefixes[: request.done])
            self._drop(request)
        self._after("finish")

    def close_one(self, number: int) -> None:
        """A client closes its session, which need not exist."""
        if self.shape.sessions:
            session = f"session {number % self.shape.sessions}"
            self.close_session(session)
            self.sessions.close(session)
            self._after("close")

    def abort(self, number: int) -> None:
        """A request ends at once: what it computed and did not cache is lost."""
        if self.running:
            self._drop(self.running[number % len(self.running)])
            self._after("abort")

    def _drop(self, request: Running) -> None:
        if request.pages:
            self.allocator.free_segment(self._slots(request.pages), start_pos=request.done * self.page_size)
        self.cache.unlock(request.lock)
        self.running.remove(request)

    def _compute(self, request: Running, tokens: int) -> bool:
        """Give slots to the next tokens of a request; without room for them it is aborted."""
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
        self._audit_pool()  # making room may have evicted pages
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
        """Pages are allocated and freed again."""
        held = self._allocate(pages)
        if held:
            self.allocator.free_segment(self._slots(held), start_pos=0)
        self._after("press")

    def _allocate(self, pages: int) -> list[int] | None:
        """So many pages; None if they were refused, which is checked to be right."""
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

    def _assert_refused(self, tokens: int) -> None:
        self._dereference()
        free, evictable = self.free_tokens, self.cache.full_evictable_size()
        assert free + evictable < tokens, f"{tokens} tokens refused, {free} are free and {evictable} evictable"

    def evict_some(self, tokens: int) -> None:
        """Evict at least so many tokens, exact to the page or to the trim chunk."""
        free, evictable = self.free_tokens, self.cache.full_evictable_size()
        evicted = self.evict(tokens)
        freed = self.free_tokens - free
        assert evicted == freed, f"{evicted} tokens evicted and {freed} freed"
        self._assert_evicted(evicted, min(round_up(tokens, self.page_size), evictable))
        self._after("evict")

    def _assert_evicted(self, evicted: int, wanted: int) -> None:
        """As many tokens as wanted were evicted, and less than a trim chunk more."""
        beyond = evicted - wanted
        assert 0 <= beyond < self.shape.trim_chunk, f"{evicted} tokens evicted, where {wanted} were wanted"
        assert beyond % self.page_size == 0, f"{evicted} tokens evicted, which are no whole pages"
        resident = self._dereference()
        left = resident - self._locked - self.sessions.referred if resident is not None else None
        assert not left, "what a session refers to did not go last"

    def flush(self) -> None:
        """Empty the cache, after the running requests have ended."""
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
        self.cache.tail.renew_prices()  # as a turn does, at whose end prices are due
        self._after("threshold")
