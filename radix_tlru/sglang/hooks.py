"""Functions of SGLang that we stand beside, put in place through its own registry, once in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from radix_tlru.config import ConfigError

__all__ = ["hook"]


def hook(target: str, function: Callable[..., Any], without: str, kind: Literal["after", "around"] = "after") -> None:
    """Have ``function`` called after ``target`` (dotted path), or around it.

    Raises:
        ConfigError: SGLang did not take the hook; the message begins with ``without``, what there is not then.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    if target not in HookRegistry._patched:
        HookRegistry.register(target, function, HookType(kind), source=HookSource("radix_tlru", "radix-tlru"))
        HookRegistry.apply_hooks()
    if target not in HookRegistry._patched:
        raise ConfigError(f"{without}, SGLang did not hook {target}")
