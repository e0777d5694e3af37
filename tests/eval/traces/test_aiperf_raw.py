"""aiperf's raw export: payloads, answers as they came, and times, in one row a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from tests.helpers.trace_files import refusal, said, write_lines

ASKED = [{"role": "user", "content": "12345678"}]
ANSWERED = [{"role": "assistant", "content": "said"}, {"role": "user", "content": "more"}]


def event(value: Any) -> dict[str, Any]:
    """An event of a stream, as aiperf keeps it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return {"perf_ns": 5, "packets": [{"name": "data", "value": text}]}


def streamed(*parts: str) -> list[dict[str, Any]]:
    chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
    return [*map(event, chunks), event("[DONE]")]


def row(turn: int, start_s: float, messages: list[Any], responses: list[Any], **more: Any) -> dict[str, Any]:
    meta = {"conversation_id": "a", "turn_index": turn, "x_correlation_id": "c", "benchmark_phase": "profiling"}
    times = {"request_start_ns": int(start_s * 1e9), "request_end_ns": int((start_s + 1.5) * 1e9)}
    told = {"metadata": meta | times | more.pop("meta", {}), "start_perf_ns": 5, "status": 200}
    return told | {"payload": {"model": "m", "messages": messages}, "responses": responses} | more


FIRST = row(0, 1_760_000_000.0, ASKED, streamed("sa", "id"))
SECOND = row(1, 1_760_000_010.0, ASKED + ANSWERED, streamed("and", "more"))


def test_a_raw_export_has_times_sessions_and_answers(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "profile_export_raw.jsonl", FIRST, SECOND))
    first, second = trace.requests
    assert trace.format == "aiperf-raw"
    assert (first.arrival_s, second.arrival_s, first.answer_s, second.wait_s) == (0.0, 10.0, 1.5, 8.5)
    assert (first.conversation, second.conversation) == ("a", "a")
    # 8 characters are 2 tokens, "said" is 1, "more" is 1, "andmore" is 2.
    assert (first.prompt_tokens, first.output_tokens) == (2, 1)
    assert (second.prompt_tokens, second.output_tokens) == (4, 2)
    assert second.continues(first)
    assert not said(trace, "drawn")


def test_an_answer_that_was_not_streamed_is_one_text_with_its_usage(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 7}
    whole = {"choices": [{"message": ANSWERED[0], "finish_reason": "length"}], "usage": usage}
    text = {"perf_ns": 5, "content_type": "application/json", "text": json.dumps(whole)}
    (request,) = open_trace(write_lines(tmp_path / "raw.jsonl", row(0, 5.0, ASKED, [text]))).requests
    assert (request.prompt_tokens, request.output_tokens, request.stop) == (20, 7, "length")


def test_of_a_raw_export_what_was_not_answered_is_left_out_and_counted(tmp_path: Path) -> None:
    failed = row(1, 1_760_000_010.0, ASKED + ANSWERED, [], error={"code": 500})
    warmup = row(0, 1_760_000_000.0, ASKED, streamed("x"), meta={"benchmark_phase": "warmup"})
    trace = open_trace(write_lines(tmp_path / "raw.jsonl", warmup, FIRST, failed))
    assert len(trace.requests) == 1
    assert said(trace, "left out") == (
        'of 3 requests: 1 of the warm-up, 1 failed; the first that failed: raw.jsonl:3: {"code":500}'
    )
    alone = write_lines(tmp_path / "failed.jsonl", failed)
    assert refusal(alone).startswith(f"trace {alone}: of 1 requests: 1 failed; the first that failed:")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (None, "t.jsonl:1: payload: neither messages nor a prompt"),
        ({"model": "m"}, "t.jsonl:1: payload: neither messages nor a prompt"),
        ({"model": "m", "prompt": [1, 2]}, "t.jsonl:1: payload: no messages, and the prompt is no text"),
    ],
)
def test_a_raw_row_without_a_prompt_is_named(tmp_path: Path, payload: Any, message: str) -> None:
    assert refusal(write_lines(tmp_path / "t.jsonl", FIRST | {"payload": payload})) == message
