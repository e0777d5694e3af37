"""Logs of calls of APIs: responses alone, and what a log tells of times, conversations and batches."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.traces import open_trace
from tests.helpers.openai_rows import body, read
from tests.helpers.trace_files import refusal, said, write_lines

EPOCH = 1_760_000_000
QUESTION = {"role": "user", "content": "12345678"}  # 2 tokens, at 4 characters each
ANSWER = {"role": "assistant", "content": "a" * 12}
MORE = {"role": "user", "content": "more"}
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 300, "output_tokens": 5}
OF_ANTHROPIC = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}], "usage": USAGE} | {
    "stop_reason": "end_turn"
}


def test_a_prompt_is_as_long_as_what_was_read_from_a_cache_written_to_it_and_neither(tmp_path: Path) -> None:
    of_openai = {"prompt_tokens": 5310, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 5000}}
    for response in ({"response": OF_ANTHROPIC}, {"choices": [], "usage": of_openai}):
        (request,) = read(tmp_path, response).requests
        assert (request.prompt_tokens, request.output_tokens) == (10 + 5000 + 300, 5)


def test_a_prompt_counts_once_where_the_api_ran_tools_before_it_answered(tmp_path: Path) -> None:
    summed = {"input_tokens": 30, "cache_read_input_tokens": 10_000, "output_tokens": 9}
    rounds = [{"type": "message", "input_tokens": 10 * n, "cache_read_input_tokens": 5000} for n in (1, 2)]
    (request,) = read(tmp_path, {"response": OF_ANTHROPIC | {"usage": summed | {"iterations": rounds}}}).requests
    assert (request.prompt_tokens, request.output_tokens) == (10 + 5000, 9)


def test_responses_alone_come_at_the_times_of_their_rows(tmp_path: Path) -> None:
    rows = [{"timestamp": f"2025-01-01T00:0{n}:00Z", "response": OF_ANTHROPIC, "latency_ms": 500} for n in range(3)]
    trace = read(tmp_path, *rows)
    assert [(request.arrival_s, request.answer_s) for request in trace.requests] == [(0, 0.5), (60, 0.5), (120, 0.5)]
    assert not said(trace, "drawn")


def test_anthropic_responses_make_conversations_with_user_messages(tmp_path: Path) -> None:
    alone = read(tmp_path, OF_ANTHROPIC, OF_ANTHROPIC)
    assert [request.prompt_tokens for request in alone.requests] == [5310, 5310]
    assert alone.requests[1].arrival_s > 0
    assert "times of 2 conversations" in said(alone, "drawn")
    first, second = read(tmp_path, QUESTION, OF_ANTHROPIC, MORE, OF_ANTHROPIC).requests
    assert (first.prompt_tokens, second.prompt_tokens) == (2, 2 + 1 + 1)
    assert second.continues(first)


@pytest.mark.parametrize("delay", [1000, None])
def test_times_that_follow_from_delays_are_not_drawn(delay: int | None, tmp_path: Path) -> None:
    rows = [body(QUESTION, timestamp=0, session_id="a"), body(QUESTION, ANSWER, MORE, delay=delay, session_id="a")]
    trace = read(tmp_path, *rows)
    assert bool(said(trace, "drawn")) == (delay is None)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_a_log_in_any_order_is_that_in_order_of_arrival(order: tuple[int, ...], tmp_path: Path) -> None:
    turns = [QUESTION, ANSWER, MORE, ANSWER, MORE]
    rows = [body(*turns[: 2 * n + 1], created=EPOCH + 60 * n) for n in range(3)]
    expected = read(tmp_path, *rows)
    trace = read(tmp_path, *(rows[n] for n in order))
    assert trace.requests == expected.requests
    assert all(after.continues(before) for before, after in pairwise(trace.requests))
    assert "put in order of arrival" in said(trace, "sorted")
    assert not said(expected, "sorted")


TIMED = body(QUESTION, created=EPOCH)
UNTIMED = {
    "call": body(MORE),
    "conversation": body(MORE, ANSWER),
    "response alone": {"response": OF_ANTHROPIC},
}


@pytest.mark.parametrize("kind", UNTIMED)
def test_a_row_without_a_time_among_rows_with_one_is_named_and_can_be_skipped(kind: str, tmp_path: Path) -> None:
    for rows, line in (([TIMED, UNTIMED[kind]], 2), ([UNTIMED[kind], TIMED], 1)):
        source = write_lines(tmp_path / "t.jsonl", *rows)
        assert refusal(source) == f"t.jsonl:{line}: has no time, and other rows have one: all or none"
        trace = open_trace(source, skip_bad=True)
        assert (len(trace.requests), trace.skipped) == (1, 1)
        assert "times of" not in said(trace, "drawn")


def test_calls_of_litellm_have_their_tools_and_those_that_failed_are_left_out(tmp_path: Path) -> None:
    answered = {"choices": [{"message": ANSWER, "finish_reason": "stop"}]}
    row = {"model": "m", "messages": [QUESTION], "startTime": EPOCH + 0.5, "endTime": EPOCH + 2.5, "status": "success"}
    tools = {"model_parameters": {"tools": ["d" * 396]}}  # 400 characters as JSON
    failed = row | {"status": "failure", "response": {}, "error_str": "rate limit"}
    trace = read(tmp_path, row | {"response": answered} | tools, failed)
    (request,) = trace.requests
    assert (request.prompt_tokens, request.answer_s) == (2 + 100, 2)
    assert (trace.skipped, trace.skip_reasons[0].partition(": ")[2]) == (1, "status: the call failed")


def test_calls_of_helicone_come_at_their_times(tmp_path: Path) -> None:
    answered = {"choices": [{"message": ANSWER, "finish_reason": "stop"}]}
    rows = [
        {"request_body": body(*messages), "response_body": answered, "request_created_at": f"2025-01-01T10:0{n}:00Z"}
        | {"response_created_at": f"2025-01-01T10:0{n}:03Z"}
        for n, messages in enumerate([[QUESTION], [QUESTION, ANSWER, MORE]])
    ]
    first, second = read(tmp_path, *rows).requests
    assert (second.arrival_s, second.wait_s, second.answer_s, second.continues(first)) == (60, 57, 3, True)


def test_rows_that_count_from_a_start_are_not_mixed_with_those_that_count_from_1970(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", TIMED, body(MORE, created=0))
    message = "t.jsonl:2: its time counts from a start, and those of other rows from 1970: all or none"
    assert refusal(source) == message
    calls = [TIMED, body(QUESTION, ANSWER, MORE, created=0)]  # of one conversation
    assert "its time counts from a start" in refusal(write_lines(tmp_path / "t.jsonl", *calls))


def test_later_calls_of_a_session_need_no_time_if_its_first_one_has_one(tmp_path: Path) -> None:
    rows = [TIMED, body(QUESTION, ANSWER, MORE)]
    first, second = read(tmp_path, *(row | {"session_id": "a"} for row in rows)).requests
    assert 0 < second.arrival_s - first.arrival_s < 86_400


def test_calls_of_agents_that_run_beside_each_other_in_a_session_are_conversations_of_their_own(tmp_path: Path) -> None:
    other = {"role": "system", "content": "another agent " * 9}
    asked = [(0, [QUESTION]), (1, [other, QUESTION]), (2, [QUESTION, MORE]), (5, [QUESTION, ANSWER, MORE])]
    asked += [(9, [other, QUESTION, ANSWER, MORE])]
    at_s = 1_760_000_000
    # Each call takes 2 s: the one at 2 s with the first question, and another second one, is a third agent's.
    rows = [
        {"request": body(*messages), "response": {"choices": [{"message": ANSWER}]}, "session_id": "s"}
        | {"start_time": at_s + come, "end_time": at_s + come + 2.5}
        for come, messages in asked
    ]
    trace = read(tmp_path, *rows)
    assert [each.conversation for each in trace.requests] == ["s", "s#2", "s#3", "s", "s#2"]
    assert [each.wait_s for each in trace.requests] == [None, None, None, 2.5, 5.5]
    assert {each.session for each in trace.requests} == {"s"}
    thread = read(tmp_path, *(row | {"session_id": None, "thread_id": "t"} for row in rows))
    assert {each.conversation for each in thread.requests} == {"t"}, "a thread is one conversation"


def test_a_session_whose_system_prompt_changes_stays_a_conversation(tmp_path: Path) -> None:
    asked = [[QUESTION], [QUESTION, ANSWER, MORE], [QUESTION, ANSWER, MORE, ANSWER, MORE]]
    rows = [
        {"request": body({"role": "system", "content": f"it is {n} o'clock"}, *messages), "session_id": "s"}
        | {"start_time": EPOCH + 10 * n, "end_time": EPOCH + 10 * n + 2, "response": {"choices": [{"message": ANSWER}]}}
        for n, messages in enumerate(asked)
    ]
    assert [each.conversation for each in read(tmp_path, *rows).requests] == ["s"] * 3


def test_a_session_whose_oldest_messages_are_left_out_stays_a_conversation(tmp_path: Path) -> None:
    said = [{"role": role, "content": f"{role} {n}"} for n in range(4) for role in ("user", "assistant")]
    rows = [
        {"request": body(*said[first : first + 3]), "session_id": "s"}
        | {"start_time": EPOCH + 10 * first, "end_time": EPOCH + 10 * first + 2}
        | {"response": {"choices": [{"message": said[first + 3]}]}}
        for first in (0, 2, 4)
    ]
    assert [each.conversation for each in read(tmp_path, *rows).requests] == ["s"] * 3


def test_ids_are_of_one_file_and_sessions_of_a_whole_folder(tmp_path: Path) -> None:
    for name, question in (("monday", QUESTION), ("tuesday", MORE)):
        write_lines(tmp_path / "ids" / f"{name}.jsonl", {"id": 0, "messages": [question, ANSWER]})
        write_lines(tmp_path / "sessions" / f"{name}.jsonl", {"conversation_id": "a", "messages": [question, ANSWER]})
    names = {request.conversation for request in open_trace(str(tmp_path / "ids")).requests}
    assert names == {"monday/0", "tuesday/0"}
    assert {request.conversation for request in open_trace(str(tmp_path / "sessions")).requests} == {"a"}


def test_rows_with_one_id_and_other_texts_are_conversations_of_their_own(tmp_path: Path) -> None:
    trace = read(tmp_path, *({"id": "x", "messages": [each, ANSWER]} for each in (QUESTION, MORE)))
    assert {request.conversation for request in trace.requests} == {"x", "x#2"}
    assert said(trace, "assumed") == "1 rows have the id of an earlier row: conversations of their own"


@pytest.mark.parametrize("name", ["conversation_id", "id"])
@pytest.mark.parametrize("order", [(2, 4, 4), (4, 2, 4)])
def test_a_turn_that_several_rows_of_a_conversation_have_is_counted_once(
    tmp_path: Path, name: str, order: tuple[int, ...]
) -> None:
    messages = [QUESTION, ANSWER, MORE, ANSWER]
    trace = read(tmp_path, *({name: "x", "messages": messages[:length]} for length in order))
    first, second = trace.requests
    assert second.continues(first)
    assert first.conversation == second.conversation == "x"
    # Three rows have 1 + 2 + 2 turns, of which two are new.
    assert said(trace, "assumed") == "3 turns are repeated in a later row with the same id: counted once"


def test_a_prompt_cache_key_joins_only_prompts_that_continue_each_other(tmp_path: Path) -> None:
    rows = [body(QUESTION), body(MORE), body(QUESTION, ANSWER, MORE)]
    keyed = [row | {"prompt_cache_key": "my-app", "created": EPOCH + n} for n, row in enumerate(rows)]
    first, other, second = read(tmp_path, *keyed).requests
    assert first.conversation == second.conversation != other.conversation
    assert second.continues(first)


def completions(prompt: Any, *texts: str) -> dict[str, Any]:
    choices = [{"text": text, "finish_reason": "length"} for text in texts]
    return {"request": {"model": "m", "prompt": prompt, "max_tokens": 9}, "created": EPOCH} | (
        {"response": {"choices": choices, "usage": {"prompt_tokens": 4, "completion_tokens": 99}}} if texts else {}
    )


def test_a_batch_of_completions_is_a_request_for_each_prompt_with_its_own_answer(tmp_path: Path) -> None:
    trace = read(tmp_path, completions(["p" * 4, "p" * 8], "a" * 4, "other", "a" * 12, "other"))
    assert [(each.prompt_tokens, each.output_tokens, each.stop) for each in trace.requests] == [
        (1, 1, "length"),
        (2, 3, "length"),
    ]


def test_prompts_of_token_ids_share_the_blocks_that_they_begin_with(tmp_path: Path) -> None:
    head = list(range(40))
    rows = [completions(head), completions([[*head, 7], [*head, 8]], "a" * 20, "a" * 40)]
    one, two, three = read(tmp_path, *rows).requests
    assert [each.prompt_tokens for each in (one, two, three)] == [40, 41, 41]
    assert [each.output_tokens for each in (one, two, three)] == [0, 5, 10]
    assert one.prompt.common(two.prompt) == two.prompt.common(three.prompt) == 32, "two blocks of 16"


def test_every_row_that_gives_no_request_is_counted(tmp_path: Path) -> None:
    rows = [body(QUESTION), {"error": "x"}, body(), completions([]), {"data": [body(QUESTION), "x"]}]
    trace = read(tmp_path, *rows)
    assert len(trace.requests) == 2
    assert trace.skip_reasons == (
        "t.jsonl:2: neither messages nor a response",
        "t.jsonl:3: the prompt is empty",
        "t.jsonl:4: the prompt is empty",
        "t.jsonl:5: neither messages nor a response",
    )


def test_small_timestamps_beside_messages_are_ms_as_of_aiperf_others_s_and_that_is_said(tmp_path: Path) -> None:
    for form, unit in (
        (lambda n: body(QUESTION, timestamp=n), 0.001),
        (lambda n: {"timestamp": n, "payload": body(QUESTION)}, 0.001),
        (lambda n: {"timestamp": n, "payload": {"prompt": "what?", "max_tokens": 9}}, 0.001),
        (lambda n: {"timestamp": n, "request": body(QUESTION)}, 1),
    ):
        trace = read(tmp_path, *map(form, (0, 60, 120.5)))
        assert [request.arrival_s for request in trace.requests] == [0, 60 * unit, 120.5 * unit]
        assert "not from 1970: timestamp beside messages or payload read as ms, any other as s" in said(
            trace, "assumed"
        )
    since_1970 = read(tmp_path, body(QUESTION, timestamp=EPOCH), body(MORE, timestamp=(EPOCH + 60) * 1000))
    assert since_1970.requests[1].arrival_s == 60
    assert "times count" not in said(since_1970, "assumed")


def test_prompts_that_are_far_shorter_than_servers_counted_are_noted(tmp_path: Path) -> None:
    for told, noted in ((2, ""), (400, "1 prompts have 2 tokens; their servers counted 400: parts of them")):
        response = {"choices": [{"message": ANSWER}], "usage": {"prompt_tokens": told, "completion_tokens": 3}}
        trace = read(tmp_path, {"request": body(QUESTION), "response": response})
        assert trace.requests[0].prompt_tokens == told
        assert said(trace, "assumed").startswith(noted) if noted else not said(trace, "assumed")


@pytest.mark.parametrize("place", ["in the response", "beside the prompt", "alone"])
@pytest.mark.parametrize("value", [-5, 2**60, 0.5])
def test_a_usage_that_cannot_be_is_refused(tmp_path: Path, place: str, value: float) -> None:
    usage, choices = {"prompt_tokens": value, "completion_tokens": 7}, {"choices": [{"message": ANSWER}]}
    row: dict[str, Any] = {"request": body(QUESTION), "response": choices | {"usage": usage}}
    row = {"beside the prompt": body(QUESTION, usage=usage), "alone": row["response"]}.get(place, row)
    source = write_lines(tmp_path / "t.jsonl", row)
    assert refusal(source) == f"t.jsonl:1: usage.prompt_tokens: {value!r}, must be a number of tokens, 0 to 2**53"


def test_messages_of_a_table_are_json_in_a_text(tmp_path: Path) -> None:
    """As LiteLLM keeps them in its database."""
    said_so = {"choices": [{"message": ANSWER}]}
    rows = [
        {"model": "m", "startTime": "2025-01-01T00:00:00", "messages": [QUESTION], "response": said_so},
        {"model": "m", "startTime": "2025-01-01T00:01:00", "messages": [QUESTION, ANSWER, MORE], "response": {}},
    ]
    texts = [row | {"messages": json.dumps(row["messages"]), "response": json.dumps(row["response"])} for row in rows]
    trace = read(tmp_path, *texts)
    assert trace.requests == read(tmp_path, *rows).requests
    assert trace.requests[1].continues(trace.requests[0])


def test_times_of_a_table_are_read(tmp_path: Path) -> None:
    times = pa.array([EPOCH, EPOCH + 60], pa.timestamp("s"))
    table = pa.table({"model": ["m", "m"], "messages": [[QUESTION], [QUESTION, ANSWER, MORE]], "created_at": times})
    pq.write_table(table, tmp_path / "t.parquet")
    trace = open_trace(str(tmp_path / "t.parquet"))
    assert [request.arrival_s for request in trace.requests] == [0.0, 60.0]
    assert said(trace, "drawn") == ""


def test_an_answer_that_is_json_itself_is_a_text(tmp_path: Path) -> None:
    # 12 characters each: 3 tokens.
    for text in ('{"a": "bcd"}', '[{"a": "b"}]', '{"a": "bcd",'):
        (request,) = read(tmp_path, body(QUESTION, response=text)).requests
        assert (request.prompt_tokens, request.output_tokens, len(request.context)) == (2, 3, 5)
    failed = read(tmp_path, body(QUESTION, response='{"error": {"message": "too long"}}'))
    assert "1 answers are not in the log" in said(failed, "assumed")


def test_an_embedding_is_no_call_of_a_model_that_answers(tmp_path: Path) -> None:
    rows = [{"custom_id": f"{n}", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}} for n in range(2)]
    chat = {"custom_id": "c", "url": "/v1/chat/completions", "body": body(QUESTION)}
    trace = read(tmp_path, *rows, chat)
    assert (len(trace.requests), trace.skip_reasons[0]) == (1, "t.jsonl:1: url: an embedding")


def test_a_time_with_utc_behind_it_is_one(tmp_path: Path) -> None:
    times = ("2025-11-25 12:00:00 UTC", "2025-11-25 12:00:01.5 UTC", "2025-11-25T14:00:02+02:00")
    trace = read(tmp_path, *(body(QUESTION, timestamp=time) for time in times))
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.5, 2.0]


def test_a_usage_may_be_numbers_as_texts(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "12345678"}], "response": "said"}
    usage = {"prompt_tokens": "20", "completion_tokens": "5"}
    (request,) = open_trace(write_lines(tmp_path / "t.jsonl", row | {"usage": usage})).requests
    assert (request.prompt_tokens, request.output_tokens) == (20, 5)
