"""Calls whose log has their messages elsewhere: kept by the Responses API, beside the body, or as text within JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from tests.helpers.openai_rows import body, read
from tests.helpers.trace_files import refusal, said, write_lines

EPOCH = 1_760_000_000
QUESTION = {"role": "user", "content": "12345678"}  # 2 tokens, at 4 characters each
ANSWER = {"role": "assistant", "content": "a" * 12}  # 3


def answered(name: str, number: int) -> dict[str, Any]:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a" * 12}]}
    return {"id": name, "object": "response", "created_at": EPOCH + number, "output": [item]}


def asked(number: int, **more: Any) -> dict[str, Any]:
    request = {"model": "m", "instructions": "s" * 16, "input": "12345678"} | more
    return {"request": request, "response": answered(f"resp_{number}", number)}


def test_a_prompt_that_names_an_earlier_response_begins_with_what_the_api_has_kept(tmp_path: Path) -> None:
    other_way = asked(2, previous_response_id="resp_0", input="87654321")
    rows = [asked(0), asked(1, previous_response_id="resp_0"), other_way, asked(3, previous_response_id="resp_1")]
    trace = read(tmp_path, *rows)
    # 4 tokens of instructions, then 2 of each question and 3 of each answer.
    assert [request.prompt_tokens for request in trace.requests] == [6, 6 + 5, 6 + 5, 6 + 5 + 5]
    first, second, other, third = trace.requests
    assert second.continues(first)
    assert third.continues(second)
    assert other.conversation != third.conversation == second.conversation == first.conversation
    assert "3 prompts name an earlier response or a conversation" in said(trace, "rebuilt")


def test_a_prompt_that_names_a_conversation_goes_on_with_it(tmp_path: Path) -> None:
    rows = [asked(0, conversation="c"), asked(1, conversation={"id": "c"}), asked(2, conversation="other")]
    trace = read(tmp_path, *rows)
    assert [(each.conversation, each.prompt_tokens) for each in trace.requests] == [("c", 6), ("c", 11), ("other", 6)]
    assert trace.requests[1].continues(trace.requests[0])


def test_a_body_alone_that_names_a_conversation_is_no_row_of_lmsys(tmp_path: Path) -> None:
    rows = [{"model": "m", "input": text, "conversation": "c"} for text in ("12345678", "87654321")]
    assert [(each.conversation, each.prompt_tokens) for each in read(tmp_path, *rows).requests] == [("c", 2), ("c", 4)]


def test_a_history_that_is_not_in_the_log_is_said_to_be_missing(tmp_path: Path) -> None:
    trace = read(tmp_path, asked(1, previous_response_id="resp_0"))
    assert "1 prompts name a response that is not in the log" in said(trace, "rebuilt")


ITEMS: list[tuple[dict[str, Any], int]] = [
    ({"type": "mcp_list_tools", "server_label": "x", "tools": [{"name": "t" * 400}]}, 100),
    ({"type": "tool_search_output", "tools": [{"name": "t" * 400}]}, 100),
    ({"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}, 1),
    ({"type": "mcp_call", "name": "t", "arguments": "{}", "output": "r" * 400}, 100),
    ({"type": "code_interpreter_call", "code": "c" * 400, "outputs": []}, 100),
    ({"type": "file_search_call", "queries": ["q" * 400], "results": None}, 100),
    ({"type": "shell_call", "action": {"commands": ["c" * 400]}}, 100),
    ({"type": "apply_patch_call", "operation": {"type": "update_file", "diff": "d" * 400}}, 100),
    ({"type": "shell_call_output", "output": [{"stdout": "o" * 400}]}, 100),
    ({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "i" * 80_000}}, 1000),
    ({"type": "image_generation_call", "result": "i" * 80_000}, 1000),
]


@pytest.mark.parametrize(("item", "tokens"), ITEMS, ids=[item["type"] for item, _ in ITEMS])
def test_items_of_the_tools_of_the_responses_api_are_read(item: dict[str, Any], tokens: int, tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"model": "m", "input": [QUESTION, {"id": "i" * 4000} | item, QUESTION]}).requests
    assert tokens <= request.prompt_tokens - 4 < tokens + 40


def test_completions_of_openhands_have_their_messages_beside_what_else_was_sent(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "ls", "description": "d" * 400}}]
    response = {"choices": [{"message": ANSWER, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    sent = {"response": response, "args": [], "kwargs": {"model": "m", "tools": tools}, "timestamp": EPOCH + 0.5}
    (request,) = read(tmp_path, {"messages": [QUESTION]} | sent).requests
    assert 102 < request.prompt_tokens < 102 + 40
    assert (request.model, request.output_tokens, len(request.context) - len(request.prompt)) == ("m", 3, 3)


@pytest.mark.parametrize("form", ["objects", "text", "within input"])
def test_observations_of_langfuse_have_their_answers_and_those_of_tools_are_left_out(form: str, tmp_path: Path) -> None:
    messages: Any = [QUESTION, ANSWER, QUESTION]
    output: Any = ANSWER
    if form == "text":
        messages, output = json.dumps(messages), json.dumps(output)
    elif form == "within input":
        messages = {"messages": messages}
    call = {"traceId": "t", "type": "GENERATION", "startTime": "2025-01-01T00:00:00Z", "model": "m"}
    tool = {"traceId": "t", "type": "SPAN", "startTime": "2025-01-01T00:00:01Z", "model": None}
    rows = [call | {"input": messages, "output": output, "usage": {"input": 7, "output": 9}}]
    trace = read(tmp_path, *rows, tool | {"input": "x", "output": "y"})
    (request,) = trace.requests
    assert (len(request.prompt), len(request.context), request.output_tokens) == (7, 7 + 9, 9)
    assert trace.skipped == 1


def test_calls_of_chats_are_not_kept_for_later_ones(tmp_path: Path) -> None:
    response = {"id": "resp_0", "choices": [{"message": ANSWER, "finish_reason": "stop"}]}
    later = body(QUESTION, previous_response_id="resp_0")
    trace = open_trace(write_lines(tmp_path / "t.jsonl", {"request": body(QUESTION), "response": response}, later))
    assert [request.prompt_tokens for request in trace.requests] == [2, 2]


def test_the_table_of_litellm_has_bodies_where_its_messages_are_empty(tmp_path: Path) -> None:
    response = {"choices": [{"message": ANSWER, "finish_reason": "stop"}], "usage": {"prompt_tokens": 20}}
    row = {"call_type": "acompletion", "startTime": "2025-01-01T00:00:00+00:00", "session_id": "s", "cache_hit": "None"}
    row |= {"messages": "{}", "response": json.dumps(response), "proxy_server_request": json.dumps(body(QUESTION))}
    older = row | {"messages": json.dumps([QUESTION]), "proxy_server_request": "{}", "model": "m"}
    trace = read(tmp_path, row, older, row | {"cache_hit": "True"})
    assert [(each.prompt_tokens, each.conversation, each.model) for each in trace.requests] == [(20, "s", "m")] * 2
    assert trace.skip_reasons == ("t.jsonl:3: cache_hit: LiteLLM answered from a cache of its own",)


def test_calls_that_litellm_counted_beside_the_prompt_are_as_long(tmp_path: Path) -> None:
    response = {"choices": [{"message": ANSWER, "finish_reason": "stop"}]}
    row = {"call_type": "acompletion", "startTime": 1.7e9, "prompt_tokens": 20, "completion_tokens": 9}
    rows = [row | body(QUESTION) | {"response": response} | told for told in ({}, {"completion_tokens": 0})]
    (counted, uncounted) = (read(tmp_path, each).requests[0] for each in rows)
    assert (counted.prompt_tokens, counted.output_tokens) == (20, 9)
    assert (uncounted.prompt_tokens, uncounted.output_tokens) == (2, 3), "as long as their texts"


def test_prompts_that_litellm_redacted_are_refused(tmp_path: Path) -> None:
    """Read as texts, all would be one prompt."""
    gone = {"role": "user", "content": "redacted-by-litellm"}
    allowed = "must be the prompt (turn_off_message_logging: false)"
    assert refusal(write_lines(tmp_path / "t.jsonl", body(gone))) == (
        f"t.jsonl:1: messages: 'redacted-by-litellm', {allowed}"
    )


@pytest.mark.parametrize(
    ("usage", "details", "prompt", "output"),
    [
        ({"input": 70, "output": 9, "total": 79, "unit": "TOKENS"}, None, 70, 9),
        # Cached tokens beside the input, and within it; of answers, thoughts are counted apart.
        (
            None,
            {"input": 10, "input_cached_tokens": 60, "output": 9, "output_reasoning_tokens": 5, "total": 84},
            70,
            14,
        ),
        ({"input": 70}, {"input": 70, "cache_read_input_tokens": 60, "output": 9, "total": 79}, 70, 9),
        # What is not counted in tokens is not counted: 2 of the question, 3 of the answer.
        ({"input": 700, "output": 90, "total": 790, "unit": "CHARACTERS"}, None, 2, 3),
    ],
)
def test_prompts_of_langfuse_are_as_long_as_it_counted_cached_tokens_once(
    usage: Any, details: Any, prompt: int, output: int, tmp_path: Path
) -> None:
    call = {"type": "GENERATION", "startTime": "2025-01-01T00:00:00Z", "model": "m", "input": [QUESTION]}
    (request,) = read(tmp_path, call | {"output": ANSWER, "usage": usage, "usageDetails": details}).requests
    assert (request.prompt_tokens, request.output_tokens) == (prompt, output)


def test_a_response_has_its_instructions_beside_it_and_says_why_it_is_incomplete(tmp_path: Path) -> None:
    usage = {"input_tokens": 36, "output_tokens": 87}
    alone = answered("resp_0", 0) | {"instructions": None, "status": "incomplete", "usage": usage}
    (request,) = read(tmp_path, alone | {"incomplete_details": {"reason": "max_output_tokens"}}).requests
    assert (request.prompt_tokens, request.output_tokens, request.stop) == (36, 87, "length")
