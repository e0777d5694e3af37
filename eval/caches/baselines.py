"""What other engines evict, by name: SGLang's own caches, and the rules of vLLM and TensorRT-LLM.

SGLang's policies run as the real classes. The two others are the rule alone, on the same pages and requests as the
simulator, so that figures differ by eviction and by nothing else. A wholly cached prompt hits wholly, although vLLM and
TensorRT-LLM compute its last token again. There is no second tier, and one request is served at a time.

================  ====================================================================================================
name              rule
================  ====================================================================================================
sglang-lru        least recently used node first
sglang-tlru       nodes beyond the budget first, then lru (paper, Algorithm 1, on whole nodes)
sglang-slru       nodes that only one request has used first, then lru in each of the two segments
sglang-lfu        nodes that the fewest requests have used first, then lru
sglang-priority   lowest priority of a request first, then lru; requests of a trace have none, so it is lru
…-sessions        lru or tlru, where conversations are sessions that clients close (``--enable-session-radix-cache``);
                  ``real-tlru-sessions`` and ``real-etlru-sessions`` are the same with radix-tlru
…-strip-thinking  lru or tlru, where nothing of an answer that was thought over is cached (``--strip-thinking-cache``)
vllm              :class:`~eval.caches.vllm.VllmCache`
trtllm            :class:`~eval.caches.tensorrt.TensorRTCache`, without hints
================  ====================================================================================================

Source of the SGLang rules: ``sglang/srt/mem_cache/evict_policy.py`` (0.5.23).
"""

from __future__ import annotations

from collections.abc import Callable

from eval.caches.real import REAL_CACHES, STOCK_POLICIES
from eval.caches.simulator import Cache
from eval.caches.tensorrt import TensorRTCache
from eval.caches.vllm import VllmCache

__all__ = ["BASELINES"]

BASELINES: dict[str, Callable[[int, int, int, int], Cache]] = {
    **{f"sglang-{policy}": REAL_CACHES[f"sglang-{policy}"] for policy in STOCK_POLICIES},
    **{name: cache for name, cache in REAL_CACHES.items() if name.endswith(("-strip-thinking", "-sessions"))},
    "vllm": lambda capacity, threshold, estimate, page_size: VllmCache(capacity, page_size),
    "trtllm": lambda capacity, threshold, estimate, page_size: TensorRTCache(capacity, page_size),
}
"""Caches of other engines by name, built from (capacity, ξ, Q̂, page size) in tokens."""
