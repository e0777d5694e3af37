"""Answers that a log has as they were streamed: a list of chunks, or the text of server-sent events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.openai_rows import body, read

QUESTION = {"role": "user", "content": "12345678"}  # 2 tokens, at 4 characters each
USAGE = {"prompt_tokens": 20, "completion_tokens": 9}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], "usage": None} | more


OF_CHAT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "aaaa"}),
    chunk({"content": "bbbb"}),
    chunk({}, "length"),
    chunk({}, choices=[], usage=USAGE),
]
CALL = [{"index": 0, "id": "1", "function": {"name": "ls", "arguments": ""}}]
OF_TOOL = [
    *(
        chunk({"content": None, "tool_calls": CALL}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    ),
    chunk({}, "tool_calls", usage=USAGE),
]
OF_TEXT = [{"choices": [{"text": text, "finish_reason": None}]} for text in ("aaaa", "bbbb")]
OF_ANTHROPIC = [
    {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 5, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("aa", "bb")
    ),
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "ls", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"path": "x"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a" * 12}]}
OF_RESPONSES = [
    {"type": "response.created", "response": {"object": "response", "status": "in_progress", "output": []}},
    {"type": "response.output_text.delta", "delta": "aaaa"},
    {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": [SAID]}},
]


@pytest.mark.parametrize("form", ["chunks", "events", "events in a body"])
@pytest.mark.parametrize(
    ("chunks", "tokens", "output", "stop"),
    [
        (OF_CHAT, 20, 9, "length"),
        (OF_TOOL, 20, 9, "tool_calls"),
        (OF_TEXT, 2, 2, "stop"),
        (OF_ANTHROPIC, 5, 9, "tool_calls"),
        (OF_RESPONSES, 2, 3, "stop"),
    ],
)
def test_a_streamed_answer_is_what_its_chunks_make(
    tmp_path: Path, form: str, chunks: list[dict[str, Any]], tokens: int, output: int, stop: str
) -> None:
    events = "".join(f"event: x\ndata: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
    response = {"chunks": chunks, "events": events, "events in a body": {"status_code": 200, "body": events}}[form]
    (request,) = read(tmp_path, {"request": body(QUESTION), "response": response}).requests
    assert (request.prompt_tokens, request.output_tokens, request.stop) == (tokens, output, stop)


def test_an_answer_that_was_streamed_is_the_head_of_the_next_prompt(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "aaaabbbb"}
    first = {"request": body(QUESTION), "response": [*OF_CHAT[:-1]]}
    rows = [first | {"timestamp": 1_760_000_000}, body(QUESTION, answer, QUESTION) | {"timestamp": 1_760_000_009}]
    before, after = read(tmp_path, *rows).requests
    assert after.continues(before)


@pytest.mark.parametrize(("ahead", "end"), [(": OPENROUTER PROCESSING\n\n", "\n"), ("", "\r\n")])
def test_events_end_with_their_lines_and_may_come_after_a_comment(tmp_path: Path, ahead: str, end: str) -> None:
    chunks = [chunk({"content": "aaaa\u2028"}), chunk({"content": "bbb"}, "stop")]
    events = ahead + "".join(f"data: {json.dumps(each, ensure_ascii=False)}{end}{end}" for each in chunks)
    (request,) = read(tmp_path, {"request": body(QUESTION), "response": events}).requests
    assert request.output_tokens == 2, "8 characters, at 4 each"


def of_anthropic(seconds: int, *messages: dict[str, Any]) -> dict[str, Any]:
    """A call as claude-trace logs it: request and response each have their time."""
    events = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in OF_ANTHROPIC)
    request = {"timestamp": 1_760_000_000 + seconds, "url": "u", "headers": {}, "body": body(*messages)}
    response = {"timestamp": 1_760_000_004 + seconds, "status_code": 200, "headers": {}, "body_raw": events}
    return {"request": request, "response": response}


def test_calls_of_claude_trace_have_the_times_of_their_requests_and_responses(tmp_path: Path) -> None:
    before, after = read(tmp_path, of_anthropic(0, QUESTION), of_anthropic(9, QUESTION, QUESTION)).requests
    assert (after.arrival_s, before.answer_s, after.wait_s, before.output_tokens) == (9, 4, 5, 9)


def test_the_streamed_input_of_a_tool_is_the_object_that_the_next_prompt_has(tmp_path: Path) -> None:
    tool = {"type": "tool_use", "name": "ls", "input": {"path": "x"}}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "aabb"}, tool]}
    rows = [of_anthropic(0, QUESTION), of_anthropic(9, QUESTION, answer, QUESTION)]
    before, after = read(tmp_path, *rows).requests
    assert after.continues(before)
