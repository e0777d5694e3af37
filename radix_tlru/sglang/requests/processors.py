"""Logit processors of clients see the custom parameters of their requests, without our metadata among them.

With ``--enable-custom-logit-processor`` a request may bring code, which SGLang calls in the scheduler with the custom
parameters of the requests that brought it, None for one without. Our metadata rides there, so none would be None. A
processor that reads a key of its own from all that are not None would end the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radix_tlru.config import FLAGS, Config
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.metadata import KEY

__all__ = ["HOOKED", "call_processors", "install"]

HOOKED = "sglang.srt.layers.sampler.apply_custom_logit_processor"
"""Function of SGLang that is hooked."""

_REQUEST = "__req__"
"""Key of what SGLang adds to the custom parameters of a request that has any: the request."""


def install(config: Config) -> None:
    """Put the hook in place, in a scheduler process.

    Raises:
        ConfigError: this SGLang does not take it.
    """
    without = f"{FLAGS['policy']} {config.policy}: logit processors would see what no client gave"
    hook(HOOKED, call_processors, without, "around")


def call_processors(
    original: Callable[..., None], logits: Any, sampling_batch_info: Any, num_tokens_in_batch: int = 1
) -> None:
    """Around ``apply_custom_logit_processor``.

    A processor may keep its state among the parameters, which are the same from token to token: no copies are made.
    """
    with_metadata = sampling_batch_info.custom_params
    taken = [(params, params.pop(KEY)) for params in with_metadata if params is not None and KEY in params]
    emptied = {id(params) for params, _ in taken if not params.keys() - {_REQUEST}}
    sampling_batch_info.custom_params = [None if id(params) in emptied else params for params in with_metadata]
    try:
        original(logits, sampling_batch_info, num_tokens_in_batch)
    finally:
        sampling_batch_info.custom_params = with_metadata
        for params, metadata in taken:
            params[KEY] = metadata
