"""What replicas of attention (``--enable-dp-attention``) need of a device, in plain torch, for the CPU platform.

The ranks pad their batches to the longest one's and gather them around each MLP. SGLang has all of that without a
kernel too, for its own CPU platform; where it asks whether that is the one, nothing else depends on the answer.
"""

from __future__ import annotations

from sglang.srt.distributed.parallel_state import GroupCoordinator
from sglang.srt.layers import dp_attention
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.model_executor import forward_batch_info

__all__ = ["install"]


def install() -> None:
    """Make replicas of attention usable on the CPU in this process."""
    dp_attention.memcpy_func = dp_attention.memcpy_cpu
    GroupCoordinator.all_gather_into_tensor = GroupCoordinator._all_gather_into_tensor
    GroupCoordinator.reduce_scatter_tensor = GroupCoordinator._reduce_scatter_tensor
    forward_batch_info._is_cpu = True  # there: whether lengths go to the device through pinned memory, and its padding
    TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda _backend: 1
