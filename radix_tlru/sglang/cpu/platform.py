"""The platform behind ``SGLANG_PLATFORM=torch_cpu``: SGLang on plain torch, with no kernel library and no device.

SGLang's own CPU platform needs a CPU build of sgl_kernel that no package registry has. Everything but the kernels is
the same. So this platform borrows its device operations. SGLang gives an out-of-tree platform torch's ops for the rest.
"""

from __future__ import annotations

import os

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

__all__ = ["TorchCpuPlatform"]


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Serves with ``--device cpu``; meant for tests and demonstrations, not for speed.

    Its capabilities stay at SGLang's conservative defaults: no Triton, no graph capture.
    """

    _enum = PlatformEnum.OOT

    def init_backend(self) -> None:
        """SGLang calls this in each worker: compute in one thread, unless ``OMP_NUM_THREADS`` says otherwise.

        Each op ends when its slowest thread does. On two cores that are shared, 1,000 tokens took 200 ms in one thread
        and 1,600 ms in two. On two idle cores a second thread halves the time.
        """
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        # Of SGLang they import what is still half imported above.
        from radix_tlru.sglang.cpu import dp, host, lora, transfer, windows

        for part in (dp, host, lora, transfer, windows):
            part.install()

    def get_default_attention_backend(self) -> str:
        """The one attention backend of SGLang that is written in torch alone."""
        return "torch_native"
