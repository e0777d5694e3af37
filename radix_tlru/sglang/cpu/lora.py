"""What SGLang's LoRA needs of a device, in plain torch, for the CPU platform: memory that only says it is pinned.

SGLang's torch backend and the LoRA layers stage what they copy to a device in memory that is pinned through CUDA. They
do not ask the platform whether there is a driver, so torch raises where there is none. On the CPU nothing has to be
staged, and memory is taken as it is. Served with ``--lora-backend torch_native``.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.lora import layers
from sglang.srt.lora.backend import torch_backend

__all__ = ["install"]


class _PlainTorch:
    """torch, for a module of SGLang that asks for pinned memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(*values: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.tensor(*values, **options)

    @staticmethod
    def zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, **options)


def install() -> None:
    """Make adapters of a model on the CPU usable in this process."""
    layers.torch = torch_backend.torch = _PlainTorch()
    torch.Tensor.pin_memory = _as_it_is


def _as_it_is(tensor: torch.Tensor, *_unused: Any) -> torch.Tensor:
    return tensor
