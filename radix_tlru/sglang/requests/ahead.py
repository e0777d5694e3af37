"""``--tlru-prefill-ahead``: the certain beginning of the next prompt is prefilled after an answer, while nobody waits.

Chat templates leave reasoning out of later prompts. So the next prompt of such a chat does not repeat its context as it
is cached, and the answer has to be prefilled again behind the last prompt. That is done before the user writes, if the
request says so (NVIDIA Dynamo's ``nvext.agent_hints.speculative_prefill``):

    an answer is out ── the chat with it, rendered twice with two next messages: what both begin with is certain
                     ── no request is in flight ── a request for no token, of the lowest priority

A server that drains would wait for it as for any client: then nothing is prefilled any more.

All of it is in the process that renders chats. A scheduler sees a request for no token that is marked as made ahead.
It is no turn. Its context belongs to the conversation of the answer
(:meth:`~radix_tlru.learning.learner.Learner.record_prefill`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from itertools import takewhile
from typing import Any

from radix_tlru.config import FLAGS, one_line
from radix_tlru.hints.clients import asks_for_prefill
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.metadata import hints_of, made_ahead

__all__ = ["HOOKED", "PATIENCE_S", "install"]

HOOKED = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat.handle_request"
"""Method of SGLang that is hooked: it answers the requests of ``/v1/chat/completions``. Those of ``/v1/messages``, of
clients that repeat thoughts in the next prompt, go to other methods of its class."""

PATIENCE_S = 60.0
"""For which it is waited that no request is in flight; then nothing is prefilled for that answer."""

_LOOK_EVERY_S = 0.02
_MOST_WAITING = 64  # answers for which is waited; nothing is prefilled for a further one
_NEXT = ("Yes", "no")  # next messages that have nothing in common
_ENDS = ("stop", "length")  # of answers behind which the user speaks: thoughts before a call of a tool mostly stay
_LOWEST = 1 << 30  # priority
_MEDIA = ("image_data", "video_data", "audio_data")
_KEPT_APART = ("lora_path", "cache_salt", "extra_key")  # fields of a request by which the cache keeps prefixes apart

logger = logging.getLogger(__name__)

_tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps none alive


def install() -> None:
    """Have what comes next prefilled in this process, for requests that say so.

    Raises:
        ConfigError: this SGLang does not take the hook.
    """
    hook(HOOKED, after_answer, f"{FLAGS['prefill_ahead']}: answers are not seen", "around")


async def after_answer(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any) -> Any:
    """Around the method that answers a chat, in one piece or as a stream."""
    reply = await original(serving, request, raw_request)
    choices, stream = getattr(reply, "choices", None), getattr(reply, "body_iterator", None)  # an error has neither
    if stream is not None and _is_asked_for(request, raw_request):
        reply.body_iterator = _read_along(stream, serving, request)
    elif choices and _is_asked_for(request, raw_request) and choices[0].finish_reason in _ENDS:
        _begin(serving, request, choices[0].message.content)
    return reply


async def _read_along(chunks: AsyncIterator[Any], serving: Any, request: Any) -> AsyncIterator[Any]:
    """The same chunks; at the end of them the answer is known."""
    told: list[str] = []
    finish = None
    async for chunk in chunks:
        yield chunk
        for choice in _choices_of(chunk):
            told.append(choice.get("delta", {}).get("content") or "")
            finish = choice.get("finish_reason") or finish
    if finish in _ENDS:
        _begin(serving, request, "".join(told))


def _choices_of(chunk: Any) -> list[Mapping[str, Any]]:
    """The choices of an event of a stream; none of its last one, which is no JSON."""
    text = chunk.decode() if isinstance(chunk, bytes) else str(chunk)
    _, _, data = text.partition("data: ")
    return json.loads(data).get("choices") or [] if data.startswith("{") else []


def _is_asked_for(request: Any, raw_request: Any) -> bool:
    """Whether the request, which has been answered, wants it, and one answer only, which ends a message.

    The next prompt of a chat that is sent as tokens, or whose answer goes on with its last message, is not known.
    """
    if request.n != 1 or request.continue_final_message or request.input_ids is not None:
        return False
    return asks_for_prefill(hints_of(request.custom_params or {}, raw_request))


def _begin(serving: Any, request: Any, answer: str | None) -> None:
    """The answer is out: have the next prompt prefilled as far as it is known, when there is time."""
    if len(_tasks) >= _MOST_WAITING:
        _count(serving, "dropped")
        return
    task = asyncio.get_running_loop().create_task(_prefill(serving, request, answer or ""))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _prefill(serving: Any, request: Any, answer: str) -> None:
    loop, manager = asyncio.get_running_loop(), serving.tokenizer_manager
    made_ahead.set(True)
    try:
        wanted = await loop.run_in_executor(None, _next_request, serving, request, answer)
        until = loop.time() + PATIENCE_S
        while manager.rid_to_state or manager.gracefully_exit:  # requests in flight, or a server that drains
            if manager.gracefully_exit or loop.time() > until:
                _count(serving, "dropped")
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        async for reply in manager.generate_request(wanted, None):
            told = reply["meta_info"]
            _count(serving, "done", told["prompt_tokens"] - told["cached_tokens"])
    except Exception as error:  # the client has its answer
        _count(serving, "failed")
        logger.warning("radix_tlru: nothing is prefilled ahead: %s", one_line(str(error)))


def _next_request(serving: Any, request: Any, answer: str) -> Any:
    """A request for no token, for what the next prompt begins with whatever the user says.

    Of the client's request it has what the cache keeps apart, and nothing that works on an answer.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    rendered = [_rendered(serving, request, answer, message) for message in _NEXT]
    first, second = (each.input_ids for each in rendered)
    if not (isinstance(first, list) and isinstance(second, list)) or any(getattr(rendered[0], it) for it in _MEDIA):
        raise ValueError("prompts that are not of text alone are not known as tokens")
    priority, server_args = None, serving.tokenizer_manager.server_args
    if server_args.enable_priority_scheduling:
        priority = _LOWEST if server_args.schedule_low_priority_values_first else -_LOWEST
    return GenerateReqInput(
        input_ids=[one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))],
        sampling_params={"max_new_tokens": 0, "temperature": 0.0},
        priority=priority,
        **{field: getattr(rendered[0], field) for field in _KEPT_APART},
    )


def _rendered(serving: Any, request: Any, answer: str, message: str) -> Any:
    """The request that the client would send next, as SGLang hands it on; of it the prompt is of interest."""
    said = [{"role": "assistant", "content": answer}, {"role": "user", "content": message}]
    asked = request.model_copy(deep=True)
    asked.messages = [*asked.messages, *type(request)(model=request.model, messages=said).messages]
    wanted, _ = serving._convert_to_internal_request(asked)
    return wanted


def _count(serving: Any, outcome: str, tokens: int = 0) -> None:
    if serving.tokenizer_manager.server_args.enable_metrics:
        answers, prefilled = _counters()
        answers.labels(outcome).inc()
        prefilled.inc(tokens)


@cache
def _counters() -> tuple[Any, Any]:
    # Imported here as SGLang does: the multiprocess directory must be in the environment by then.
    from prometheus_client import Counter

    return (
        Counter("sglang:tlru_ahead_answers_total", "Answers whose next prompt was to be prefilled ahead.", ["outcome"]),
        Counter("sglang:tlru_ahead_prefilled_tokens_total", "Tokens prefilled ahead of next prompts."),
    )
