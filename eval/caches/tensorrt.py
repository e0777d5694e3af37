"""TensorRT-LLM's prioritised LRU: of the leaves with the lowest priority, the one that was released first goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.traces.request import Request

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
class _Block(Block):
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


class TensorRTCache(TreeCache[_Block]):
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
        super().__init__(capacity, page_size)
        self._retention = tuple(retention)
        self._releases = count(1)
        self._leaves = LeafQueue(self)  # a block's place: its priority, and its turn in the order of releases
        self._expiring: list[tuple[float, tuple[int, int], _Block]] = []  # (expiry in s, place, block)

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        while self._expiring and self._expiring[0][0] <= request.arrival_s:
            _, place, block = heappop(self._expiring)
            if block.place == place:
                block.priority, block.duration_s = DEFAULT_PRIORITY, None
                self._release(block)
                self._offer(block)

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        self._set_priorities(path, len(request.prompt))
        for block in reversed(path):
            self._release(block)
            if block.duration_s is not None and block.priority != DEFAULT_PRIORITY:
                heappush(self._expiring, (request.arrival_s + block.duration_s, block.place, block))

    def _set_priorities(self, path: Sequence[_Block], prompt: int) -> None:
        for block in path:
            block.duration_s = None
        for hint in self._retention:
            end = prompt if hint.end is None else min(hint.end, prompt)
            for block in path[-(-hint.start // self.page_size) : -(-end // self.page_size)]:
                block.priority, block.duration_s = hint.priority, hint.duration_s

    def _release(self, block: _Block) -> None:
        block.place = block.priority, next(self._releases)

    def _offer(self, block: _Block) -> None:
        self._leaves.push(block)

    def _victim(self) -> _Block:
        block = self._leaves.first()
        assert block is not None, "a full cache has a leaf that is not in use"
        return block
