"""Request metadata: what travels with a request from the process that takes it in to the ranks that serve it.

*When it arrived.* Every rank of a model must learn the same, so the time that a conversation was silent cannot be read
off the clock of a rank. A request is stamped once, where it is tokenized.

*How long first tokens took* (``first_tokens``), of earlier requests: where ξ is learned from an objective in ms and one
process takes all requests in.

*What the client says of it* (``radix_tlru.hints``): ``"tlru": {…}``, or a field that other systems have. It is at the
top of the body (``extra_body`` of OpenAI's and Anthropic's clients), among the custom parameters, or in a header of a
request whose body has no hints. Hints are checked here, where an error still is an answer, HTTP 400, and the client's
own. A prefill server goes on without wrong ones.

All of it rides in ``sampling_params.custom_params``, which SGLang hands on as they are, through every path there is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from radix_tlru.config import FLAGS, Config
from radix_tlru.hints.clients import FIELDS, HEADERS, Request, read_header, read_hints
from radix_tlru.hints.schema import Hints, HintsError
from radix_tlru.objective.overhead import FirstToken
from radix_tlru.sglang.carrier import config_of
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.first_tokens import FirstTokens, dump_first_tokens, load_first_tokens
from radix_tlru.sglang.support import replicas_of

__all__ = [
    "HOOKED",
    "KEY",
    "RequestMetadata",
    "add_metadata",
    "check_hints",
    "first_tokens_of",
    "hints_of",
    "install",
    "is_made_ahead",
    "made_ahead",
    "metadata_of",
    "note_hints",
    "note_priority",
    "tokenizer_worker_class",
]

HOOKED = (
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._set_default_priority",
    "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses.create_responses",
    "sglang.srt.entrypoints.anthropic.serving.AnthropicServing.handle_messages",
    "sglang.srt.entrypoints.ollama.serving.OllamaServing.handle_chat",
    "sglang.srt.entrypoints.ollama.serving.OllamaServing.handle_generate",
)
"""Functions of SGLang that are hooked. The first turns a client's request into what schedulers get. The second is given
all requests as they came, and calls the third, which gives one without a priority that of ``--default-priority-value``.
At the others an error of the first comes too late to be an answer: a stream has begun, or SGLang does not take errors
for the client's (Ollama)."""

logger = logging.getLogger(__name__)

KEY = "__radix_tlru"
"""Key of our metadata among the custom parameters."""

_FIRST_TOKENS = "_radix_tlru_first_tokens"
"""Attribute of a TokenizerManager: the FirstTokens of its requests."""


class _Beside(NamedTuple):
    """Hints that are not among the custom parameters of a request: at the top of its body, or else in a header."""

    top: Mapping[str, Any] = {}
    header: str | None = None  # its name
    text: str = ""  # of the header, a JSON object

    def read(self) -> Mapping[str, Any]:
        """Those of ``FIELDS`` that are there.

        Raises:
            HintsError: the header has none that can be read.
        """
        return read_header(self.text) if self.header else self.top


_NOTHING = _Beside()

_beside: ContextVar[_Beside] = ContextVar("radix_tlru_beside", default=_NOTHING)
"""Those of the request that this task serves."""

_has_priority: ContextVar[bool] = ContextVar("radix_tlru_has_priority", default=True)
"""Whether the client of that request gave its priority. If not, SGLang may have."""

made_ahead: ContextVar[bool] = ContextVar("radix_tlru_made_ahead", default=False)
"""Whether the request that this task makes is no client's, but prefilled ahead of one (``ahead``)."""


def install() -> None:
    """Have requests stamped and hints taken in this process, if its server evicts by this order.

    Raises:
        ConfigError: this SGLang does not take the hook.
    """
    hook(HOOKED[0], add_metadata, f"{FLAGS['policy']}: requests cannot be stamped")
    hook(HOOKED[1], note_hints, f"{FLAGS['policy']}: hints cannot be taken", "around")
    hook(HOOKED[2], note_priority, f"{FLAGS['policy']}: priorities of clients cannot be told", "around")
    for target in HOOKED[3:]:
        hook(target, check_hints, f"{FLAGS['policy']}: hints cannot be taken", "around")


