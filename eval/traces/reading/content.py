"""What a message says, out of the shapes that APIs and logs give it: text, or a list of blocks of many types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from eval.traces.reading.chats import Message, Role
from eval.traces.request import InputKind, StopReason

_IMAGE_CHARACTERS = 4_000
"""That an image or a file counts for: 1,000 tokens at 4 characters each, about what providers count."""

_TEXTS = ("text", "content", "output", "thinking", "reasoning_content", "refusal", "summary", "value", "transcript")
_PROMPT = "system_prompt"  # where rows of nebius/SWE-agent-trajectories have the text of a system message
_THOUGHTS = ("reasoning_content", "reasoning", "thinking_blocks")
"""Names of the thoughts in a message: of several, all say the same."""
_CALLS = ("name", "arguments", "args", "input", "action", "operation", "tools")
_CALLED = ("function", "function_call", "tool_calls")
_BINARY = (
    *("image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "audio", "video_url"),
    *("computer_screenshot", "image_generation_call"),
)

_CLIENT_CALL_TYPES = {
    *("tool_use", "function_call", "custom_tool_call", "local_shell_call", "tool_search_call", "tool_call", "toolCall"),
    *("computer_call", "shell_call", "apply_patch_call"),
}
_SERVER_CALL_TYPES = {"server_tool_use", "mcp_tool_use", "web_search_call"}
"""Of tools that the API runs itself while it answers: the answer goes on behind them."""
_TOOL_CALL_TYPES = _CLIENT_CALL_TYPES | _SERVER_CALL_TYPES
_TOOL_RESULT_TYPES = {
    *("tool_result", "function_call_output", "custom_tool_call_output", "local_shell_call_output"),
    *("computer_call_output", "shell_call_output", "apply_patch_call_output", "tool_search_output"),
    "mcp_approval_response",
}

_ANSWERED_WITHIN = {
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "code_interpreter_call", "file_search_call"),
    *("image_generation_call", "compaction"),
}
"""Items of the Responses API that are written while it answers: of tools that it runs itself."""

_BLOCK_TYPES = {
    *("text", "input_text", "output_text", "thinking", "reasoning", "reasoning_text", "summary_text", "refusal"),
    *("message", "mcp_tool_result", *_TOOL_CALL_TYPES, *_TOOL_RESULT_TYPES),
}
"""Of blocks whose other fields, such as ids and signatures, no model reads."""

_CACHED = "cache_control"
"""A mark that clients move from block to block with each call; no model reads it."""

_MARKS = {"annotations", _CACHED, "isError", "is_error"}
"""Fields that a block without a type may have beside its text."""

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "ai", "bot"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call", "tool_calls"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "tool_result", "function_response"), "tool"),
}

ROLES_ALLOWED = "must be system, user, assistant, tool or another API's name of one, such as human, gpt or function"

_STOPS: dict[str, StopReason] = {
    **dict.fromkeys(("tool_use", "tool_calls", "tool_call", "function_call"), "tool_calls"),
    **dict.fromkeys(("end_turn", "stop", "stop_sequence", "eos", "refusal", "content_filter", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("abort", "aborted", "cancelled", "canceled", "error"), "abort"),
}


def stop_reason(name: str | None) -> StopReason | None:
    """How an answer ended, in one set of terms; None where the name is empty or of no known API."""
    return _STOPS.get(name.lower()) if name else None


def role_of(name: str) -> Role | None:
    """The role that a name stands for; None if it is of no known format."""
    return _ROLES.get(name.lower())


def input_kind(types: Sequence[str] | None) -> InputKind | None:
    """What new content is, from the types of its blocks; None where a model's own words are among it."""
    kinds = set(types or ())
    if "tool_result" in kinds and kinds <= {"tool_result", "text", "image", "document"}:
        return "tool"
    return "user" if kinds and kinds <= {"text", "image", "document"} else None


