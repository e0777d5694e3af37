"""What a sliding window needs of attention in plain torch, for the CPU platform: to read KV where it was written.

The layers of a window keep their KV in a pool of its own, with slots of its own. SGLang's ``torch_native`` backend
writes there, and reads as if the slots were those of full attention: it reads other tokens' KV, or beyond the pool.
Here they are translated, as its other backends do. What is not in the window any more has no slot there: it is read
from the slot for padding, and masked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

__all__ = ["install"]

_METHODS = ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode")


def install() -> None:
    """Make models with windowed layers usable on the CPU in this process."""
    for name in _METHODS:
        attend = getattr(TorchNativeAttnBackend, name)
        if not hasattr(attend, "__wrapped__"):
            setattr(TorchNativeAttnBackend, name, _translated(attend))


def _translated(attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(attend)
    def attend_in_window(
        self: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        *args: Any,
        sliding_window_size: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if self.use_sliding_window_kv_pool and sliding_window_size is not None and sliding_window_size > -1:
            req_to_token = self.token_to_kv_pool.translate_loc_from_full_to_swa(req_to_token[req_pool_indices]).long()
            req_pool_indices = torch.arange(len(req_pool_indices))
        return attend(
            self,
            query,
            output,
            keys,
            values,
            req_to_token,
            req_pool_indices,
            *args,
            sliding_window_size=sliding_window_size,
            **kwargs,
        )

    return attend_in_window