def tokenizer_worker_class() -> type:
    """What SGLang calls in each process of ``--tokenizer-worker-num``, which load no plugins: its own class, hooked."""
    from sglang.srt.managers.multi_tokenizer_mixin import TokenizerWorker

    install()
    worker: type = TokenizerWorker
    return worker


class RequestMetadata(NamedTuple):
    """What came with a request."""

    stamp: float | None = None  # when it arrived, s on the clock of the process that took it in; None: not stamped
    hints: Hints | None = None
    is_made_ahead: bool = False  # it is no client's: what one will ask is prefilled


def metadata_of(req: Any) -> RequestMetadata:
    """The metadata of a request, in a scheduler process."""
    metadata = _sent_with(req)
    if not metadata:
        return RequestMetadata()
    hints = Hints.loads(metadata["hints"]) if metadata["hints"] else None
    return RequestMetadata(metadata["stamp"], hints, "made_ahead" in metadata)


def is_made_ahead(req: Any) -> bool:
    """Whether a request is no client's, but was made ahead of one (``ahead``), in a scheduler process."""
    return "made_ahead" in _sent_with(req)


def first_tokens_of(req: Any) -> tuple[FirstToken, ...]:
    """First tokens of earlier requests that a request reports, in a scheduler process."""
    return load_first_tokens(_sent_with(req).get("first_tokens"))


def _sent_with(req: Any) -> Mapping[str, Any]:
    """What :func:`add_metadata` put with a request; nothing where it did not."""
    return (req.sampling_params.custom_params or {}).get(KEY) or {}


