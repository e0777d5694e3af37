"""Which releases of SGLang the seams fit, checked before anything is hooked; and in what those releases differ.

Each difference is looked for where it is, never derived from the number of the release, and met here alone:

==========================  =========================================================================================
``rust_core_refusal``       before 0.5.23 an eviction step in Rust has no list of what the cache must do, and a path
                            does not tell how many children its nodes have: our order sits in the Python core there
``host_tier_refusal``       before 0.5.23 nor has one in Python: hierarchical caches, which may need it, are refused
``sessions_refusal``        before 0.5.22 a streaming session unlocks in a method of the cache that ours replaces
``hybrid_refusal``          before 0.5.22 a match does not say how much of a path is of use, which all that tries a
                            hybrid model's cache here goes by: they are refused
``insert_params``           before 0.5.22 an insert is not told what the same request inserted before
==========================  =========================================================================================

0.5.20 is where it ends: there a cache cannot be built on a tree core of its own choice (``CacheInitParams`` has no
``tree_core_backend``), so that a server told to use the Rust core would leave our order out without a word.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from radix_tlru.config import ConfigError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

__all__ = [
    "SUPPORTED",
    "check_version",
    "host_tier_refusal",
    "hybrid_refusal",
    "insert_params",
    "release_of",
    "rust_core_refusal",
    "sessions_refusal",
    "sglang_version",
    "supported_range",
]

SUPPORTED = ((0, 5, 21), (0, 5, 23))
"""First and last release whose seams were tried, both included."""


def sglang_version() -> str | None:
    """The installed SGLang, or None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def supported_range() -> str:
    """The supported releases in words: ``0.5.21 to 0.5.23``."""
    return " to ".join(dict.fromkeys(".".join(map(str, bound)) for bound in SUPPORTED))


def release_of(text: str) -> tuple[int, ...]:
    """The numeric release of a version: ``0.5.23.post1+cu130`` is (0, 5, 23)."""
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers[:3])


def check_version(text: str) -> None:
    """Raise ConfigError unless this SGLang is one whose seams were tried."""
    first, last = SUPPORTED
    if not first <= release_of(text) <= last:
        raise ConfigError(f"--radix-eviction: SGLang {text} is installed, supported is {supported_range()}")


def rust_core_refusal() -> str | None:
    """Why our order cannot sit behind the Rust tree core of this SGLang; None if it can."""
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import EvictDeviceNextNodeResult

    # In the same release a step got this list, and a path the count of children.
    if hasattr(EvictDeviceNextNodeResult(), "cache_actions"):
        return None
    return "an eviction step of its Rust tree core carries no actions for the cache"


def host_tier_refusal() -> str | None:
    """Why our order cannot evict from a hierarchical cache of this SGLang; None if it can."""
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import EvictDeviceNextNodeResult

    if hasattr(EvictDeviceNextNodeResult(), "cache_actions"):
        return None
    return f"an eviction step of SGLang {sglang_version()} carries no actions for the cache"


def sessions_refusal() -> str | None:
    """Why streaming sessions of this SGLang cannot be on a cache of ours; None if they can."""
    from sglang.srt.session.streaming_session import StreamingSession

    if hasattr(StreamingSession, "try_dec_lock_ref"):
        return f"a session of SGLang {sglang_version()} unlocks in a method of the cache that ours replaces"
    return None


def hybrid_refusal() -> str | None:
    """Why our order cannot evict what a hybrid model of this SGLang caches; None if it can."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult

    if "device_prefix_len" in MatchResult._fields:
        return None
    return f"a match of SGLang {sglang_version()} does not say how much of a path is of use"


def insert_params(**arguments: Any) -> InsertParams:
    """SGLang's parameters of an insert, without ``inserted_len`` (how it counts uses) where they do not have it."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    if not _counts_uses():
        arguments.pop("inserted_len", None)
    return InsertParams(**arguments)


@cache
def _counts_uses() -> bool:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    return "inserted_len" in {field.name for field in fields(InsertParams)}
