"""What travels with a request from the process that takes it in to the ranks that serve it.

*When it came.* Every rank of a model must learn the same, so the time that a conversation was silent cannot be read off
the clock of a rank. A request is stamped once, where it is tokenized.

*How long earlier ones waited* (:mod:`~.first_tokens`), where ξ is learned from an objective in ms and
one process takes all requests in.

*What the client says of it* (:mod:`radix_tlru.hints.schema`): ``"tlru": {…}`` among the custom parameters, of
``sampling_params`` at ``/generate`` and at the top of a request to the OpenAI-compatible endpoints (``extra_body``).
Hints are checked here, where an error is still an answer, HTTP 400, and the client's own; but a prefill server goes on
without wrong ones.

Both ride in ``sampling_params.custom_params``, which SGLang hands on as they are, through every path there is.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from radix_tlru.config import FLAGS, one_line
from radix_tlru.hints.schema import Hints
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.first_tokens import FirstToken, FirstTokens, dumps, loads

__all__ = [
    "HINTS",
    "HOOKED",
    "KEY",
    "Carried",
    "carried_by",
    "first_tokens_with",
    "install",
    "tokenizer_worker_class",
]

HOOKED = (
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
    "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
)
"""Functions of SGLang that we stand beside: what makes of a client's request what the schedulers get, and what is given
the requests of the OpenAI-compatible endpoints."""

logger = logging.getLogger(__name__)

KEY = "__radix_tlru"
"""Of ours among the custom parameters."""

HINTS = "tlru"
"""Of a client's hints, there."""

_WATCH = "_radix_tlru_first_tokens"
"""Attribute of a TokenizerManager: the FirstTokens of its requests."""


def install() -> None:
    """Have requests stamped and hints taken in this process, if its server evicts by our order.

    Raises:
        ConfigError: this SGLang does not take the hook.
    """
    hook(HOOKED[0], _stamp, f"{FLAGS['policy']}: requests cannot be stamped")
    hook(HOOKED[1], _take_from_top, f"{FLAGS['policy']}: hints cannot be taken", "around")


def tokenizer_worker_class() -> type:
    """What SGLang calls in each process of ``--tokenizer-worker-num``, which load no plugins: its own class, hooked."""
    from sglang.srt.managers.multi_tokenizer_mixin import TokenizerWorker

    install()
    worker: type = TokenizerWorker
    return worker


class Carried(NamedTuple):
    """What came with a request."""

    stamp: float | None = None  # when it came, s on the clock of the process that took it in; None: not stamped
    hints: Hints | None = None


def carried_by(req: Any) -> Carried:
    """What came with a request, in a scheduler process."""
    carried = (req.sampling_params.custom_params or {}).get(KEY)
    if not carried:
        return Carried()
    return Carried(carried["stamp"], Hints.loads(carried["hints"]) if carried["hints"] else None)


def first_tokens_with(req: Any) -> tuple[FirstToken, ...]:
    """What came with a request of the first tokens of earlier ones, in a scheduler process."""
    return loads(((req.sampling_params.custom_params or {}).get(KEY) or {}).get("first_tokens"))


def _stamp(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
    from radix_tlru.sglang.plugin import config_of

    params, config = getattr(tokenized, "sampling_params", None), config_of(manager.server_args)
    if params is None or config is None:
        return
    custom = dict(_object(params.custom_params, manager.server_args))
    said = custom.pop(HINTS, None)
    # As one string: what SGLang lets travel there may not be nested.
    hints = None if said is None else _parsed(said, manager.server_args)
    ours = {"stamp": time.monotonic(), "hints": hints and hints.dumps()}
    # Of several such processes none knows which requests are alone.
    if config.objective_ms is not None and manager.server_args.tokenizer_worker_num == 1:
        streams = getattr(tokenized, "stream", False)  # an embedding does not
        ours["first_tokens"] = dumps(_watch(manager).arrived(tokenized.rid, streams=streams))
    params.custom_params = {**custom, KEY: ours}


def _object(custom_params: Any, record: Any) -> Mapping[str, Any]:
    """Custom parameters, into which ours go."""
    if custom_params is None or isinstance(custom_params, Mapping):
        return custom_params or {}
    error = one_line(f"custom_params {custom_params!r}: must be an object")
    if not _passes_over(error, record):
        raise ValueError(error)
    return {}


def _parsed(said: Any, record: Any) -> Hints | None:
    """The hints of a client; None where wrong ones are passed over, else ValueError."""
    try:
        return Hints.parse(said)
    except ValueError as error:
        if not _passes_over(error, record):
            raise
        return None


def _passes_over(error: object, record: Any) -> bool:
    """Whether a request with wrong hints is served without them: by a prefill server, which says so in its log.

    The decode server has the same request and knows of no hints. It would wait minutes for KV that never comes, and
    the client would be told that, not what is wrong.
    """
    prefills = bool(record.disaggregation_mode == "prefill")
    if prefills:
        logger.warning("radix_tlru: a request is served without its hints: %s", error)
    return prefills


def _watch(manager: Any) -> FirstTokens:
    if not hasattr(manager, _WATCH):
        setattr(manager, _WATCH, FirstTokens(manager.rid_to_state, manager.server_args.dp_size))
    watch: FirstTokens = getattr(manager, _WATCH)
    return watch


async def _take_from_top(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any) -> Any:
    """SGLang drops what it does not know of an OpenAI request, so hints are moved to where it lets things through."""
    from radix_tlru.sglang.plugin import config_of

    record = serving.tokenizer_manager.server_args
    read = getattr(raw_request, "body", None)  # what comes by gRPC has none, and no top
    known = hasattr(request, "custom_params") and config_of(record) is not None
    body = await read() if known and read else b""  # read by now
    if f'"{HINTS}"'.encode() in body and HINTS in (top := json.loads(body)):
        custom = request.custom_params or {}
        if HINTS in custom:
            twice = f"{HINTS}: must be given once, not in custom_params as well"
            if not _passes_over(twice, record):
                return serving.create_error_response(twice)
            request.custom_params = {key: custom[key] for key in custom if key != HINTS}
        else:
            request.custom_params = {**custom, HINTS: top[HINTS]}
    return await original(serving, request, raw_request)
