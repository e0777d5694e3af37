"""What travels with a request from the process that takes it in to the ranks that serve it: when it came.

Every rank of a model must learn the same, so the time that a conversation was silent cannot be read off the clock of a
rank. It is stamped once, where the request is tokenized, and rides in ``sampling_params.custom_params``, which SGLang
hands on as it is, through every path there is.
"""

from __future__ import annotations

import time
from typing import Any

from radix_tlru.config import FLAGS
from radix_tlru.sglang.hooks import hook

__all__ = ["HOOKED", "KEY", "install", "stamp_of"]

HOOKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"
"""The function of SGLang that makes of a client's request what the schedulers get."""

KEY = "__radix_tlru"
"""Of ours among the custom parameters."""


def install() -> None:
    """Have requests stamped that this process tokenizes, if its server evicts by our order.

    Raises:
        ConfigError: this SGLang does not take the hook.
    """
    hook(HOOKED, _stamp, f"{FLAGS['policy']}: requests cannot be stamped")


def stamp_of(req: Any) -> float | None:
    """When the request came, s on the clock of the process that took it in; None: it was not stamped."""
    carried = (req.sampling_params.custom_params or {}).get(KEY)
    return carried["stamp"] if carried else None


def _stamp(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
    from radix_tlru.sglang.plugin import config_of

    params = getattr(tokenized, "sampling_params", None)
    if params is not None and config_of(manager.server_args) is not None:
        params.custom_params = {**(params.custom_params or {}), KEY: {"stamp": time.monotonic()}}
