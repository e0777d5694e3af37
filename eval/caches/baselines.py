"""What others evict, by name: SGLang's own caches, the rules of vLLM and TensorRT-LLM, and published policies.

SGLang's policies run as the real classes. The others are the rule alone, on the same pages and requests as the
simulator, so that figures differ by eviction and by nothing else. A wholly cached prompt hits wholly, although vLLM and
TensorRT-LLM compute its last token again. There is no second tier, and one request is served at a time. The docstring
of each class names its source and what had to be assumed.

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
trtllm-retention  the same, with the first 1,024 tokens of each prompt at the highest priority for 30 s
slru, lfu         SGLang's rules by the page: :mod:`~eval.caches.published.frequency`
hpt               hits per token, whole nodes as SGLang: :mod:`~eval.caches.published.hits_per_token`
arc               :class:`~eval.caches.published.arc.ArcCache`
s3-fifo           :class:`~eval.caches.published.s3_fifo.S3FifoCache`
sieve             :class:`~eval.caches.published.sieve.SieveCache`
workload-aware    KVCache Cache in the Wild: :class:`~eval.caches.published.workload_aware.WorkloadAwareCache`
continuum         Continuum: :class:`~eval.caches.published.tool_ttl.ToolTtlCache`
saecache          SAECache: :class:`~eval.caches.published.token_kinds.TokenKindCache`
================  ====================================================================================================

Source of the SGLang rules: ``sglang/srt/mem_cache/evict_policy.py`` (0.5.23).
"""

from __future__ import annotations

from collections.abc import Callable

from eval.caches.published.arc import ArcCache
from eval.caches.published.frequency import lfu_cache, slru_cache
from eval.caches.published.hits_per_token import hits_per_token_cache
from eval.caches.published.s3_fifo import S3FifoCache
from eval.caches.published.sieve import SieveCache
from eval.caches.published.token_kinds import TokenKindCache
from eval.caches.published.tool_ttl import ToolTtlCache
from eval.caches.published.workload_aware import WorkloadAwareCache
from eval.caches.real import REAL_CACHES, STOCK_POLICIES
from eval.caches.simulator import Cache
from eval.caches.tensorrt import Retention, TensorRTCache
from eval.caches.vllm import VllmCache

_RETENTION = (Retention(0, 1024, 100, 30.0),)
"""Of ``trtllm-retention``: a client that pins the head of its prompts, and knows nothing else."""

RULES: dict[str, Callable[[int, int], Cache]] = {
    "vllm": VllmCache,
    "trtllm": TensorRTCache,
    "trtllm-retention": lambda capacity, page_size: TensorRTCache(capacity, page_size, retention=_RETENTION),
    "slru": slru_cache,
    "lfu": lfu_cache,
    "hpt": hits_per_token_cache,
    "arc": ArcCache,
    "s3-fifo": S3FifoCache,
    "sieve": SieveCache,
    "workload-aware": WorkloadAwareCache,
    "continuum": ToolTtlCache,
    "saecache": TokenKindCache,
}
"""Rules of others by name, built from (capacity, page size) in tokens. A new rule is a new entry."""


def _rule(build: Callable[[int, int], Cache]) -> Callable[[int, int, int, int], Cache]:
    """A rule that knows of no objective, built as a cache that does."""
    return lambda capacity, threshold, estimate, page_size: build(capacity, page_size)


BASELINES: dict[str, Callable[[int, int, int, int], Cache]] = {
    **{f"sglang-{policy}": REAL_CACHES[f"sglang-{policy}"] for policy in STOCK_POLICIES},
    **{name: cache for name, cache in REAL_CACHES.items() if name.endswith(("-strip-thinking", "-sessions"))},
    **{name: _rule(build) for name, build in RULES.items()},
}
"""Caches of others by name, built from (capacity, ξ, Q̂, page size) in tokens."""
