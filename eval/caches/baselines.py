"""What other engines evict, behind the simulator's interface: SGLang's own caches, vLLM's and TensorRT-LLM's rules.

SGLang's policies run as the real classes. The two others are the rule alone, on the same pages, requests and pinned
paths as the simulator's, so that a difference in the figures is one of eviction and of nothing else: a wholly cached
prompt hits wholly (vLLM and TensorRT-LLM compute its last token again), equal pages are held once, there is no second
tier. One request is served at a time.

================  ====================================================================================================
name              rule, and where it is written
================  ====================================================================================================
sglang-lru        least recently used node first
sglang-tlru       nodes beyond the budget first, then lru (paper, Algorithm 1, on whole nodes)
sglang-slru       nodes that only one request has used first, then lru in each of the two segments
sglang-lfu        nodes that the fewest requests have used first, then lru
sglang-priority   lowest priority of a request first, then lru; requests of a trace have none, so it is lru
…-sessions        lru or tlru, and conversations are sessions, which agents close (``--enable-session-radix-cache``);
                  beside them ``real-tlru-sessions`` and ``real-etlru-sessions`` are ours, likewise real caches
…-strip-thinking  lru or tlru, and of an answer that was thought over nothing is cached (``--strip-thinking-cache``)
vllm              :class:`VllmCache`
trtllm            :class:`TensorRTCache`, without hints
================  ====================================================================================================

Source of the SGLang rules: ``sglang/srt/mem_cache/evict_policy.py`` (0.5.23).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

from eval.caches.real import REAL_CACHES, STOCK_POLICIES, page_ids
from eval.caches.simulator import Cache
from eval.traces.request import Request

__all__ = ["BASELINES", "DEFAULT_PRIORITY", "Retention", "TensorRTCache", "VllmCache"]


class VllmCache:
    """vLLM's block pool: the free block that was used least recently goes first, of one request its tail first.

    Blocks that no request refers to stay findable in a queue, in the order in which they were freed, and a request
    frees its blocks from the last to the first. What is allocated is taken from the head of the queue, unless a block
    has never held anything. A request that finds a block takes it out of the queue until it is done.

    There is no tree, so nothing says that only leaves may go; it follows. Who uses a block uses all before it, and
    frees them later, so a block never stands behind its descendants in the queue: the rule is page-granular LRU.

    Source: vLLM, ``vllm/v1/core/block_pool.py`` (``get_new_blocks``, ``touch``, ``free_blocks``), order of the queue:
    ``FreeKVCacheBlockQueue`` in ``vllm/v1/core/kv_cache_utils.py``; reversed on freeing by
    ``vllm/v1/core/single_type_kv_cache_manager.py``; first stated in vllm-project/vllm#2614.

    Args:
        capacity, page_size: tokens.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        self.page_size = page_size
        self._pages = capacity // page_size
        self._units: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()  # blocks by what they hold, the next to go first

    @property
    def resident(self) -> int:
        """Tokens cached."""
        return len(self._free) * self.page_size

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        blocks = page_ids(request.context, self.page_size, self._units)[: self._pages]
        hits = _hits(blocks, self._free)
        for block in blocks[:hits]:
            del self._free[block]
        for _ in range(len(self._free) + len(blocks) - self._pages):
            self._free.popitem(last=False)
        for block in reversed(blocks):
            self._free[block] = None
        return min(hits * self.page_size, len(request.prompt) // self.page_size * self.page_size)


DEFAULT_PRIORITY = 35
"""Retention priority of TensorRT-LLM for what no hint is given."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A hint of TensorRT-LLM: how dear the tokens [start, end) of every prompt are, and for how long.

    Raises:
        ValueError: an empty range, or a priority or duration that cannot be.
    """

    start: int
    end: int | None  # None: to the end of the prompt
    priority: int  # 0 to 100; what is lowest goes first
    duration_s: float | None = None  # from when the block was last released; None: for ever

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
    expires_s: float = math.inf
    released: int = 0  # place in the order of releases; 0 while a request uses it or it is gone


class TensorRTCache:
    """TensorRT-LLM's prioritised LRU: of the leaves with the lowest priority, the one that was released first.

    A request gives its blocks the priority of the range that their first token lies in; a block in no range gets 35
    when it is allocated, and keeps what it has when it is found again. Ranges speak of prompts: blocks of answers have
    35. A request releases its blocks from the last to the first. When the duration of a hint has passed since then, the
    block is back at 35, as if released at that moment. Without hints, as on a trace that has none, every block has 35
    and the rule is page-granular LRU.

    Only leaves are evicted, as the documentation says. (Code of 2025 and later can also take a block whose descendants
    have a higher priority, and loses those with it: the same, as long as priorities do not rise along a prompt.)

    Source: NVIDIA/TensorRT-LLM, ``docs/source/features/kvcache.md``; ``cpp/tensorrt_llm/batch_manager/`` in
    ``evictionPolicy.cpp`` (``getFreeBlock``, ``releaseBlock``, ``claimBlock``, ``refresh``) and ``kvCacheManager.cpp``
    (``loadOrAllocateBlocks``, ``releaseBlocks``); ``KvCacheRetentionConfig::getPerBlockRetentionPriorityDuration``.

    Args:
        capacity, page_size: tokens.
        retention: hints that every request carries, in order and without overlap. To keep a system prompt of 1,000
            tokens for as long as anything else is left: ``[Retention(0, 1000, 100)]``.

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
        # Heaps with stale entries: one is true while its block's place in the order of releases is still that.
        self._leaves: list[tuple[int, int, _Block]] = []  # (priority, released, block)
        self._expiring: list[tuple[float, int, _Block]] = []  # (when, released, block)

    @property
    def resident(self) -> int:
        """Tokens cached."""
        return len(self._blocks) * self.page_size

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        self._expire(request.arrival_s)
        names = page_ids(request.context, self.page_size, self._units)[: self._pages]
        hits = _hits(names, self._blocks)
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
        self._hint(path, len(request.prompt))
        for block in reversed(path):
            self._release(block, request.arrival_s)
        return min(hits * self.page_size, len(request.prompt) // self.page_size * self.page_size)

    def _hint(self, path: Sequence[_Block], prompt: int) -> None:
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
        self._queue(block)

    def _queue(self, block: _Block) -> None:
        if block.released and not block.children:
            heappush(self._leaves, (block.priority, block.released, block))

    def _expire(self, now_s: float) -> None:
        while self._expiring and self._expiring[0][0] <= now_s:
            _, released, block = heappop(self._expiring)
            if block.released == released:
                block.priority, block.duration_s = DEFAULT_PRIORITY, None
                block.released = next(self._releases)
                self._queue(block)

    def _evict(self) -> None:
        while True:
            _, released, block = heappop(self._leaves)
            if block.released == released:  # with it a leaf still: who hangs something on it releases it anew
                break
        block.released = 0
        del self._blocks[block.name]
        if block.parent is not None:
            block.parent.children -= 1
            self._queue(block.parent)


def _hits(names: Sequence[int], cached: OrderedDict[int, None] | dict[int, _Block]) -> int:
    """How many of the names are cached before the first that is not."""
    return next((index for index, name in enumerate(names) if name not in cached), len(names))


def _vllm(capacity: int, threshold: int, next_prompt_estimate: int, page_size: int) -> Cache:
    return VllmCache(capacity, page_size)


def _trtllm(capacity: int, threshold: int, next_prompt_estimate: int, page_size: int) -> Cache:
    return TensorRTCache(capacity, page_size)


BASELINES: dict[str, Callable[[int, int, int, int], Cache]] = {
    **{f"sglang-{policy}": REAL_CACHES[f"sglang-{policy}"] for policy in STOCK_POLICIES},
    **{name: cache for name, cache in REAL_CACHES.items() if name.endswith(("-strip-thinking", "-sessions"))},
    "vllm": _vllm,
    "trtllm": _trtllm,
}
"""Caches of other engines by name, built from capacity, ξ, Q̂ and page size, in tokens."""
