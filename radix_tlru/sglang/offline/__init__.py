"""Real SGLang caches without a server: tokens go in, cached tokens come out.

``caches`` has them, stock or ours, on pools of a few bytes a token; ``hybrids`` those of models that cache more than
the KV of full attention.
"""

from radix_tlru.sglang.offline.caches import (
    Core,
    Lock,
    OfflineCache,
    WritePolicy,
    add_host_tier,
    cache_params,
    stock_cache,
    stock_cache_of,
)

__all__ = [
    "Core",
    "Lock",
    "OfflineCache",
    "WritePolicy",
    "add_host_tier",
    "cache_params",
    "stock_cache",
    "stock_cache_of",
]
