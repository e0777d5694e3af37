"""Calls of the APIs of OpenAI and Anthropic out of the many rows that logs and batches make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from eval.traces.reading.bodies import (
    BODIES,
    Histories,
    are_messages,
    are_prompts,
    are_tokens,
    body_of,
    conversation_of,
    head_of,
    loaded,
    messages_of,
)
from eval.traces.reading.calls import TextCall
from eval.traces.reading.chats import Message
from eval.traces.reading.clock import is_since_1970
from eval.traces.reading.content import message_of, stop_reason
from eval.traces.reading.records import Record, as_count, bad_field, count_in
from eval.traces.reading.streams import whole_response
from eval.traces.reading.times import any_seconds
from eval.traces.request import StopReason

CONTAINERS = ("data", "requests", "conversations", "rows", "calls")
"""Fields of a document in which rows may lie."""

_RESPONSES = ("response", "response_body", "completion", "result")
_SAID = ("response", "completion")  # of these, those that may be the text of an answer; a `result` may be a verdict
# Not `prompt_cache_key`: all requests of an application may have one, for the prefix that they share.
_SESSIONS = ("session_id", "conversation_id", "thread_id", "chat_id")
_TIMES = ("timestamp", "created_at", "created", "start_time", "startTime", "time", "request_time", "request_created_at")
_ENDS = ("end_time", "endTime", "completed_at", "response_time_at", "response_created_at")
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_REDACTED = "redacted-by-litellm"  # stands for all messages of any prompt: read as texts, they would all be alike
_OF_AIPERF = {"messages", "payload"}
_OF_VLLM = {"prompt", "output_tokens"}  # all fields of a row of vLLM's `custom` data set
_AGENTIC_OUTPUT = 220  # tokens of an answer that SGLang's `agentic-trace` assumes where none are given


def rows_of(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows that a document holds, or the document itself, if it holds none."""
    containers = [name for name in CONTAINERS if isinstance(document.get(name), list)]
    if not containers or is_call(document) or response_of(document) or "role" in document:
        yield document
        return
    for name in containers:
        for number, row in enumerate(document[name]):
            if isinstance(row, Mapping):
                yield row.get("row", row) if isinstance(row.get("row", row), Mapping) else row
            elif isinstance(row, list):
                for turn in row:
                    if isinstance(turn, Mapping):
                        yield {"output_length": _AGENTIC_OUTPUT} | dict(turn) | _turn_of(number)
            else:
                yield {}  # nothing that can be read, but it counts


def _turn_of(conversation: int) -> dict[str, Any]:
    return {"session_id": f"conversation {conversation}", "message_mode": "delta"}


def is_call(row: Mapping[str, Any]) -> bool:
    """Whether a row holds a prompt: messages, text, token ids, several of these, or the input of the Responses API."""
    body = body_of(row)
    if isinstance(body.get("messages"), list) and are_messages(body["messages"]):
        return True
    answered = any(name in row for name in _SAID)
    asks = "model" in body or "max_tokens" in body or answered or body.keys() <= _OF_VLLM
    if are_prompts(body.get("prompt")) and asks:
        return True
    # In an observation of Langfuse that is no call, such as one of a tool, the model is null.
    return isinstance(body.get("input"), list | str) and bool(body.get("model")) and "pre_gap" not in body


def unserved(row: Mapping[str, Any]) -> str:
    """Why a call reached no model that answers, with the field that says so; "" if it may have."""
    for name in ("url", "call_type"):
        if "embedding" in str(row.get(name)):
            return f"{name}: an embedding"
    if row.get("status") == "failure" and not response_of(row):
        return "status: the call failed"
    is_cached = "call_type" in row and str(row.get("cache_hit")).lower() == "true"
    return "cache_hit: LiteLLM answered from a cache of its own" if is_cached else ""


