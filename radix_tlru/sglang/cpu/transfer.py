"""What sending KV to a decode server needs of a device, for the CPU platform: memory that may be the host's.

SGLang registers KV with NIXL as memory of a device. Where the device is the CPU, NIXL finds that it is not, and
refuses; so what is called VRAM is registered as what it is. And a prefix that is cached is not sent ahead of the
prefill, as SGLang waits for the batch before with an event of CUDA; it is sent with the rest. Served with
``--disaggregation-transfer-backend nixl``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from sglang.srt.disaggregation.nixl.conn import NixlKVManager
from sglang.srt.environ import envs

__all__ = ["install"]


def install() -> None:
    """Make prefill and decode servers on the CPU usable in this process."""
    envs.SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX.set(False)
    if not hasattr(NixlKVManager.__init__, "__wrapped__"):
        NixlKVManager.__init__ = _with_host_memory(NixlKVManager.__init__)


def _with_host_memory(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def managed(manager: Any, *args: Any, **kwargs: Any) -> None:
        from nixl._api import nixl_agent  # installed where KV is to be transferred, and nowhere else

        if not hasattr(nixl_agent.__init__, "__wrapped__"):
            nixl_agent.__init__ = _of_the_host(nixl_agent.__init__)
        init(manager, *args, **kwargs)

    return managed


def _of_the_host(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def agent_of_the_host(agent: Any, *args: Any, **kwargs: Any) -> None:
        init(agent, *args, **kwargs)
        agent.nixl_mems["VRAM"] = agent.nixl_mems["DRAM"]

    return agent_of_the_host
