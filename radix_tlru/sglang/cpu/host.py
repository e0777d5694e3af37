"""What SGLang's hierarchical cache needs of a device, in plain torch, for the CPU platform: host memory, and copies.

Its host pools pin their memory through CUDA, also what a page from storage is read into, and move KV with the copy
kernels of ``sgl_kernel``. Where the device is the CPU the "device" tier is memory like the other, so that memory is
taken as it is and a copy is an indexed assignment. Everything else (pools, queues, acknowledgements, storage, the three
tiers of the tree) is SGLang's own. Served with
``--hicache-io-backend direct --hicache-mem-layout layer_first``, the one pair of settings that ends in one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.pool_host import base, common, mha

__all__ = ["install"]


def install() -> None:
    """Make host pools of a cache on the CPU usable in this process."""
    common.ALLOC_MEMORY_FUNCS["cpu"] = _allocate
    base.HostKVCache.pin_memory = property(lambda pool: False, lambda pool, wanted: None)
    mha.transfer_kv_direct = _copy
    # SGLang leaves 10 GB of a machine to others. Here pools are small, and others may have taken more than the rest.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


def _allocate(dims: tuple[int, ...], dtype: torch.dtype, device: str, **_unused: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype, device=device)


def _copy(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """``sgl_kernel.kvcacheio.transfer_kv_direct``: the rows of each layer, whatever their pages."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
