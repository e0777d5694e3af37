"""Traces of lengths: BurstGPT in both versions, Azure's, results of bench_serving; and LMCache's calls with texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from eval.traces.reading.times import TOKEN_S
from tests.helpers.trace_files import refusal, said, write_lines

# ---- BurstGPT ----

FIRST_VERSION = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SECOND_VERSION = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def csv(path: Path, head: str, *rows: str) -> str:
    path.write_text(head + "".join(f"{row}\n" for row in rows))
    return str(path)


def test_the_first_version_has_no_sessions_and_nothing_is_shared(tmp_path: Path) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,1087,0,1087,API log")
    trace = open_trace(csv(tmp_path / "BurstGPT_1.csv", FIRST_VERSION, *rows))
    first, second = trace.requests
    assert (trace.format, second.arrival_s) == ("burstgpt", 40.0)
    assert (first.prompt_tokens, first.output_tokens, first.model) == (472, 18, "ChatGPT")
    assert (second.category, second.output_tokens, second.conversation) == ("API log", 0, None)
    assert first.context.common(second.context) == 0
    assert "2 rows name no session: nothing in them can be reused" in said(trace, "rebuilt")
    assert "1 rows have no answer: they failed" in said(trace, "real")


def test_contexts_of_sessions_are_rebuilt_and_that_is_said(tmp_path: Path) -> None:
    rows = [
        "5,12,3.1,ChatGPT,472,18,490,Conversation log",
        "65,12,2.0,ChatGPT,500,20,520,Conversation log",
        "70,13,1.0,ChatGPT,90,20,110,Conversation log",
    ]
    trace = open_trace(csv(tmp_path / "t.csv", SECOND_VERSION, *rows))
    first, second, other = trace.requests
    # 472 + 18 tokens of context, and 10 new ones.
    assert (second.prompt_tokens, second.prompt.common(first.context), second.continues(first)) == (500, 490, True)
    assert (first.answer_s, first.conversation, other.conversation) == (3.1, "12", "13")
    assert said(trace, "rebuilt") == ("contexts of 2 sessions: a prompt is the context before it and what is left")


def test_lengths_that_do_not_grow_are_of_new_messages(tmp_path: Path) -> None:
    rows = [f"{n},12,1.0,ChatGPT,40,100,140,Conversation log" for n in range(4)]
    trace = open_trace(csv(tmp_path / "t.csv", SECOND_VERSION, *rows))
    assert [request.prompt_tokens for request in trace.requests] == [40, 180, 320, 460]
    assert "request tokens are a new message alone" in said(trace, "rebuilt")


def test_rows_of_csv_may_be_out_of_order_packed_or_marked(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + FIRST_VERSION.encode() + b"9,m,1,1,2,API log\r\n3,m,2,1,3,API log\r\n")
    trace = open_trace(str(path))
    assert [request.prompt_tokens for request in trace.requests] == [2, 1]
    assert said(trace, "sorted") == "1 of 2 rows came before the row above them: put in order of arrival"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,m,1,1,2,API log", "t.csv:3: Timestamp: Expected `float`, got `str` 'x'"),
        ("5,m,-1,1,2,API log", "t.csv:3: Request tokens: Expected `int` >= 0, got -1"),
        ("5,m", "t.csv:3: Request tokens: Expected `int`, got `null`"),
    ],
)
def test_a_bad_row_of_csv_is_named(tmp_path: Path, row: str, message: str) -> None:
    source = csv(tmp_path / "t.csv", FIRST_VERSION, "1,m,1,1,2,API log", row)
    assert refusal(source) == message
    assert open_trace(source, skip_bad=True).skipped == 1


def test_another_table_is_refused(tmp_path: Path) -> None:
    assert "of no known format" in refusal(csv(tmp_path / "t.csv", "a,b\n", "1,2"))


@pytest.mark.parametrize("none", ["", "nan", "None", "-1", "<NA>", "N/A", "NA", "-"])
def test_what_stands_for_no_session_is_none(tmp_path: Path, none: str) -> None:
    rows = [f"{n},{none},1.0,ChatGPT,500,20,520,API log" for n in (5, 9)]
    trace = open_trace(csv(tmp_path / "t.csv", SECOND_VERSION, *rows))
    first, second = trace.requests
    assert (first.conversation, second.conversation) == (None, None)
    assert second.prompt.common(first.context) == 0


def test_times_of_csv_since_1970_may_be_in_ms(tmp_path: Path) -> None:
    rows = [f"{1_760_000_000_000 + 1_500 * n},m,1,1,2,API log" for n in range(2)]
    trace = open_trace(csv(tmp_path / "t.csv", FIRST_VERSION, *rows))
    assert [each.arrival_s for each in trace.requests] == [0.0, 1.5]
    assert "times are in ms since 1970, as their size tells; in this format they are in s" in said(trace, "assumed")


# ---- Azure ----


def test_azures_traces_are_times_and_lengths(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.6805900,374,109")
    trace = open_trace(csv(tmp_path / "conv.csv", head, *rows))
    first, second = trace.requests
    assert (trace.format, first.arrival_s, second.arrival_s) == ("azure", 0.0, 4.0)
    assert (first.prompt_tokens, second.prompt_tokens, second.output_tokens) == (374, 374, 109)
    assert first.context.common(second.context) == 0
    assert "nothing in them can be reused" in said(trace, "rebuilt")
    assert refusal(csv(tmp_path / "bad.csv", head, "yesterday,1,1")) == (
        "bad.csv:2: TIMESTAMP: 'yesterday' is no time, such as 2025-11-25T10:00:00Z"
    )


# ---- bench_serving ----

RUN: dict[str, Any] = {
    "backend": "sglang", "request_rate": 4.0, "duration": 10.0, "total_input_tokens": 60, "completed": 3,
}  # fmt: skip


def test_results_of_bench_serving_are_lengths_with_drawn_arrivals(tmp_path: Path) -> None:
    details = {"input_lens": [10, 20, 30], "output_lens": [1, 2, 3], "ttfts": [0.1] * 3, "errors": [""] * 3}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", RUN | details, RUN | details))
    assert trace.format == "bench-serving"
    assert sorted(request.prompt_tokens for request in trace.requests) == [10, 10, 20, 20, 30, 30]
    assert max(request.arrival_s for request in trace.requests) < 20.0
    assert "nothing in them can be reused" in said(trace, "rebuilt")
    assert "seed 0" in said(trace, "drawn")
    timed = open_trace(write_lines(tmp_path / "u.jsonl", RUN | details | {"start_times": [7.0, 7.5, 9.0]}))
    assert [request.arrival_s for request in timed.requests] == [0.0, 0.5, 2.0]


def test_requests_of_bench_serving_that_failed_are_left_out(tmp_path: Path) -> None:
    details = {"input_lens": [10, 20, 30], "output_lens": [1, 0, 3], "errors": ["", "Bad Gateway", None]}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", RUN | details))
    assert sorted(request.prompt_tokens for request in trace.requests) == [10, 30]
    assert trace.skip_reasons == ("t.jsonl:1: errors[1]: the request failed",)


def test_a_request_that_was_never_sent_does_not_move_its_run(tmp_path: Path) -> None:
    details = {"input_lens": [10, 20, 30], "output_lens": [0, 2, 3], "errors": ["refused", "", ""]}
    first, second = (
        RUN | details | {"duration": 10.0, "start_times": [0.0, *each]} for each in ([5e4, 5e4 + 1], [9e4] * 2)
    )
    trace = open_trace(write_lines(tmp_path / "t.jsonl", first, second))
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.0, 10.0, 10.0]


def test_results_without_details_are_refused_with_what_to_do(tmp_path: Path) -> None:
    assert refusal(write_lines(tmp_path / "t.jsonl", RUN)) == (
        "t.jsonl:1: input_lens: missing: --output-details writes them, of vllm --save-detailed"
    )
    uneven = RUN | {"input_lens": [1, 2], "output_lens": [1]}
    assert refusal(write_lines(tmp_path / "u.jsonl", uneven)) == (
        "u.jsonl:1: output_lens: 1 values, but input_lens has 2"
    )


# ---- LMCache ----


def test_lmcache_texts_of_a_session_follow_each_other(tmp_path: Path) -> None:
    start = 1_760_428_258_635_837  # µs
    rows = [
        {"timestamp": start, "input": "12345678", "output": "1234", "session_id": "a"},
        {"timestamp": start + 2_500_000, "input": "12345678" + "1234" + "more", "output": "1234", "session_id": "a"},
        {"timestamp": start + 3_000_000, "input": "new message", "output": "1234", "session_id": "a"},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert trace.format == "lmcache"
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0.0, 2.5, 3.0])
    # 2 + 1, then 1 + 1 more, then 3 more: each prompt begins with the context before it.
    assert [request.prompt_tokens for request in trace.requests] == [2, 4, 8]
    assert all(after.continues(before) for before, after in zip(trace.requests, trace.requests[1:], strict=False))
    assert said(trace, "assumed") == (
        "1 texts do not begin with the input and output before them: each is taken for what its prompt adds to them"
    )
    assert not said(open_trace(write_lines(tmp_path / "u.jsonl", *rows[:2])), "assumed")


def test_lmcache_prompts_may_have_a_template_around_the_answer_before(tmp_path: Path) -> None:
    told = {"session_id": "a", "output": " 1234 "}
    asked = "12345678" * 5
    again = f"{asked}<|assistant|>1234<|user|>more"
    rows = [told | {"timestamp": str(10**15 + 10**6 * n), "input": text} for n, text in enumerate((asked, again))]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, second = trace.requests
    # 40 characters are 10 tokens; 29 more come behind them, which are 8: the first prompt is shared, its answer is not.
    assert (first.prompt_tokens, second.prompt_tokens) == (10, 18)
    assert second.prompt.common(first.context) == 10
    assert not said(trace, "assumed")


def test_lmcache_messages_of_a_turn_alone_are_added_to_the_session(tmp_path: Path) -> None:
    told = {"session_id": "a", "output": "said"}
    asked, more = {"role": "user", "content": "12345678"}, {"role": "user", "content": "more"}
    answered = {"role": "assistant", "content": "said"}
    rows = [told | {"timestamp": 10**15, "input": [asked]}, told | {"timestamp": 10**15 + 10**6, "input": [more]}]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    # 2 tokens, an answer of 1, and 1 more.
    assert [each.prompt_tokens for each in trace.requests] == [2, 4]
    assert trace.requests[1].continues(trace.requests[0])
    assert "1 texts do not begin with the input and output before them" in said(trace, "assumed")
    whole = write_lines(tmp_path / "u.jsonl", rows[0], rows[1] | {"input": [asked, answered, more]})
    assert [each.prompt_tokens for each in open_trace(whole).requests] == [2, 4]
    # A prompt that begins as the session is whole, even where it holds no answer: somebody asks again.
    again = write_lines(tmp_path / "v.jsonl", rows[0], rows[1] | {"input": [asked]})
    assert [each.prompt_tokens for each in open_trace(again).requests] == [2, 2]


def test_lmcache_rows_on_another_clock_are_named(tmp_path: Path) -> None:
    rows = [
        {"session_id": name, "timestamp": time, "input": "12345678", "output": "said"}
        for name, time in (("a", "2025-10-14T07:50:58Z"), ("b", "7.5"))
    ]
    assert refusal(write_lines(tmp_path / "t.jsonl", *rows)) == (
        "t.jsonl:2: its time counts from a start, and those of other rows from 1970: all or none"
    )


def test_lmcache_times_since_a_start_are_in_microseconds_too(tmp_path: Path) -> None:
    """Also those that would be seconds since 1970 if they stood alone: 1 s, 40 minutes and 28 hours."""
    told = {"session_id": "a", "input": "12345678", "output": "1234"}
    rows = [told | {"timestamp": time} for time in (1_000_000, 2_400_000_000, 100_800_000_000)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.arrival_s for request in trace.requests] == [0.0, 2_399.0, 100_799.0]
    assert "times are in µs since a start, as they are too small to be since 1970" in said(trace, "assumed")
    rows = [told | {"timestamp": time} for time in (1.5, 2_400.0)]  # and parts of a second
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *rows))
    assert [request.arrival_s for request in trace.requests] == [0.0, 2_398.5]
    assert "times are" not in said(trace, "assumed")


def test_lmcache_messages_of_agents_come_their_gap_after_the_answer(tmp_path: Path) -> None:
    head = [{"role": "system", "content": "s" * 16}, {"role": "user", "content": "12345678"}]
    more = [{"role": "assistant", "content": "said"}, {"role": "tool", "content": "r" * 40}]
    told = {"session_id": "swebench__1", "model": "minimax-m2.5"}
    rows = [
        told | {"input": head, "output_length": 52, "pre_gap": 0.0},
        told | {"input": head + more, "output_length": 90, "pre_gap": 0.25},
    ]
    first, second = open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests
    assert second.arrival_s == pytest.approx(52 * TOKEN_S + 0.25)
    assert (first.output_tokens, second.wait_s, second.input, second.model) == (52, 0.25, "tool", "minimax-m2.5")
    assert second.prompt.common(first.context) == len(first.context) == 7


def test_calls_of_lmcache_all_have_times_or_none_has(tmp_path: Path) -> None:
    # A start that is drawn lies near 0 s, one of 2025 lies 55 years later.
    timed = {"session_id": "a", "timestamp": 1_760_428_258_635_837, "input": "12345678", "output": "said"}
    later = {"session_id": "a", "pre_gap": 1.0, "input": "more", "output": "said"}
    other = {"session_id": "b", "pre_gap": 1.0, "input": "12345678", "output": "said"}
    message = "timestamp: some rows have one (µs) and some have none: all or none"
    assert refusal(write_lines(tmp_path / "t.jsonl", timed, later, other)) == f"t.jsonl:3: {message}"
    assert refusal(write_lines(tmp_path / "u.jsonl", other, timed)) == f"u.jsonl:2: {message}"
    assert len(open_trace(write_lines(tmp_path / "v.jsonl", timed, later)).requests) == 2


def test_calls_of_lmcache_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    rows = [{"session_id": "a", "timestamp": 1_760_428_258_635_837, "input": "hello", "output": "abcd"}]
    rows.append(rows[0] | {"timestamp": 1_760_428_268_635_837, "input": "helloabcd there"})
    sound = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    late = open_trace(write_lines(tmp_path / "late.jsonl", *rows[::-1]))
    assert late.requests == sound.requests
    assert late.requests[1].continues(late.requests[0])
    assert said(late, "sorted") == "1 of 2 rows came before the row above them: put in order of arrival"
    assert not said(sound, "sorted")


def test_a_bad_row_of_lmcache_is_named(tmp_path: Path) -> None:
    row = {"timestamp": 1, "input": [{"role": "alien", "content": "x"}], "output": "y", "session_id": "a"}
    assert refusal(write_lines(tmp_path / "t.jsonl", row)) == (
        "t.jsonl:1: input[0].role: 'alien' is no role of a message, "
        "must be system, user, assistant, tool or another API's name of one, such as human, gpt or function"
    )
