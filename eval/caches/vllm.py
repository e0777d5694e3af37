"""vLLM's block pool: the free block that was used least recently goes first, and of one request its tail first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from eval.caches.blocks import PageCache
from eval.traces.request import Request


class VllmCache(PageCache):
    """The eviction rule of vLLM.

    Blocks that no request refers to stay findable in a queue, in the order in which they were freed. A request frees
    its blocks from the last to the first. A new block is taken from the head of the queue, unless a block has never
    held anything. A request that finds a block takes it out of the queue until the request is done.

    There is no tree, so no rule says that only leaves may go, but it follows. A request that uses a block also uses all
    blocks before it, and frees those later. So a block never stands behind its descendants in the queue, and the rule
    is page-granular LRU. A block that is only partly filled has no hash and can never be found; it is freed to the head
    of the queue. Here no such block is kept.

    Source: vLLM, ``vllm/v1/core/block_pool.py`` (``get_new_blocks``, ``touch``, ``free_blocks``), order of the queue:
    ``FreeKVCacheBlockQueue`` in ``vllm/v1/core/kv_cache_utils.py``; reversed on freeing by
    ``vllm/v1/core/single_type_kv_cache_manager.py``; first stated in vllm-project/vllm#2614.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._free: OrderedDict[int, None] = OrderedDict()  # blocks by page id, the next to go first

    @property
    def cached(self) -> Collection[int]:
        return self._free

    def _serve(self, request: Request, names: Sequence[int], hits: int) -> None:
        for name in names[:hits]:
            del self._free[name]
        for _ in range(len(self._free) + len(names) - self._pages):
            self._free.popitem(last=False)
        for name in reversed(names):
            self._free[name] = None
