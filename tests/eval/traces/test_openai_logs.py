"""Logs of calls of APIs: responses alone, and what a log tells of times, conversations and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.traces import Trace, open_trace
from tests.helpers.trace_files import said, write_lines

QUESTION = {"role": "user", "content": "12345678"}  # 2 tokens, at 4 characters each
ANSWER = {"role": "assistant", "content": "a" * 12}
MORE = {"role": "user", "content": "more"}
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 300, "output_tokens": 5}
OF_ANTHROPIC = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}], "usage": USAGE} | {
    "stop_reason": "end_turn"
}


def read(tmp_path: Path, *rows: Any, **options: Any) -> Trace:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows), **options)
    assert trace.format == "openai"
    return trace


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)} | more


def test_a_prompt_is_as_long_as_what_was_read_from_a_cache_written_to_it_and_neither(tmp_path: Path) -> None:
    of_openai = {"prompt_tokens": 5310, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 5000}}
    for response in ({"response": OF_ANTHROPIC}, {"choices": [], "usage": of_openai}):
        (request,) = read(tmp_path, response).requests
        assert (request.prompt_tokens, request.output_tokens) == (10 + 5000 + 300, 5)


def test_responses_alone_come_at_the_times_of_their_rows(tmp_path: Path) -> None:
    rows = [{"timestamp": f"2025-01-01T00:0{n}:00Z", "response": OF_ANTHROPIC, "latency_ms": 500} for n in range(3)]
    trace = read(tmp_path, *rows)
    assert [(request.arrival_s, request.answer_s) for request in trace.requests] == [(0, 0.5), (60, 0.5), (120, 0.5)]
    assert not said(trace, "drawn")


def test_responses_of_anthropic_are_responses_and_with_messages_of_the_user_a_conversation(tmp_path: Path) -> None:
    alone = read(tmp_path, OF_ANTHROPIC, OF_ANTHROPIC)
    assert [request.prompt_tokens for request in alone.requests] == [5310, 5310]
    assert alone.requests[1].arrival_s > 0
    assert "times of 2 responses" in said(alone, "drawn")
    first, second = read(tmp_path, QUESTION, OF_ANTHROPIC, MORE, OF_ANTHROPIC).requests
    assert (first.prompt_tokens, second.prompt_tokens) == (2, 2 + 1 + 1)
    assert second.continues(first)
