"""Answers that were logged as they were streamed: chunks, or server-sent events as one text, as whole responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eval.traces.reading.records import json_value

_EVENTS = ("data:", "event:", ":")  # how the text of a stream begins; OpenRouter's with a comment
_LINE_END = re.compile(r"\r\n|\r|\n")  # of an event; str.splitlines cuts texts at U+2028 and others, too


def whole_response(value: Any) -> Any:
    """The response that the chunks of a stream make; any other value as it is."""
    chunks = _chunks(value)
    if any("choices" in each for each in chunks):
        return _of_choices(chunks)
    if any(each.get("type") == "message_start" for each in chunks):
        return _of_anthropic(chunks)
    # The last event of the Responses API has all of it.
    ended = (each for each in reversed(chunks) if str(each.get("type")).startswith("response."))
    return next((each["response"] for each in ended if _fields(each.get("response"))), value)


def _chunks(value: Any) -> list[Mapping[str, Any]]:
    """The chunks of a stream; none where a value is none."""
    items = value if isinstance(value, list) else []
    if isinstance(value, str) and value.startswith(_EVENTS):
        items = [json_value(line[len("data:") :]) for line in _LINE_END.split(value) if line.startswith("data:")]
    return [each for each in items if _fields(each)]


def _of_choices(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the APIs of chats and of completions, the first answer."""
    texts = dict.fromkeys(("content", "reasoning_content", "reasoning", "text"), "")
    calls: dict[str, dict[str, str]] = {}  # by index
    finish: Any = None
    for choice in (_fields(each) for chunk in chunks for each in _items(chunk.get("choices"))):
        if choice.get("index"):
            continue
        delta = _fields(choice.get("delta")) or _fields(choice.get("message"))
        for name in texts:
            texts[name] += _text(delta.get(name)) or _text(choice.get(name))
        for call in map(_fields, _items(delta.get("tool_calls"))):
            function = calls.setdefault(str(call.get("index")), {"name": "", "arguments": ""})
            for name in function:
                function[name] += _text(_fields(call.get("function")).get(name))
        finish = choice.get("finish_reason") or finish
    made = [{"function": function} for function in calls.values()]
    thoughts = texts["reasoning_content"] or texts["reasoning"]
    message = {"role": "assistant", "content": texts["content"], "reasoning_content": thoughts}
    answer = {"text": texts["text"]} if texts["text"] else {"message": message | {"tool_calls": made}}
    usage = next((each["usage"] for each in reversed(chunks) if each.get("usage")), None)
    return {**chunks[0], "choices": [answer | {"finish_reason": finish}], "usage": usage}


def _of_anthropic(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    blocks: dict[str, dict[str, Any]] = {}  # by index
    for event in events:
        kind, delta, block = event.get("type"), _fields(event.get("delta")), str(event.get("index"))
        if kind == "message_start":
            message |= _fields(event.get("message"))
        elif kind == "content_block_start":
            blocks[block] = dict(_fields(event.get("content_block")))
        elif kind == "content_block_delta":
            said = blocks.setdefault(block, {"type": "text"})
            for name, field in (("text", "text"), ("thinking", "thinking"), ("partial_json", "input")):
                if name in delta:
                    said[field] = _text(said.get(field)) + _text(delta[name])
        elif kind == "message_delta":
            message["stop_reason"] = delta.get("stop_reason")
            usage |= {name: count for name, count in _fields(event.get("usage")).items() if count is not None}
    for said in blocks.values():  # a tool's input comes as text, and the next prompt has it as an object
        if isinstance(said.get("input"), str):
            said["input"] = json_value(said["input"])
    return message | {"content": list(blocks.values()), "usage": {**_fields(message.get("usage")), **usage}}


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
