"""Definitions of tools, their arguments and their results in messages of APIs: all that a model reads counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.traces import Request, open_trace
from tests.helpers.trace_files import refusal, write_lines

QUESTION = {"role": "user", "content": "12345678"}  # 2 tokens, at 4 characters each
LONG = "b" * 8000  # 2,000 tokens
OPENAI_TOOL = {"type": "function", "function": {"name": "ls", "description": LONG, "parameters": {"type": "object"}}}
ANTHROPIC_TOOL = {"name": "ls", "description": LONG, "input_schema": {"type": "object"}}
OLD_FUNCTION = {"name": "ls", "description": LONG, "parameters": {"type": "object"}}


def read(tmp_path: Path, *rows: Any) -> list[Request]:
    return open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests


def asked(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)} | more


@pytest.mark.parametrize(
    ("field", "tool"), [("tools", OPENAI_TOOL), ("tools", ANTHROPIC_TOOL), ("functions", OLD_FUNCTION)]
)
def test_descriptions_and_schemas_of_tools_are_part_of_the_prompt(field: str, tool: Any, tmp_path: Path) -> None:
    (request,) = read(tmp_path, asked(QUESTION, **{field: [tool, tool]}))
    assert 4000 + 2 < request.prompt_tokens < 4000 + 2 + 100


def test_other_tools_before_the_same_question_share_nothing(tmp_path: Path) -> None:
    other = {**ANTHROPIC_TOOL, "description": "c" * 8000}
    one, two, three = read(tmp_path, *(asked(QUESTION, tools=[each]) for each in (ANTHROPIC_TOOL, other, other)))
    assert one.prompt.common(two.prompt) == 0
    assert two.prompt.common(three.prompt) == two.prompt_tokens


ARGUMENTS = {"name": "x", "content": "", "body": LONG}
CALLS = {
    "anthropic": {"content": [{"type": "tool_use", "id": "1", "name": "Write", "input": ARGUMENTS}]},
    "openai": {"content": None, "tool_calls": [{"function": {"name": "Write", "arguments": json.dumps(ARGUMENTS)}}]},
    "openai, not as text": {"tool_calls": [{"function": {"name": "Write", "arguments": ARGUMENTS}}]},
    "openai of 2023": {"content": None, "function_call": {"name": "Write", "arguments": json.dumps(ARGUMENTS)}},
    "langchain": {"content": "", "tool_calls": [{"type": "tool_call", "name": "Write", "args": ARGUMENTS}]},
}


@pytest.mark.parametrize("api", CALLS)
def test_all_arguments_of_a_tool_are_part_of_the_prompt_whatever_they_are_called(api: str, tmp_path: Path) -> None:
    (request,) = read(
        tmp_path, asked(QUESTION, {"role": "assistant"} | CALLS[api], {"role": "tool", "content": "done"})
    )
    assert 2000 < request.prompt_tokens < 2000 + 50


def test_a_structured_tool_result_counts_whole_and_a_text_without_its_wrapper(tmp_path: Path) -> None:
    results: list[tuple[Any, int]] = [
        ({"name": "x", "rows": [LONG]}, 2000),
        ({"type": "report", "text": "x", "rows": [LONG]}, 2000),
        ([{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "t" * 400}}], 2000),
        ([{"type": "thinking", "thinking": LONG, "signature": "s" * 400}], 2000),
        ({"content": [{"type": "image", "data": "i" * 80_000}], "isError": False}, 1000),
    ]
    for content, tokens in results:
        (request,) = read(tmp_path, asked(QUESTION, {"role": "tool", "content": content}))
        assert tokens <= request.prompt_tokens - 2 < tokens + 20


def test_the_mark_of_what_anthropic_is_to_cache_moves_and_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    more = [
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [{"type": "text", "text": "on"} | mark]},
    ]
    first, second = read(
        tmp_path,
        asked({"role": "user", "content": [picture | mark]}, tools=[ANTHROPIC_TOOL | mark]),
        asked({"role": "user", "content": [picture]}, *more, tools=[ANTHROPIC_TOOL]),
    )
    assert second.prompt.common(first.prompt) == first.prompt_tokens


# An old log of Codex: 8 characters of instructions, 8 of a question, a call, its result of 40, an answer of 12.
HEAD = {"id": "x", "timestamp": "2025-06-01T10:00:00.000Z", "instructions": "12345678", "git": {}}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "12345678"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t" * 40}]},
    {"type": "function_call", "name": "ls", "arguments": "{}", "call_id": "1"},
    {"type": "function_call_output", "call_id": "1", "output": "r" * 40},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a" * 12}]},
]


def test_items_of_the_responses_api_a_line_each_are_one_conversation(tmp_path: Path) -> None:
    first, second = read(tmp_path, *ITEMS)
    # A thought of 10 tokens and a call of 5 characters, 2 tokens, are the first answer; then comes the result.
    assert (first.prompt_tokens, first.output_tokens, first.stop) == (2, 10 + 2, "tool_calls")
    assert (second.prompt_tokens, second.output_tokens, second.input) == (2 + 12 + 10, 3, "tool")
    assert second.continues(first)
    # As they are within the input of a call.
    (call,) = read(tmp_path, {"model": "m", "input": ITEMS[:-1]})
    assert call.prompt.ids == second.prompt.ids


def test_old_logs_of_codex_begin_with_their_instructions_and_have_lines_of_state(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "rollout.jsonl", HEAD, *ITEMS[:3], {"record_type": "state"}, *ITEMS[3:]))
    assert [(request.conversation, request.prompt_tokens) for request in trace.requests] == [("x", 4), ("x", 26)]
    assert trace.skip_reasons == ("rollout.jsonl:5: neither messages nor a response",)


def test_an_unknown_item_in_the_middle_of_a_conversation_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", *ITEMS[:2], {"type": "telepathy", "text": "?"}, *ITEMS[2:])
    assert refusal(source) == "t.jsonl:3: type: 'telepathy' is no item that can be read"
    twice = write_lines(tmp_path / "u.jsonl", HEAD, *ITEMS, HEAD, *ITEMS)
    assert refusal(twice) == "u.jsonl:7: type: 'session' is no item that can be read"


def test_thoughts_count_once_whatever_their_names(tmp_path: Path) -> None:
    thought = {"reasoning": "t" * 40}  # 10 tokens
    blocks = {"thinking_blocks": [{"type": "thinking", "thinking": "t" * 40, "signature": "s" * 400}]}
    both = thought | {"reasoning_content": "t" * 40}
    lengths = set()
    for each in (thought, blocks, both, blocks | both):
        (request,) = read(tmp_path, {"messages": [QUESTION, {"role": "assistant", "content": "a" * 12} | each]})
        lengths.add((request.prompt_tokens, request.output_tokens))
    assert lengths == {(2, 14)}  # 12 + 1 + 40 characters


def test_tools_of_a_table_have_no_fields_of_each_other(tmp_path: Path) -> None:
    names = ("path", "a_long_name_of_a_parameter")
    tools = [{"name": name, "parameters": {"properties": {name: {"type": "string"}}}} for name in names]
    (wanted,) = read(tmp_path, asked(QUESTION, tools=tools))
    pq.write_table(pa.Table.from_pylist([asked(QUESTION, tools=tools)]), tmp_path / "t.parquet")
    (request,) = open_trace(str(tmp_path / "t.parquet")).requests
    assert request.prompt_tokens == wanted.prompt_tokens


@pytest.mark.parametrize(
    ("call", "stop"),
    [
        ({"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "x"}}, "stop"),
        ({"type": "mcp_tool_use", "id": "1", "name": "search", "server_name": "s", "input": {"query": "x"}}, "stop"),
        ({"type": "tool_use", "id": "1", "name": "search", "input": {"query": "x"}}, "tool_calls"),
    ],
)
def test_a_tool_that_the_api_runs_itself_does_not_end_an_answer(
    tmp_path: Path, call: dict[str, Any], stop: str
) -> None:
    content = [call, {"type": "text", "text": "found"}]
    response = {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    (request,) = read(tmp_path, asked(QUESTION) | {"response": response})
    assert request.stop == stop
