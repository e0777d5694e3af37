"""Real SGLang caches without a server: tokens go in, cached tokens come out.

=============  ===================================================================================================
file           its job
=============  ===================================================================================================
caches         caches of SGLang, stock or for ours to be built on, with pools of a few bytes a token
hybrids        those of models that cache more than the KV of full attention
offline_cache  one request after the other: match, lock, allocate (evicting what is missing), insert, unlock
=============  ===================================================================================================
"""

from radix_tlru.sglang.offline.caches import (
    Core,
    WritePolicy,
    add_host_tier,
    cache_params,
    stock_cache,
    stock_cache_of,
)
from radix_tlru.sglang.offline.offline_cache import Lock, OfflineCache

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
