"""Which releases of SGLang the seams fit, checked before anything is hooked."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from radix_tlru.config import ConfigError

__all__ = ["SUPPORTED", "check_version", "release_of", "sglang_version"]

SUPPORTED = ((0, 5, 23), (0, 5, 23))
"""First and last release whose seams were tried, both included."""


def sglang_version() -> str | None:
    """The installed SGLang, or None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


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
        allowed = " to ".join(dict.fromkeys(".".join(map(str, bound)) for bound in SUPPORTED))
        raise ConfigError(f"--radix-eviction: SGLang {text} is installed, supported is {allowed}")
