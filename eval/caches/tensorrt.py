"""TensorRT-LLM's prioritised LRU: of the leaves with the lowest priority, the one that was released first goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

from eval.caches.pages import page_ids
from eval.caches.simulator import known_prefix
from eval.traces.request import Request

__all__ = ["DEFAULT_PRIORITY", "Retention", "TensorRTCache"]

DEFAULT_PRIORITY = 35
"""Retention priority of a block that no hint is given for."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A hint of TensorRT-LLM: the priority of the tokens [start, end) of every prompt, and for how long it holds.

    Raises:
        ValueError: an empty range, or a priority or duration out of range.
    """

    start: int
    end: int | None  # None: to the end of the prompt
    priority: int  # 0 to 100; the lowest goes first
    duration_s: float | None = None  # since the block was last released; None: for ever

    def __post_init__(self) -> None:
        if self.start < 0 or (self.end is not None and self.end <= self.start):
            raise ValueError(f"retention of tokens {self.start} to {self.end}: must be a range of at least one token")
        if not 0 <= self.priority <= 100:
            raise ValueError(f"retention priority {self.priority}: must be 0 to 100")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ValueError(f"retention duration {self.duration_s} s: must be more than 0, or None")


@dataclass(eq=False, slots=True)
class _Block:
    name: int
    parent: _Block | None
    children: int = 0
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None
    released: int = 0  # place in the order of releases; 0 while a request uses it or it is evicted


class TensorRTCache:
    """The eviction rule of TensorRT-LLM.

    A request gives its blocks the priority of the range that their first token lies in. A block in no range gets 35
    when it is allocated, and keeps its priority when it is found again. Ranges speak of prompts: blocks of answers have
    35. A request releases its blocks from the last to the first. When the duration of a hint has passed since then, the
    block is back at 35, as if released at that moment. Without hints every block has 35, and the rule is page-granular
    LRU.

    Only leaves are evicted, as the documentation says. Code of 2025 and later can also take a block whose descendants
    have a higher priority, and loses those with it: the same, as long as priorities do not rise along a prompt.

    Source: NVIDIA/TensorRT-LLM, ``docs/source/features/kvcache.md``; ``cpp/tensorrt_llm/batch_manager/`` in
    ``evictionPolicy.cpp`` (``getFreeBlock``, ``releaseBlock``, ``claimBlock``, ``refresh``) and ``kvCacheManager.cpp``
    (``loadOrAllocateBlocks``, ``releaseBlocks``); ``KvCacheRetentionConfig::getPerBlockRetentionPriorityDuration``.

    Args:
        capacity, page_size: tokens.
        retention: hints that every request carries, in order and without overlap. ``[Retention(0, 1000, 100)]`` keeps
            a system prompt of 1,000 tokens for as long as anything else can go.

    Raises:
        ValueError: ranges overlap or are out of order.
    """

    def __init__(self, capacity: int, page_size: int = 1, retention: Sequence[Retention] = ()) -> None:
        for first, second in pairwise(retention):
            if first.end is None or first.end > second.start:
                overlap = f"overlaps the one from {second.start}"
                raise ValueError(f"retention of tokens {first.start} to {first.end}: {overlap}")
        self.page_size = page_size
        self._pages = capacity // page_size
        self._units: dict[int, int] = {}
        self._retention = tuple(retention)
        self._blocks: dict[int, _Block] = {}
        self._releases = count(1)
        # Heaps with stale entries: an entry holds while its block's place in the order of releases is still the same.
        self._leaves: list[tuple[int, int, _Block]] = []  # (priority, released, block)
        self._expiring: list[tuple[float, int, _Block]] = []  # (expiry in s, released, block)

    @property
    def resident(self) -> int:
        """Tokens cached."""
        return len(self._blocks) * self.page_size

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        self._expire(request.arrival_s)
        names = page_ids(request.context, self.page_size, self._units)[: self._pages]
        hits = known_prefix(names, self._blocks)
        path = [self._blocks[name] for name in names[:hits]]
        for block in path:
            block.released = 0
        for _ in range(len(self._blocks) + len(names) - hits - self._pages):
            self._evict()
        for name in names[hits:]:
            block = _Block(name, path[-1] if path else None)
            if block.parent is not None:
                block.parent.children += 1
            self._blocks[name] = block
            path.append(block)
        self._set_priorities(path, len(request.prompt))
        for block in reversed(path):
            self._release(block, request.arrival_s)
        return min(hits * self.page_size, len(request.prompt) // self.page_size * self.page_size)

    def _set_priorities(self, path: Sequence[_Block], prompt: int) -> None:
        for block in path:
            block.duration_s = None
        for hint in self._retention:
            end = prompt if hint.end is None else min(hint.end, prompt)
            for block in path[-(-hint.start // self.page_size) : -(-end // self.page_size)]:
                block.priority, block.duration_s = hint.priority, hint.duration_s

    def _release(self, block: _Block, now_s: float) -> None:
        block.released = next(self._releases)
        if block.duration_s is not None and block.priority != DEFAULT_PRIORITY:
            heappush(self._expiring, (now_s + block.duration_s, block.released, block))
        self._add_leaf(block)

    def _add_leaf(self, block: _Block) -> None:
        if block.released and not block.children:
            heappush(self._leaves, (block.priority, block.released, block))

    def _expire(self, now_s: float) -> None:
        while self._expiring and self._expiring[0][0] <= now_s:
            _, released, block = heappop(self._expiring)
            if block.released == released:
                block.priority, block.duration_s = DEFAULT_PRIORITY, None
                block.released = next(self._releases)
                self._add_leaf(block)

    def _evict(self) -> None:
        while True:
            _, released, block = heappop(self._leaves)
            if block.released == released:  # then it is still a leaf: a request that extends a block releases it anew
                break
        block.released = 0
        del self._blocks[block.name]
        if block.parent is not None:
            block.parent.children -= 1
            self._add_leaf(block.parent)
