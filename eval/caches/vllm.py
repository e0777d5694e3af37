"""vLLM's block pool: the free block that was used least recently goes first, and of one request its tail first."""

from __future__ import annotations

from collections import OrderedDict

from eval.caches.pages import page_ids
from eval.caches.simulator import known_prefix
from eval.traces.request import Request

__all__ = ["VllmCache"]


class VllmCache:
    """The eviction rule of vLLM.

    Blocks that no request refers to stay findable in a queue, in the order in which they were freed. A request frees
    its blocks from the last to the first. A new block is taken from the head of the queue, unless a block has never
    held anything. A request that finds a block takes it out of the queue until the request is done.

    There is no tree, so no rule says that only leaves may go, but it follows. A request that uses a block also uses all
    blocks before it, and frees those later. So a block never stands behind its descendants in the queue, and the rule
    is page-granular LRU.

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
        self._free: OrderedDict[int, None] = OrderedDict()  # blocks by page id, the next to go first

    @property
    def resident(self) -> int:
        """Tokens cached."""
        return len(self._free) * self.page_size

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        blocks = page_ids(request.context, self.page_size, self._units)[: self._pages]
        hits = known_prefix(blocks, self._free)
        for block in blocks[:hits]:
            del self._free[block]
        for _ in range(len(self._free) + len(blocks) - self._pages):
            self._free.popitem(last=False)
        for block in reversed(blocks):
            self._free[block] = None
        return min(hits * self.page_size, len(request.prompt) // self.page_size * self.page_size)
