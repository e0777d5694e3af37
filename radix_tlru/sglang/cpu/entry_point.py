"""Offers the torch-only CPU platform to SGLang (entry-point group ``sglang.srt.platforms``, name ``torch_cpu``).

With ``SGLANG_PLATFORM`` unset SGLang imports this module and calls :func:`activate` in every process, on GPU machines
too. So it imports nothing of sglang or torch, and steps aside unless it is named: it never slows or shadows a device.
"""

from __future__ import annotations

import os

__all__ = ["PLATFORM_NAME", "PLATFORM_VARIABLE", "activate"]

PLATFORM_NAME = "torch_cpu"
PLATFORM_VARIABLE = "SGLANG_PLATFORM"
_PLATFORM_CLASS = "radix_tlru.sglang.cpu.platform:TorchCpuPlatform"


def activate() -> str | None:
    """The qualified class of the platform if ``SGLANG_PLATFORM`` names it, else None: SGLang then picks for itself."""
    return _PLATFORM_CLASS if os.environ.get(PLATFORM_VARIABLE) == PLATFORM_NAME else None