def each_prompt(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A call for each prompt of a row of the Completions API, which takes many at once; any other row as it is."""
    body, response = body_of(row), response_of(row)
    prompts = body.get("prompt")
    if isinstance(body.get("messages"), list) or not (isinstance(prompts, list) and prompts) or are_tokens(prompts):
        yield row
        return
    around = {name: value for name, value in row.items() if name not in (*BODIES, *_RESPONSES, "choices", "usage")}
    choices = response.get("choices")
    each = len(choices) // len(prompts) if isinstance(choices, list) else 0
    for number, prompt in enumerate(prompts):
        one = around | {"body": dict(body) | {"prompt": prompt}}
        if each and isinstance(choices, list):
            one["response"] = dict(response) | {"choices": choices[number * each : (number + 1) * each]}
            if len(prompts) > 1:
                one["response"]["usage"] = None  # it is of all of them
        yield one


def response_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response of an API in a row, or that is the row; empty if there is none."""
    if "choices" in row or (row.get("object") == "response" and "output" in row):
        return row
    if row.get("type") == "message" and isinstance(row.get("usage"), Mapping):  # of Anthropic's Messages API
        return row
    for name in _RESPONSES:
        found = whole_response(loaded(row.get(name)))
        if isinstance(found, Mapping):
            inner = whole_response(loaded(found.get("body") or found.get("body_raw")))
            found = inner if isinstance(inner, Mapping) else found
            inner = found.get("message")  # of a batch of Anthropic's
            found = inner if isinstance(inner, Mapping) and "usage" in inner else found
            if found.keys() & {"choices", "output", "content", "message", "usage"}:
                return found
        said = row.get(name)  # which may be JSON itself
        if name in _SAID and isinstance(said, str) and found and "error" not in found and is_call(row):
            return {"message": {"role": "assistant", "content": said}}
    return _observed(row) if row.get("model") and "input" in row and row.get("output") else {}


def _observed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of an observation of Langfuse, which has its ``output`` beside its ``input``."""
    output = loaded(row["output"])
    said = output if isinstance(output, Mapping) and "role" in output else {"role": "assistant", "content": output}
    return {"message": said, "usage": _observed_usage(row)}


def _observed_usage(row: Mapping[str, Any]) -> Any:
    """The tokens of an observation, in the names of OpenAI's API.

    Some clients of Langfuse count cached tokens within its ``input`` and some beside it. Its ``total`` has them once.
    """
    usage, details = row.get("usage"), loaded(row.get("usageDetails"))
    counts = details if details and isinstance(details, Mapping) else usage
    if not isinstance(counts, Mapping) or not counts.keys() & {"input", "output"}:
        return usage
    prompt, output, total = counts.get("input"), counts.get("output"), as_count(counts.get("total"))
    answer = [as_count(count) for name, count in counts.items() if name.startswith("output")]
    if counts.get("unit") not in (None, "TOKENS"):
        prompt = output = None
    elif answer and None not in answer:
        output = sum(count or 0 for count in answer)
        prompt = prompt if total is None or total <= output else total - output
    return {"prompt_tokens": prompt, "completion_tokens": output}


def call_of(record: Record, row: Mapping[str, Any], histories: Histories | None = None) -> TextCall:
    """The call of a row for which ``is_call``.

    Args:
        histories: of the calls before; gets that of this one.

    Raises:
        TraceError: a field is not what it must be; one line with its name.
    """
    body, response = body_of(row), response_of(row)
    usage = response.get("usage") or row.get("usage") or (row if row.get("completion_tokens") else None)  # LiteLLM's
    answer, stop, output = _answer(record, response, usage)
    start_s, end_s = _span(record, row, body, response)
    if output is None:
        output = _tokens(record, row, "output_tokens" if row.keys() <= _OF_VLLM else "output_length")
    named = [(name, str(each[name])) for each in (row, body) for name in _SESSIONS if _is_name(each.get(name))]
    session_field, session = named[0] if named else ("", None)
    delay = row.get("delay")
    if delay is not None and not (isinstance(delay, int | float) and 0 <= delay < 1e12):
        raise bad_field(record, "delay", f"{delay!r}, must be milliseconds, 0 or more")
    prompt: Any = body.get("prompt")
    tokens: Sequence[int] = prompt if are_tokens(prompt) and not isinstance(body.get("messages"), list) else ()
    messages: list[Message] = []
    if not tokens:
        histories = histories or Histories()
        head, new = head_of(body), messages_of(record, body)
        if any(each.text == _REDACTED for each in new):
            raise bad_field(record, "messages", f"{_REDACTED!r}, must be the prompt (turn_off_message_logging: false)")
        follows = _text(body.get("previous_response_id")) or _text(response.get("previous_response_id"))
        kept = conversation_of(body)
        session = session or kept
        history = (*histories.before(follows or kept, new=follows is None), *new)
        if "messages" not in body and body.get("store") is not False:
            histories.keep((*history, *answer), _text(response.get("id")), kept)
        messages = [*head, *history]
    return TextCall(
        messages=messages,
        tokens=tokens,
        answer=answer,
        adds=row.get("message_mode") == "delta",
        session=session,
        of_agents=session_field == _SESSIONS[0] and "message_mode" not in row,
        start_s=start_s,
        end_s=end_s,
        delay_s=None if delay is None else delay / 1000,
        prompt_tokens=_prompt_tokens(record, usage),
        output_tokens=output,
        thought_tokens=_thoughts(record, usage),
        stop=stop,
        model=_text(body.get("model")) or _text(response.get("model")) or _text(row.get("model_name")),
        where=record.where,
    )


def answer_of(record: Record, row: Mapping[str, Any]) -> TextCall:
    """The call of a response that has no prompt beside it: without messages, its times, lengths and end.

    Raises:
        TraceError: it has no usage, or a time is none.
    """
    response = response_of(row)
    usage = response.get("usage") or row.get("usage")
    if not isinstance(usage, Mapping):
        raise bad_field(record, "usage", "missing: a response without its prompt tells nothing but lengths")
    _, stop, output = _answer(record, response, usage)
    start_s, end_s = _span(record, row, {}, response)
    return TextCall(
        messages=(),
        start_s=start_s,
        end_s=end_s,
        prompt_tokens=_prompt_tokens(record, usage) or 0,
        output_tokens=output or 0,
        stop=stop,
        model=_text(response.get("model")),
        where=record.where,
    )


def _span(
    record: Record, row: Mapping[str, Any], body: Mapping[str, Any], response: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """When a call started and when its answer ended, s; of the row before its request and its response."""
    start_s, end_s = _time(record, (row, body), _TIMES), _time(record, (row, response), _ENDS)
    sent, came = row.get("request"), row.get("response")
    if isinstance(sent, Mapping) and isinstance(came, Mapping) and "status_code" in came:  # each with its own time
        start_s = _time(record, (sent,), ("timestamp",)) if start_s is None else start_s
        end_s = _time(record, (came,), ("timestamp",)) if end_s is None else end_s
    if start_s is None:
        start_s = _time(record, (response,), ("created", "created_at"))
    latency = row.get("latency_ms", row.get("duration_ms"))
    if end_s is None and start_s is not None and isinstance(latency, int | float) and latency >= 0:
        end_s = start_s + latency / 1000
    return start_s, end_s


def _answer(
    record: Record, response: Mapping[str, Any], usage: Any
) -> tuple[tuple[Message, ...], StopReason | None, int | None]:
    """The messages of an answer, how it ended, and its tokens."""
    output = _usage(record, usage, "completion_tokens", "output_tokens", "output")
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    items: Sequence[Any] = [choice.get("message")] if choice.get("message") else []
    if not items and isinstance(choice.get("text"), str):
        items = [{"role": "assistant", "content": choice["text"]}]
    elif not items and isinstance(response.get("output"), list):
        items = response["output"]
    elif not items and response.get("content"):
        items = [{"role": "assistant", "content": response["content"]}]
    elif not items and isinstance(response.get("message"), Mapping):
        items = [response["message"]]
    said = tuple(found for item in items if isinstance(item, Mapping) and (found := message_of(item)) is not None)
    told = choice.get("finish_reason") or response.get("stop_reason")
    cut = response.get("incomplete_details")
    told = told or (cut.get("reason") if isinstance(cut, Mapping) else None) or response.get("status")
    stop = stop_reason(told) if isinstance(told, str) else None
    if stop == "stop" and said and said[-1].calls_tool:
        stop = "tool_calls"
    return said, stop, output


def _prompt_tokens(record: Record, usage: Any) -> int | None:
    """Tokens of a prompt, cached ones included: Anthropic counts those apart, all others within."""
    if not isinstance(usage, Mapping):
        return None
    usage = _first_round(usage)
    fresh = _usage(record, usage, "prompt_tokens", "input_tokens")
    if fresh is None or "prompt_tokens" in usage:
        return fresh
    return fresh + sum(_usage(record, usage, name) or 0 for name in _CACHED)


def _first_round(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokens of a prompt: Anthropic adds those of all iterations of an answer, between which it runs tools itself.

    Some clients log iterations without what was cached.
    """
    told = usage.get("iterations")
    rounds = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list) else []
    rounds = [each for each in rounds if each.get("type") == "message"]
    cached = _CACHED[0]
    whole = bool(rounds) and (rounds[0].get(cached) is not None or not usage.get(cached))
    return rounds[0] if len(rounds) > 1 and whole else usage