def text_of(content: Any) -> str:
    """All that a model reads of a content, as text. An image is as many characters as it counts for."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _text_of_block(content)
    if isinstance(content, Sequence):
        return "\n".join(filter(None, map(text_of, content)))
    return str(content)


def block_types(content: Any) -> set[str]:
    """The types of the blocks of a content; text alone is one of type ``text``."""
    if isinstance(content, str):
        return {"text"}
    if not isinstance(content, Sequence):
        return set()
    return {str(block.get("type", "text")) for block in content if isinstance(block, Mapping)}


def calls_tool(message: Mapping[str, Any]) -> bool:
    """Whether an answer calls a tool of the client, in any of the shapes of a message."""
    if message.get("tool_calls") or message.get("function_call"):
        return True
    types = {*block_types(message.get("content")), str(message.get("type"))}
    return not types.isdisjoint(_CLIENT_CALL_TYPES)


def is_item(row: Mapping[str, Any]) -> bool:
    """Whether an object is an item of the Responses API that has no role: a call, its result, a thought."""
    kind = str(row.get("type", ""))
    return "role" not in row and kind in {"reasoning", *_TOOL_CALL_TYPES, *_TOOL_RESULT_TYPES, *_ANSWERED_WITHIN}


def message_of(message: Mapping[str, Any]) -> Message | None:
    """A message of an API or an item of a log; None if it has no known role."""
    kind = str(message.get("type", ""))
    role: Role | None
    if kind in _ANSWERED_WITHIN:
        return Message("assistant", _text_of_block({name: message[name] for name in message if name != "id"}))
    if kind in _TOOL_CALL_TYPES or kind == "reasoning":
        role = "assistant"
    elif kind in _TOOL_RESULT_TYPES:
        role = "tool"
    else:
        role = role_of(str(message.get("role", "")))
    if role is None:
        return None
    if role == "user" and "tool_result" in block_types(message.get("content")):
        role = "tool"
    # Beside its role, a message may have what an agent made of it (`action`), or a copy of what it answers (`input`).
    notes = {"action"} if "role" in message else set[str]()
    notes |= {"input"} if role != "assistant" else set()
    said = {name: value for name, value in message.items() if name not in (*notes, *_THOUGHTS)}
    said["thinking"] = said.get("thinking") or next((message[name] for name in _THOUGHTS if message.get(name)), None)
    text = _said(said) or (text_of(message.get(_PROMPT)) if role == "system" else "")
    return Message(role, text, calls_tool=role == "assistant" and calls_tool(message))


def _text_of_block(block: Mapping[str, Any]) -> str:
    kind = str(block.get("type", ""))
    block = _unmarked(block)
    if kind in _BINARY:
        digest = blake2b(msgspec.json.encode(block, order="sorted"), digest_size=32).hexdigest()
        return (digest * (_IMAGE_CHARACTERS // len(digest) + 1))[:_IMAGE_CHARACTERS]
    known = kind in _BLOCK_TYPES or (not kind and block.keys() <= {*_TEXTS, *_MARKS})
    # Of any other object all is read: the structured result of a tool may have any fields.
    return (_said(block) if known else "") or whole_text(block)


def _said(block: Mapping[str, Any]) -> str:
    """The texts of a message or a block, and the calls of tools in it: their names and arguments."""
    parts = [text_of(block.get(name)) for name in _TEXTS]
    parts += [whole_text(block[name]) for name in _CALLS if block.get(name)]
    for name in _CALLED:
        calls = block.get(name)
        for call in calls if isinstance(calls, list) else [calls]:
            parts.append(_said(call) if isinstance(call, Mapping) else text_of(call))
    return "\n".join(filter(None, parts))


def whole_text(value: Any) -> str:
    """Tools or arguments of tools as text: objects of any fields, all of which a model reads."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = [_unmarked(each) if isinstance(each, Mapping) else each for each in value]
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return str(value)


def _unmarked(block: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in block.items() if name != _CACHED} if _CACHED in block else block
