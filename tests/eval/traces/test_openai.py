"""Messages of APIs: conversations, bodies of requests, batches, responses, logs of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from tests.helpers.openai_rows import body, read
from tests.helpers.trace_files import refusal, said, write_lines

# At 4 characters a token: system 4 tokens, question 2, answer 3, more 1.
SYSTEM = {"role": "system", "content": "s" * 16}
QUESTION = {"role": "user", "content": "12345678"}
ANSWER = {"role": "assistant", "content": "a" * 12}
MORE = {"role": "user", "content": "more"}


def completion(text: str = "a" * 12, finish: str = "stop", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": text} | message
    usage = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
    choice = {"index": 0, "message": said, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1_760_000_000, "choices": [choice], "usage": usage}


def test_each_answer_of_a_conversation_is_a_call(tmp_path: Path) -> None:
    first, second = read(tmp_path, {"id": 7, "messages": [SYSTEM, QUESTION, ANSWER, MORE, ANSWER]}).requests
    assert (list(first.prompt.ends), list(second.prompt.ends)) == ([4, 6], [4, 6, 9, 10])
    assert second.continues(first)
    assert (first.conversation, first.stop, first.input) == ("7", "stop", "user")


def test_a_conversation_is_read_the_same_from_json_and_json_lines(tmp_path: Path) -> None:
    row = {"id": 7, "messages": [SYSTEM, QUESTION, ANSWER]}
    (tmp_path / "t.json").write_text(json.dumps([row], indent=1))
    assert open_trace(str(tmp_path / "t.json")).requests == read(tmp_path, row).requests


def test_tools_are_calls_too_in_the_shapes_of_both_apis(tmp_path: Path) -> None:
    function = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    openai = [
        *(QUESTION, {"role": "assistant", "content": None, "tool_calls": [function]}),
        *({"role": "tool", "tool_call_id": "1", "content": "r" * 40}, ANSWER),
    ]
    anthropic = [
        QUESTION,
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "?"}, {"type": "tool_use", "name": "ls", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r" * 40}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    for messages in (openai, anthropic):
        first, second = read(tmp_path, {"id": 1, "messages": messages}).requests
        assert (first.stop, second.stop) == ("tool_calls", "stop")
        assert (first.input, second.input) == ("user", "tool")
        assert second.prompt_tokens - len(first.context) == 10


def test_an_answer_that_a_later_prompt_shows_is_known(tmp_path: Path) -> None:
    rows = [body(SYSTEM, QUESTION), body(SYSTEM, MORE), body(SYSTEM, QUESTION, ANSWER, MORE)]
    trace = read(tmp_path, *(row | {"timestamp": 1_760_000_000 + n} for n, row in enumerate(rows)))
    first, other, second = trace.requests
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.0, 2.0]
    assert (len(first.prompt), len(first.context), first.output_tokens, first.stop) == (6, 9, 3, "stop")
    assert second.continues(first)
    assert second.conversation == first.conversation != other.conversation
    assert "2 answers are not in the log: they count as empty" in said(trace, "assumed")


def test_calls_without_times_come_in_the_order_of_their_conversations(tmp_path: Path) -> None:
    trace = read(tmp_path, body(SYSTEM, QUESTION), body(SYSTEM, QUESTION, ANSWER, MORE), body(SYSTEM, MORE))
    by_name: dict[str | None, list[float]] = {}
    for request in trace.requests:
        by_name.setdefault(request.conversation, []).append(request.arrival_s)
    assert sorted(map(len, by_name.values())) == [1, 2]
    assert "times of 2 conversations: 1,800 an hour, seed 0" in said(trace, "drawn")


def test_a_request_beside_its_response_has_its_answer_and_end(tmp_path: Path) -> None:
    called = completion("", "tool_calls", tool_calls=[{"function": {"name": "ls", "arguments": "{}"}}])
    for row in (
        {"request": body(QUESTION), "response": called},
        {"request": json.dumps(body(QUESTION)), "response": json.dumps(called)},
        body(QUESTION) | {"response": called},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body(QUESTION)}
        | {"response": {"status_code": 200, "body": called}},
    ):
        (request,) = read(tmp_path, row).requests
        assert (request.stop, request.output_tokens, request.model) == ("tool_calls", 7, "m")
        assert len(request.context) > len(request.prompt) == 20


@pytest.mark.parametrize(
    "row", [{"prompt": "12345678"}, {"model": "m", "prompt": "12345678"}, {"messages": [QUESTION]}]
)
@pytest.mark.parametrize("field", ["response", "completion"])
def test_an_answer_may_be_a_text_beside_its_prompt_and_so_may_its_usage(
    tmp_path: Path, row: dict[str, Any], field: str
) -> None:
    (request,) = read(tmp_path, row | {field: "a" * 12}).requests
    # 8 characters are 2 tokens, 12 are 3.
    assert (request.prompt_tokens, len(request.context), request.output_tokens, request.stop) == (2, 5, 3, "stop")
    (request,) = read(tmp_path, row | {field: "a" * 12, "usage": {"completion_tokens": 7}}).requests
    assert request.output_tokens == 7


def test_an_answer_in_text_is_found_at_the_head_of_the_next_prompt(tmp_path: Path) -> None:
    rows = [body(QUESTION, response="a" * 12), body(QUESTION, ANSWER, MORE, response="ok")]
    first, second = read(tmp_path, *(row | {"timestamp": 1_760_000_000 + n} for n, row in enumerate(rows))).requests
    assert second.continues(first)


def test_starts_and_ends_of_logs_give_waits(tmp_path: Path) -> None:
    rows = [
        {"request": body(QUESTION), "response": completion(), "start_time": 100.0, "end_time": 103.0},
        {"request": body(QUESTION, ANSWER, MORE), "response": completion(), "start_time": 110.0, "latency_ms": 2500},
    ]
    first, second = read(tmp_path, *rows).requests
    assert (first.answer_s, first.wait_s, second.answer_s, second.wait_s) == (3.0, None, 2.5, 7.0)


@pytest.mark.parametrize("results_file", ["results.jsonl", "answers.jsonl"])
def test_a_batch_and_its_results_are_joined_in_any_order(tmp_path: Path, results_file: str) -> None:
    write_lines(tmp_path / "day" / "batch.jsonl", *({"custom_id": f"r{n}", "body": body(QUESTION)} for n in (1, 2)))
    results = [{"id": "b", "custom_id": "r1", "response": {"status_code": 200, "body": completion(finish="length")}}]
    write_lines(tmp_path / "day" / results_file, *results)
    trace = open_trace(str(tmp_path / "day"))
    assert [(request.stop, request.output_tokens) for request in trace.requests] == [("length", 7)]
    assert trace.skip_reasons == ("batch.jsonl:2: the results of the batch hold no response to it",)


def test_a_request_of_a_batch_that_failed_is_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "day" / "batch.jsonl", *({"custom_id": f"r{n}", "body": body(QUESTION)} for n in (1, 2)))
    failed = {"custom_id": "r1", "response": {"status_code": 500, "body": {"error": {"message": "no"}}}}
    done = {"custom_id": "r2", "response": {"status_code": 200, "body": completion()}}
    write_lines(tmp_path / "day" / "results.jsonl", failed, done)
    trace = open_trace(str(tmp_path / "day"))
    assert (len(trace.requests), trace.skipped) == (1, 1)


def test_responses_alone_are_lengths_alone(tmp_path: Path) -> None:
    trace = read(tmp_path, completion(), completion() | {"created": 1_760_000_060})
    assert [(request.prompt_tokens, request.output_tokens) for request in trace.requests] == [(20, 7), (20, 7)]
    assert trace.requests[1].arrival_s == 60.0
    assert "nothing in them can be reused" in said(trace, "rebuilt")


def test_the_responses_api_and_completions_are_read(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "12345678"}]},
        {"type": "function_call", "name": "ls", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "r" * 40},
    ]
    response = {"object": "response", "status": "completed", "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    ], "usage": {"input_tokens": 30, "output_tokens": 4}}  # fmt: skip
    (one,) = read(
        tmp_path, {"request": {"model": "m", "input": items, "instructions": "s" * 8}, "response": response}
    ).requests
    assert (one.input, one.stop, one.output_tokens) == ("tool", "stop", 4)
    # Estimated at 2 + 2 + 2 + 10 tokens, and counted as 30: 2 of 16 are 3.75, 4 of 16 are 7.5.
    assert list(one.prompt.ends) == [4, 8, 11, 30]
    (other,) = read(tmp_path, {"model": "m", "input": "12345678"}).requests
    assert other.prompt_tokens == 2
    (old,) = read(tmp_path, {"model": "m", "prompt": "12345678", "max_tokens": 3}).requests
    assert old.prompt_tokens == 2


def test_system_prompts_and_tools_are_shared(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    rows = [body({"role": "user", "content": text}, system="s" * 8, tools=tools) for text in ("one", "other")]
    one, other = read(tmp_path, *rows).requests
    assert one.prompt.common(other.prompt) == one.prompt.ends[1] > 2


def test_rows_that_repeat_the_conversation_so_far_add_only_their_new_turns(tmp_path: Path) -> None:
    rows = [[QUESTION, ANSWER], [MORE, ANSWER], [QUESTION, ANSWER, MORE, ANSWER]]
    trace = read(tmp_path, *({"messages": messages} for messages in rows))
    assert len(trace.requests) == 3
    names = {request.prompt.ids[0]: set[str | None]() for request in trace.requests}
    for request in trace.requests:
        names[request.prompt.ids[0]].add(request.conversation)
    assert [len(each) for each in names.values()] == [1, 1]
    apart = read(tmp_path, *({"id": n, "messages": messages} for n, messages in enumerate(rows)))
    assert len(apart.requests) == 4


@pytest.mark.parametrize("form", ["lines of messages", "array of messages", "lines of lists", "array of lists"])
def test_messages_without_anything_around_them_are_conversations(tmp_path: Path, form: str) -> None:
    messages = [SYSTEM, QUESTION, ANSWER, MORE, ANSWER]
    content = {
        "lines of messages": "\n".join(map(json.dumps, messages)),
        "array of messages": json.dumps(messages, indent=1),
        "lines of lists": "\n".join([json.dumps(messages)] * 2),
        "array of lists": json.dumps([messages, messages]),
    }
    (tmp_path / "t.json").write_text(content[form])
    trace = open_trace(str(tmp_path / "t.json"))
    assert (trace.format, {request.prompt_tokens for request in trace.requests}) == ("openai", {6, 10})


def test_a_batch_of_anthropic_and_its_results_are_joined(tmp_path: Path) -> None:
    write_lines(tmp_path / "day" / "batch.jsonl", {"custom_id": "r1", "params": body(QUESTION, system="s" * 8)})
    message = {"role": "assistant", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}
    result = {"type": "succeeded", "message": message | {"usage": {"input_tokens": 4, "output_tokens": 9}}}
    write_lines(tmp_path / "day" / "results.jsonl", {"custom_id": "r1", "result": result})
    (request,) = open_trace(str(tmp_path / "day")).requests
    assert (request.prompt_tokens, request.output_tokens, request.stop) == (4, 9, "stop")


def test_the_agentic_trace_of_sglang_is_read(tmp_path: Path) -> None:
    turns = [{"messages": [SYSTEM, QUESTION], "prompt_tokens": 99}, {"messages": [MORE], "prompt_tokens": 400}]
    (tmp_path / "t.json").write_text(json.dumps({"metadata": {}, "conversations": [turns, turns[:1]]}))
    trace = open_trace(str(tmp_path / "t.json"))
    first, second = (request for request in trace.requests if request.conversation == "conversation 0")
    # An answer has 220 tokens where none is given, as in bench_serving.
    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens) == (6, 220, 6 + 220 + 1)


@pytest.mark.parametrize("inside", [True, False])
def test_messages_that_an_agent_logged_with_their_times_are_calls_at_these_times(inside: bool, tmp_path: Path) -> None:
    def at(seconds: float, message: dict[str, Any]) -> dict[str, Any]:
        time = {"timestamp": 1_764_000_000 + seconds}
        return message | ({"extra": time} if inside else time)

    # As of mini-swe-agent: the first prompt has no time, and the last message is none.
    asked = [{"role": "system", "content": "s" * 40}, {"role": "user", "content": "u" * 400}]
    looked = at(0, {"role": "assistant", "content": "a" * 80})
    result = at(0.5, {"role": "tool", "content": "r" * 120, "tool_call_id": "1"})
    ended = {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted"}}
    messages = [*asked, looked, result, at(8, {"role": "assistant", "content": "b" * 40}), ended]
    trace = read(tmp_path, {"messages": messages})
    first, second = trace.requests
    assert (first.prompt_tokens, second.prompt_tokens, second.output_tokens) == (10 + 100, 110 + 20 + 30, 10)
    assert (first.answer_s, second.arrival_s, second.wait_s, second.answer_s) == (None, 0.5, 0.5, 7.5)
    assert second.continues(first)
    assert not said(trace, "drawn")
    # One that ran into a limit, before its first call and behind one: what was not answered was not asked.
    rows = [{"messages": [*some, ended], "trajectory_format": "mini-swe-agent-1.1"} for some in (asked, messages[:4])]
    trace = read(tmp_path, {"messages": messages}, *rows)
    assert [request.prompt_tokens for request in trace.requests] == [110, 110, 160]
    assert trace.skip_reasons == ("t.jsonl:2: messages: none of a user that is answered",)
    untold = [*asked, looked | {"timestamp": "today", "extra": {}}, result, looked]
    assert "starts of conversations" in said(read(tmp_path, {"messages": untold}), "drawn")


def test_messages_are_kept_only_if_asked_for(tmp_path: Path) -> None:
    rows = [body(SYSTEM, QUESTION), body(SYSTEM, QUESTION, ANSWER, MORE)]
    assert {request.messages for request in read(tmp_path, *rows).requests} == {()}
    first, second = read(tmp_path, *rows, texts=True).requests
    assert first.messages == (("system", "s" * 16), ("user", "12345678"))
    assert second.messages == (("user", "more"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": [{"role": "alien", "content": "secret"}]},
            "messages[0].role: 'alien' is no role of a message, must be system, user, assistant, tool or "
            "another API's name of one, such as human, gpt or function",
        ),
        (body(QUESTION, delay=-1), "delay: -1, must be milliseconds, 0 or more"),
        (body(QUESTION, output_length="long"), "output_length: 'long', must be a number of tokens, 0 or more"),
        (body(QUESTION, timestamp="soon"), "timestamp: 'soon' is no time, such as 2025-11-25T10:00:00Z"),
        ({"choices": []}, "usage: missing: a response without its prompt tells nothing but lengths"),
        ("broken", "not JSON: JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_a_bad_row_is_named_with_its_field_and_without_its_text(tmp_path: Path, row: Any, message: str) -> None:
    source = write_lines(tmp_path / "t.jsonl", body(QUESTION), row)
    assert refusal(source) == f"t.jsonl:2: {message}"
    assert open_trace(source, skip_bad=True).skip_reasons == (f"t.jsonl:2: {message}",)


def test_prompts_of_vllms_benchmark_are_calls(tmp_path: Path) -> None:
    rows = [{"prompt": "12345678", "output_tokens": 10}, {"prompt": "12345678", "output_tokens": 1520}]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows, {"prompt": "123456789"}))
    assert trace.format == "openai"
    assert sorted((each.prompt_tokens, each.output_tokens) for each in trace.requests) == [(2, 10), (2, 1520), (3, 0)]
    assert refusal(write_lines(tmp_path / "u.jsonl", rows[0] | {"output_tokens": -1})) == (
        "u.jsonl:1: output_tokens: -1, must be a number of tokens, 0 or more"
    )
