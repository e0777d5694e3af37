"""Requests as SGLang's scheduler has them when they are served, without a server."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams


def served(prompt: Sequence[int], answer: Sequence[int], *, stop: int | None = None, **fields: Any) -> Req:
    """A request whose answer came in one step, which speculative decoding may take beyond the token ``stop``.

    Args:
        fields: of the request, set as they are.
    """
    params = SamplingParams(max_new_tokens=len(answer), stop_token_ids=None if stop is None else [stop])
    params.normalize(None)
    req = Req(rid="a", origin_input_text="", origin_input_ids=array("q", prompt), sampling_params=params)
    req.output_ids.extend(answer)
    req.update_finish_state(len(answer))
    for name, value in fields.items():
        setattr(req, name, value)
    return req
