"""Real SGLang caches without a server: tokens go in, cached tokens come out.

``caches`` has them, stock or ours, on pools of a few bytes a token; ``hybrids`` those of models that cache more than
the KV of full attention.
"""

from radix_tlru.sglang.offline.caches import OfflineCache, cache_params, stock_cache

__all__ = ["OfflineCache", "cache_params", "stock_cache"]
