"""The releases of SGLang that are supported, and what differs between them.

Differences between releases are looked for where they are, never derived from the number of the release:

=========================  ==========================================================================================
``rust_core_refusal``      before 0.5.23 an eviction step in Rust has no list of what the cache must do, and a path
                           does not tell how many children its nodes have: the order sits in the Python core there
``host_tier_refusal``      before 0.5.23 nor has one in Python: hierarchical caches, which may need it, are refused
``sessions_refusal``       before 0.5.22 a streaming session unlocks in a method of the cache that ours replaces
``hybrid_refusal``         before 0.5.22 a match does not say how much of a path a next turn can use: hybrid models
                           are refused
``explain_refusal``        before 0.5.22 schedulers answer questions about themselves elsewhere
``insert_params``          before 0.5.22 an insert is not told what the same request inserted before
=========================  ==========================================================================================

0.5.20 is not supported. There a cache cannot choose its tree core, as ``CacheInitParams`` has no ``tree_core_backend``.
A server that was told to use the Rust core would leave the order out without a word.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from radix_tlru.config import ConfigError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

__all__ = [
    "ANSWERS_QUESTIONS",
    "SUPPORTED",
    "check_version",
    "explain_refusal",
    "host_tier_refusal",
    "hybrid_refusal",
    "insert_params",
    "release_of",
    "rust_core_refusal",
    "sessions_refusal",
    "sglang_version",
    "supported_range",
    "torch_mismatch",
]

SUPPORTED = ((0, 5, 21), (0, 5, 23))
"""First and last release whose seams were tried, both included."""

ANSWERS_QUESTIONS = "sglang.srt.managers.scheduler_components.internal_state"
"""Module of what answers questions to a scheduler about itself."""


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


def torch_mismatch() -> str | None:
    """Why the installed torch is not the one that the Rust tree core in SGLang's wheel was built for; None: it is.

    That is the one that the wheel asks for. With 2.11 instead of 2.14 the core loads, SGLang's own check lets it
    through, and it panics at the first insert (`UnknownKind(16)`).
    """
    try:
        installed, asked = version("torch"), requires("sglang") or []
    except PackageNotFoundError:
        return None
    built_for = next((each.partition("==")[2] for each in asked if each.startswith("torch==")), "")
    if not built_for or release_of(built_for)[:2] == release_of(installed)[:2]:
        return None
    return f"SGLang's Rust core is built for torch {built_for}, installed is {installed}, with which it panics"


def rust_core_refusal() -> str | None:
    """Why the order cannot sit behind the Rust tree core of this SGLang; None if it can."""
    # In the same release a step got this list, and a path the count of children.
    return None if _steps_carry_actions() else "an eviction step of its Rust tree core carries no actions for the cache"


def host_tier_refusal() -> str | None:
    """Why the order cannot evict from a hierarchical cache of this SGLang; None if it can."""
    if _steps_carry_actions():
        return None
    return f"an eviction step of SGLang {sglang_version()} carries no actions for the cache"


def _steps_carry_actions() -> bool:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import EvictDeviceNextNodeResult

    return hasattr(EvictDeviceNextNodeResult(), "cache_actions")


def sessions_refusal() -> str | None:
    """Why streaming sessions of this SGLang cannot be on a cache of ours; None if they can."""
    from sglang.srt.session.streaming_session import StreamingSession

    if hasattr(StreamingSession, "try_dec_lock_ref"):
        return f"a session of SGLang {sglang_version()} unlocks in a method of the cache that ours replaces"
    return None


def explain_refusal() -> str | None:
    """Why schedulers of this SGLang cannot be asked for an explanation; None if they can."""
    from sglang.srt.managers import io_struct

    asked = getattr(io_struct, "GetInternalStateReq", None)
    if "rid" not in getattr(asked, "__struct_fields__", ()):
        return "a question to its schedulers cannot name a request"
    if find_spec(ANSWERS_QUESTIONS) is None:
        return "its schedulers answer questions about themselves elsewhere"
    return None


def hybrid_refusal() -> str | None:
    """Why the order cannot evict what a hybrid model of this SGLang caches; None if it can."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult

    if "device_prefix_len" in MatchResult._fields:
        return None
    return f"a match of SGLang {sglang_version()} does not say how much of a path is of use"


def insert_params(**arguments: Any) -> InsertParams:
    """SGLang's parameters of an insert, without ``inserted_len`` (how it counts uses) where they do not have it."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    if not _insert_counts_uses():
        arguments.pop("inserted_len", None)
    return InsertParams(**arguments)


@cache
def _insert_counts_uses() -> bool:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    return "inserted_len" in {field.name for field in fields(InsertParams)}