def add_metadata(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SGLang's TokenizerManager ``manager`` made ``tokenized`` of a request: put the metadata with it.

    Raises:
        ValueError: custom parameters that are no object, or wrong hints; a prefill server serves without them.
    """
    from radix_tlru.sglang.requests.turns import is_health_check

    params, config = getattr(tokenized, "sampling_params", None), config_of(manager.server_args)
    if params is None or config is None:
        return
    custom: dict[str, Any] = {}
    metadata: dict[str, Any] = {"stamp": time.monotonic(), "hints": None}
    if made_ahead.get():
        metadata["made_ahead"] = True
    else:
        custom.update(_custom_params(params.custom_params, manager.server_args))
        given = _fields_of(custom)
        if _beside.get() is not _NOTHING:  # the operator's default is for requests that say nothing themselves
            preferred = (manager.preferred_sampling_params or {}).get("custom_params") or {}
            given = {field: value for field, value in given.items() if value != preferred.get(field)}
        for field in FIELDS:
            custom.pop(field, None)
        priority = getattr(tokenized, "priority", None) if _has_priority.get() else None
        request = Request(len(getattr(tokenized, "input_ids", None) or ()), priority)
        hints = _read_hints(given, _beside.get(), request, config, manager.server_args)
        metadata["hints"] = hints and hints.dumps()  # as one string: what SGLang lets travel there may not be nested
    # Of several such processes none knows which requests are uncontended. A health check is dropped where others run.
    learns_from_all = config.objective_ms is not None and manager.server_args.tokenizer_worker_num == 1
    if learns_from_all and not is_health_check(tokenized):
        streams = getattr(tokenized, "stream", False)  # an embedding does not
        metadata["first_tokens"] = dump_first_tokens(
            _first_tokens(manager).count_arrival(tokenized.rid, streams=streams)
        )
    params.custom_params = {**custom, KEY: metadata}


def _custom_params(custom_params: Any, server_args: Any) -> Mapping[str, Any]:
    """The custom parameters of a client; the metadata goes in beside them."""
    if custom_params is None or isinstance(custom_params, Mapping):
        return custom_params or {}
    error = HintsError("custom_params", custom_params, "an object")
    if not _serves_without_hints(error, server_args):
        raise error
    return {}


def _read_hints(
    given: Mapping[str, Any], beside: _Beside, request: Request, config: Config, server_args: Any
) -> Hints | None:
    """The hints of a client: those ``given`` among the custom parameters, and those ``beside`` them.

    A header counts if none are given. None where wrong ones are ignored.

    Raises:
        ValueError: they are wrong, or given twice, and not ignored.
    """
    header = None if given else beside.header
    try:
        if twice := [field for field in given if field in beside.top]:
            raise ValueError(f"{twice[0]}: must be given once, not in custom_params as well")
        return read_hints(_all_of(given, beside), request, config.highest_priority)
    except ValueError as error:
        told = f"header {header}: {error}" if header else str(error)
        if not _serves_without_hints(told, server_args):
            raise ValueError(told) from error
        return None


def _serves_without_hints(error: object, server_args: Any) -> bool:
    """Whether a request with wrong hints is served without them: by a prefill server, which logs the error.

    Its decode server has the same request and knows nothing of hints. It would wait minutes for KV that never comes,
    and the client would be told that, not what is wrong.
    """
    prefills = bool(server_args.disaggregation_mode == "prefill")
    if prefills:
        logger.warning("radix_tlru: a request is served without its hints: %s", error)
    return prefills


def _first_tokens(manager: Any) -> FirstTokens:
    if not hasattr(manager, _FIRST_TOKENS):
        setattr(manager, _FIRST_TOKENS, FirstTokens(manager.rid_to_state, replicas_of(manager.server_args)))
    first_tokens: FirstTokens = getattr(manager, _FIRST_TOKENS)
    return first_tokens


async def check_hints(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Check the hints of a request where :func:`add_metadata` could not tell the client what is wrong with them.

    Around the last of ``HOOKED``.

    Raises:
        HTTPException: 400, the hints of the request or its header are wrong.
    """
    from fastapi import HTTPException

    asked = getattr(serving, "openai_serving_chat", serving)  # Anthropic's asks a chat
    server_args = asked.tokenizer_manager.server_args
    config = config_of(server_args)
    if config is not None:
        try:
            _read_hints({}, _beside_of(raw_request), Request(), config, server_args)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
    return await original(serving, request, raw_request)


def note_hints(original: Callable[..., Any], manager: Any, obj: Any, request: Any = None) -> Any:
    """Note the hints that come beside a request, for :func:`add_metadata`, which is called by the same task.

    Around ``TokenizerManager.generate_request``.
    """
    _beside.set(_beside_of(request))
    return original(manager, obj, request)


def note_priority(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Note whether the client gave a priority, before SGLang fills in its default; a batch has one of either.

    Around ``TokenizerManager._set_default_priority``, which is called when the answers are first asked for: whoever
    asks may have made several requests by then, and so :func:`note_hints` comes too early.
    """
    _has_priority.set(obj.priority is not None)
    return original(manager, obj)


def hints_of(custom_params: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
    """The hints of a request that was served, as :func:`_read_hints` read them."""
    return _all_of(_fields_of(custom_params), _beside_of(request))


def _all_of(given: Mapping[str, Any], beside: _Beside) -> dict[str, Any]:
    return {**given, **(beside.top if given else beside.read())}


def _beside_of(request: Any) -> _Beside:
    """The hints of a request that are not among its custom parameters."""
    # As SGLang's own class of requests keeps what it read. There is none of what comes by gRPC or from this process.
    body = getattr(request, "_json", None)
    if isinstance(body, Mapping) and (top := _fields_of(body)):
        return _Beside(top)
    headers = getattr(request, "headers", {})
    found = (_Beside(header=name, text=text) for name in HEADERS if (text := headers.get(name)) is not None)
    return next(found, _NOTHING)


def _fields_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``FIELDS`` that are there, and not null."""
    return {field: body[field] for field in FIELDS if body.get(field) is not None}
