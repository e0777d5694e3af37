"""Hooks at functions of SGLang, put in place through its own registry, once in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from radix_tlru.config import ConfigError

__all__ = ["hook"]

_placed: set[str] = set()
"""Functions that are hooked in this process."""


def hook(target: str, function: Callable[..., Any], without: str, kind: Literal["after", "around"] = "after") -> None:
    """Have ``function`` called after ``target`` (dotted path), or around it.

    Raises:
        ConfigError: SGLang did not take the hook. The message begins with ``without``: what is missing then.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    if target in _placed:
        return
    source = HookSource("radix_tlru", "radix-tlru")
    if target in HookRegistry._patched:  # by another plugin: SGLang's registry skips later hooks
        HookRegistry._apply_target(target, [(HookType(kind), function, source)])
    else:
        HookRegistry.register(target, function, HookType(kind), source=source)
        HookRegistry.apply_hooks()
    if target not in HookRegistry._patched:
        raise ConfigError(f"{without}, SGLang did not hook {target}")
    _placed.add(target)
