"""Bodies of requests to the APIs of OpenAI and Anthropic: where they are in a row, and what the model reads of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from eval.traces.reading.chats import Message
from eval.traces.reading.content import ROLES_ALLOWED, message_of, text_of, whole_text
from eval.traces.reading.records import Record, bad_field, json_value, without_nulls
from eval.traces.reading.times import any_seconds
from eval.traces.request import TraceError

_EXIT = "exit"
"""The role of mini-swe-agent's last message, which says how the run ended; no model reads it."""

BODIES = ("body", "request", "payload", "params", "request_body", "kwargs", "proxy_server_request")
"""Fields of a row that may hold the body."""

_CONVERSATIONS = ("messages", "trajectory", "history")
"""Fields of a body that may hold its messages; the ``trajectory`` of some agents is a list of steps instead."""

_ASKED = {"input", "prompt", "query", "question", "response"}
"""Beside one of these a history is what came before it, and no whole conversation."""

_JSON = re.compile(r"\s*(\{|\[\s*\{)")  # how objects and lists of them begin


def body_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of the request in a row; tables of logs, as of LiteLLM, have the messages as JSON in a text."""
    body = _body(row)
    for name in _CONVERSATIONS if _ASKED.isdisjoint(body) else _CONVERSATIONS[:1]:
        found = body.get(name)
        messages = loaded(found)
        if isinstance(messages, list) and (name == "messages" or (messages and are_messages(messages))):
            return body if name == "messages" and messages is found else {**body, "messages": messages}
    return body


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """As it stands there; OpenHands keeps its tools and its model beside the messages, in ``kwargs``.

    LiteLLM's table of calls has the body in ``proxy_server_request``, or "{}", and "{}" in ``messages``.
    """
    for name in BODIES:
        found = loaded(row.get(name))
        if found and isinstance(found, Mapping):
            if isinstance(row.get("messages"), list) and "messages" not in found:
                return {**found, **row}
            return _body(found) if found.keys() & set(BODIES) else found
    found = loaded(row.get("input"))
    return {**row, **found} if isinstance(found, Mapping) and isinstance(found.get("messages"), list) else row


def loaded(value: Any) -> Any:
    """JSON within JSON, as some logs have it; a text that is none stays one."""
    found = json_value(value) if isinstance(value, str) and _JSON.match(value) else None
    return value if found is None else found


def are_messages(messages: list[Any]) -> bool:
    """Whether all of a list are messages of an API or items of its Responses."""
    return all(isinstance(each, Mapping) and ("role" in each or "type" in each) for each in messages)


def are_prompts(prompt: Any) -> bool:
    """Whether a prompt of the Completions API is a text, token ids, or a list of either."""
    if isinstance(prompt, str) or are_tokens(prompt):
        return True
    return isinstance(prompt, list) and all(isinstance(each, str) or are_tokens(each) for each in prompt)


def are_tokens(prompt: Any) -> bool:
    """Whether a prompt is a list of token ids."""
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int and 0 <= each < 2**31 for each in prompt)


def conversation_of(body: Mapping[str, Any]) -> str | None:
    """The conversation of the Responses API that a call goes on with."""
    told = body.get("conversation")
    name = told.get("id") if isinstance(told, Mapping) else told
    return name if isinstance(name, str) else None


def head_of(body: Mapping[str, Any]) -> list[Message]:
    """What the model reads first: tools and the system prompt."""
    others = loaded(body.get("model_parameters"))  # LiteLLM logs the tools there
    places = [body, *([others] if isinstance(others, Mapping) else [])]
    tools = next((found for each in places for name in ("tools", "functions") if (found := each.get(name))), None)
    # In a table each of them has the fields of all, null where another has them.
    described = whole_text(without_nulls(tools)) if tools else ""
    return [Message("system", text) for text in (described, _system(body)) if text]


def messages_of(record: Record, body: Mapping[str, Any]) -> list[Message]:
    """The messages of a body, in order."""
    if isinstance(body.get("messages"), list):
        field, items = "messages", body["messages"]
    elif "input" in body:
        field, items = "input", body["input"]
    else:
        field, items = "prompt", body.get("prompt")
    if field == "input" and isinstance(within := loaded(items), list) and are_messages(within):
        items = within
    if isinstance(items, str):
        return [Message("user", items)]
    found = []
    for number, item in enumerate(items or ()):
        if isinstance(item, Mapping) and item.get("role") == _EXIT:
            continue
        message = message_of(item) if isinstance(item, Mapping) else None
        if message is None and isinstance(item, Mapping) and "role" not in item and "type" in item:
            kind = str(item["type"])[:40]
            raise bad_field(record, f"{field}[{number}].type", f"{kind!r} is no item that can be read")
        if message is None:
            role = item.get("role") if isinstance(item, Mapping) else type(item).__name__
            reason = f"{str(role)[:40]!r} is no role of a message, {ROLES_ALLOWED}"
            raise bad_field(record, f"{field}[{number}].role", reason)
        found.append(replace(message, time_s=_time(item)))
    return found


def _time(item: Mapping[str, Any]) -> float | None:
    """When a message was written, s: agents log it, mini-swe-agent in ``extra``. None where no time is told."""
    extra = item.get("extra")
    for place in (item, extra if isinstance(extra, Mapping) else {}):
        time = place.get("timestamp")
        if isinstance(time, int | float | str | datetime) and not isinstance(time, bool):
            try:
                return any_seconds(Record("", None), "timestamp", time)
            except TraceError:
                return None
    return None


def _system(body: Mapping[str, Any]) -> str:
    return text_of(body.get("system") or body.get("instructions"))


class Histories:
    """What the Responses API keeps: a prompt names an earlier response or a conversation, and has only what is new.

    Attributes:
        found: prompts whose history the log has.
        missing: prompts whose history it has not.
    """

    def __init__(self) -> None:
        self.found = self.missing = 0
        self._kept: dict[str, tuple[Message, ...]] = {}  # by response and by conversation

    def before(self, name: str | None, *, new: bool = False) -> tuple[Message, ...]:
        """The messages that were kept under a name.

        Args:
            new: nothing may be kept yet, as for a conversation that begins.
        """
        if name is None:
            return ()
        known = self._kept.get(name)
        self.found += known is not None
        self.missing += known is None and not new
        return known or ()

    def keep(self, messages: Sequence[Message], *names: str | None) -> None:
        """Keep a history under its names."""
        self._kept.update((name, tuple(messages)) for name in names if name is not None)