def _thoughts(record: Record, usage: Any) -> int:
    """Of the tokens of an answer, those of thoughts that the API keeps to itself."""
    if not isinstance(usage, Mapping):
        return 0
    details = (usage.get(name) for name in ("completion_tokens_details", "output_tokens_details"))
    return next((_usage(record, each, "reasoning_tokens") or 0 for each in details if isinstance(each, Mapping)), 0)


def _usage(record: Record, usage: Any, *names: str) -> int | None:
    """The first of these fields that is a number."""
    if not isinstance(usage, Mapping):
        return None
    found = (count_in(record, f"usage.{name}", usage.get(name)) for name in names)
    return next((each for each in found if each is not None), None)


def _time(record: Record, places: Sequence[Mapping[str, Any]], names: Sequence[str]) -> float | None:
    for each in places:
        for name in names:
            value = each.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float | str | datetime):
                continue
            time_s = any_seconds(record, name, value)
            # From the start of a trace, rows of aiperf, which have the messages or a payload beside it, count ms.
            is_ms = name == "timestamp" and not _OF_AIPERF.isdisjoint(each) and not is_since_1970(time_s)
            return time_s / 1000 if is_ms else time_s
    return None


def _tokens(record: Record, row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and as_count(value) is None:
        raise bad_field(record, name, f"{value!r}, must be a number of tokens, 0 or more")
    return value


def _is_name(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and bool(value))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
