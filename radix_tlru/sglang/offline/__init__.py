"""Real SGLang caches without a server: tokens go in, cached tokens come out."""

from radix_tlru.sglang.offline.caches import OfflineCache, cache_params, stock_cache

__all__ = ["OfflineCache", "cache_params", "stock_cache"]
