"""The only place that imports SGLang: the plugin, the cache with our order, and a platform to run it on a CPU.

>>> from radix_tlru import Config
>>> from radix_tlru.sglang import build_cache        # the one way to obtain the cache
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radix_tlru.sglang.cache.radix_cache import build_cache

__all__ = ["build_cache"]


def __getattr__(name: str) -> Any:
    # Lazy: the entry points live below this package, and finding them must not load SGLang's cache.
    if name == "build_cache":
        from radix_tlru.sglang.cache.radix_cache import build_cache

        return build_cache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
