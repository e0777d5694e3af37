"""aiperf's rows of sessions, and what a run of it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.traces import Arrivals, open_trace
from eval.traces.facts import facts
from eval.traces.reading.times import TOKEN_S
from tests.helpers.trace_files import refusal, said, write_lines

# ---- rows ----


def test_a_later_turn_comes_its_delay_after_the_answer(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 4_000, "input_length": 300, "output_length": 100},
        {"session_id": "a", "delay": 500, "input_length": 150, "output_length": 20},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, second = trace.requests
    assert trace.format == "aiperf"
    # 100 tokens take 2 s, then the delay.
    assert second.arrival_s == pytest.approx(100 * TOKEN_S + 0.5)
    assert second.wait_s == 0.5
    # Rows give what a turn adds: 300, then 300 + 100 + 150.
    assert (first.prompt_tokens, second.prompt_tokens) == (300, 550)
    assert second.continues(first)
    assert "contexts of 1 sessions" in said(trace, "rebuilt")
    assert "an answer takes 20 ms a token" in said(trace, "assumed")


def test_times_of_sessions_since_1970_may_be_in_s(tmp_path: Path) -> None:
    row = {"session_id": "a", "timestamp": 1_760_000_000, "input_length": 300, "output_length": 100}
    rows = [row, {"session_id": "a", "delay": 500, "input_length": 600, "output_length": 20}]
    other = row | {"session_id": "b", "timestamp": 1_760_000_060}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows, other))
    assert [request.arrival_s for request in trace.requests] == [0.0, 2.0 + 0.5, 60.0]
    assert "times are in s since 1970" in said(trace, "assumed")


def test_blocks_that_go_on_make_rows_whole_prompts(tmp_path: Path) -> None:
    # 9,176 tokens are 17 full blocks of 512 and a part of an 18th; the next prompt has 18 full ones.
    rows = [
        {"session_id": "c", "input_length": 9176, "output_length": 142, "hash_ids": list(range(1, 19))},
        {"session_id": "c", "delay": 500, "input_length": 9500, "output_length": 98, "hash_ids": list(range(1, 20))},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, second = trace.requests
    assert [request.prompt_tokens for request in trace.requests] == [9176, 9500]
    assert second.prompt.common(first.prompt) == len(first.prompt) == 17 * 512
    assert second.arrival_s == pytest.approx(142 * TOKEN_S + 0.5)
    assert "starts of 1 sessions without a timestamp: 1,800 an hour, seed 0" in said(trace, "drawn")


def test_a_session_whose_history_was_replaced_has_whole_prompts_if_others_have(tmp_path: Path) -> None:
    # As Dynamo writes them: the second session was compacted after its first call.
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]},
        {"session_id": "a", "timestamp": 5000, "delay": 10, "input_length": 1536, "hash_ids": [1, 2, 3]},
        {"session_id": "b", "timestamp": 6000, "input_length": 1536, "output_length": 10, "hash_ids": [1, 4, 5]},
        {"session_id": "b", "timestamp": 9000, "delay": 10, "input_length": 1024, "hash_ids": [1, 6]},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.prompt_tokens for request in trace.requests] == [1024, 1536, 1536, 1024]
    assert [request.arrival_s for request in trace.requests] == [0.0, 5.0, 6.0, 9.0]
    assert trace.requests[3].prompt.common(trace.requests[2].prompt) == 512
    assert "an answer takes" not in said(trace, "assumed")


def test_fresh_blocks_make_rows_what_a_turn_adds(tmp_path: Path) -> None:
    # As aiperf's generator of agentic code writes them; both sessions begin with block 1.
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 10, "input_length": 100, "output_length": 10, "hash_ids": [3]},
        {"session_id": "b", "timestamp": 5, "input_length": 700, "output_length": 10, "hash_ids": [1, 4]},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, other, second = trace.requests
    assert (first.prompt_tokens, second.prompt_tokens) == (700, 810)
    assert second.continues(first)
    assert other.prompt.common(first.prompt) == 512


@pytest.mark.parametrize(("mode", "tokens"), [("message_array_with_responses", 150), ("deltas_without_responses", 550)])
def test_a_context_mode_decides(tmp_path: Path, mode: str, tokens: int) -> None:
    rows = [{"session_id": "a", "input_length": 300, "output_length": 100, "context_mode": mode}] * 2
    rows[1] = rows[1] | {"input_length": 150, "delay": 1}
    assert open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests[1].prompt_tokens == tokens


def test_rows_without_ids_or_sessions_are_lengths_alone(tmp_path: Path) -> None:
    rows = [{"timestamp": n * 1000, "input_length": 655, "output_length": 52} for n in range(2)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [(request.conversation, request.arrival_s) for request in trace.requests] == [(None, 0.0), (None, 1.0)]
    assert trace.requests[0].prompt.common(trace.requests[1].prompt) == 0
    assert said(trace, "rebuilt") == "2 rows have neither ids nor a session: nothing in them can be reused"


def test_fields_that_a_row_has_not_may_be_null(tmp_path: Path) -> None:
    none = dict.fromkeys(("session_id", "delay", "text_input", "messages", "tools", "payload"))
    rows = [none | {"timestamp": n * 1000, "input_length": 655, "hash_ids": [1, 2]} for n in range(2)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert trace.format == "aiperf"
    assert trace.requests[1].prompt.common(trace.requests[0].prompt) == 512


def test_turns_of_a_session_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 9_000, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "timestamp": 1_000, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [(each.arrival_s, each.prompt_tokens) for each in trace.requests] == [(0.0, 1024), (8.0, 1536)]
    assert said(trace, "sorted") == "1 of 2 rows came before the row above them: put in order of arrival"


def test_a_delay_may_have_the_name_that_dynamo_gives_it(tmp_path: Path) -> None:
    rows = [{"session_id": "a", "timestamp": 0, "input_length": 300, "output_length": 100}]
    rows.append({"session_id": "a", "delay_ms": 500, "input_length": 500, "output_length": 1})
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    # 100 tokens take 2 s, then the delay.
    assert trace.requests[1].arrival_s == pytest.approx(100 * TOKEN_S + 0.5)
    assert not said(trace, "drawn")


def test_rows_without_times_start_as_drawn(tmp_path: Path) -> None:
    rows = [{"input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}] * 3
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert len({request.arrival_s for request in trace.requests}) == 3
    assert trace.requests[0].prompt.common(trace.requests[1].prompt) == 1024
    assert "starts of 3 sessions without a timestamp" in said(trace, "drawn")


def test_texts_are_cut_into_blocks_that_prompts_share(tmp_path: Path) -> None:
    shared = "x" * 640
    rows = [{"timestamp": n, "text_input": shared + str(n) * 70, "output_length": 4} for n in range(2)]
    one, other = open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests
    # 710 characters are 178 tokens; 16 tokens have 64 characters, so ten blocks are shared.
    assert (one.prompt_tokens, len(one.prompt), one.prompt.common(other.prompt)) == (178, 176, 160)


def test_sessions_start_as_drawn_from_the_seed(tmp_path: Path) -> None:
    rows = [{"session_id": n, "input_length": 5, "output_length": 1} for n in range(50)]
    source = write_lines(tmp_path / "t.jsonl", *rows)
    arrivals = [[each.arrival_s for each in open_trace(source, arrivals=Arrivals(seed=n)).requests] for n in (0, 0, 1)]
    assert arrivals[0] == arrivals[1] != arrivals[2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"input_length": 5, "output_length": 1},
            "timestamp: some rows have one (ms) and some have none: all or none",
        ),
        ({"session_id": "a", "hash_ids": [1]}, "input_length: missing; or text_input"),
        ({"timestamp": 1, "input_length": -5}, "input_length: Expected `int` >= 0, got -5"),
        ({"timestamp": 1, "input_length": 5, "delay": "1"}, "delay: Expected `float | null`, got `str` '1'"),
        (
            {"timestamp": 1, "input_length": 1, "hash_ids": [1, 2]},
            "hash_ids: 2 ids, but 1 tokens are 1 blocks of 512 (--block-size)",
        ),
    ],
)
def test_a_bad_row_says_what_is_missing(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"timestamp": 0, "input_length": 655, "output_length": 52}
    assert refusal(write_lines(tmp_path / "t.jsonl", good, row)) == f"t.jsonl:2: {message}"


def test_sessions_all_have_times_or_none_has(tmp_path: Path) -> None:
    # A start that is drawn lies near 0 s, one of 2025 lies 55 years later.
    timed = {"session_id": "a", "timestamp": 1_760_428_258_635, "input_length": 1000, "output_length": 3}
    later = {"session_id": "a", "delay": 500, "input_length": 1000, "output_length": 3}
    other = {"session_id": "b", "input_length": 1000, "output_length": 3}
    message = "timestamp: some rows have one (ms) and some have none: all or none"
    assert refusal(write_lines(tmp_path / "t.jsonl", timed, later, other)) == f"t.jsonl:3: {message}"
    assert refusal(write_lines(tmp_path / "u.jsonl", other, later, timed)) == f"u.jsonl:3: {message}"
    assert len(open_trace(write_lines(tmp_path / "v.jsonl", timed, later)).requests) == 2


# ---- data sets of texts ----


def test_turns_of_a_session_add_to_its_history_and_come_their_delay_after_the_answer(tmp_path: Path) -> None:
    turns = [{"text": "q" * 40, "output_length": 50}, {"texts": ["m" * 10, "n" * 9], "delay": 2_000}]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", {"session_id": "a", "turns": turns}))
    first, second = trace.requests
    assert trace.format == "aiperf-turns"
    # 40 characters are 10 tokens, the answer is as long as asked for, and 10 + 1 + 9 characters come to it.
    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens) == (10, 50, 10 + 50 + 5)
    assert second.continues(first)
    assert second.arrival_s == pytest.approx(50 * TOKEN_S + 2.0)


def test_single_turns_are_whole_prompts(tmp_path: Path) -> None:
    rows = [{"text": "q" * 40, "timestamp": 1_000 * n} for n in range(2)]
    image = {"text": "q" * 40, "image": "data:image/png;base64,AAAA", "timestamp": 3_000}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows, image))
    # An image counts as 1,000 tokens.
    assert [each.arrival_s for each in trace.requests] == [0.0, 1.0, 3.0]
    assert trace.requests[0].prompt.ids == trace.requests[1].prompt.ids
    assert trace.requests[0].conversation != trace.requests[1].conversation
    assert trace.requests[2].prompt_tokens > 1_000


def test_a_turn_without_anything_to_send_is_named(tmp_path: Path) -> None:
    row = {"session_id": "a", "turns": [{"text": "q"}, {"text": ""}]}
    assert refusal(write_lines(tmp_path / "t.jsonl", row)) == (
        "t.jsonl:1: turns[1].text: missing, and so are texts, images and all else: one of them"
    )


# ---- artifacts ----


def export(conversation: str, turn: int, start_s: float, tokens: int, **meta: Any) -> dict[str, Any]:
    end = int((start_s + 1.5) * 1e9)
    told = {"request_start_ns": int(start_s * 1e9), "request_end_ns": end, "benchmark_phase": "profiling"}
    metrics = {
        "input_sequence_length": {"value": tokens, "unit": "tokens"},
        "output_sequence_length": {"value": 20, "unit": "tokens"},
    }
    return {"metadata": told | {"conversation_id": conversation, "turn_index": turn} | meta, "metrics": metrics}


def payload(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]}


INPUTS = {"data": [{"session_id": "a", "payloads": [payload("12345678"), payload("12345678", "said", "more")]}]}
EXPORT = [export("a", 0, 100.0, 30), export("a", 1, 110.0, 70), export("a", 0, 90.0, 30, benchmark_phase="warmup")]
SUMMARY = {"aiperf_version": "0.3.0", "request_count": {"avg": 2}}


def test_the_folder_of_a_run_has_texts_and_times(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS, indent=2))
    write_lines(tmp_path / "profile_export.jsonl", *EXPORT)
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(SUMMARY, indent=2))
    trace = open_trace(str(tmp_path))
    first, second = trace.requests
    assert trace.format == "aiperf-artifacts"
    assert (second.arrival_s, first.answer_s, second.wait_s) == (10.0, 1.5, 8.5)
    assert (first.prompt_tokens, first.output_tokens) == (2, 20)
    assert second.prompt.common(first.prompt) == 2


def test_each_time_a_session_is_sent_is_a_conversation(tmp_path: Path) -> None:
    # Two sessions, each sent three times: of six prompts, four were sent before.
    inputs = [{"session_id": name, "payloads": [payload(f"session{name}")]} for name in "ab"]
    (tmp_path / "inputs.json").write_text(json.dumps({"data": inputs}))
    sent = [export("ab"[n % 2], 0, 10.0 * n, 2, x_correlation_id=f"c{n}") for n in range(6)]
    write_lines(tmp_path / "profile_export.jsonl", *sent)
    trace = open_trace(str(tmp_path))
    assert [request.conversation for request in trace.requests] == ["a", "b", "a#2", "b#2", "a#3", "b#3"]
    assert [request.arrival_s for request in trace.requests] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert facts(trace.requests).hit_ratio == pytest.approx(4 / 6)
    assert "4 times a session was sent again: conversations of their own" in said(trace, "assumed")


@pytest.mark.parametrize("told", [True, False])
def test_sessions_that_are_sent_at_the_same_time_go_on_by_their_correlation_ids(tmp_path: Path, told: bool) -> None:
    # The second time overtakes the first. Contexts have 1,000 + 20 tokens.
    order = [("c0", 0, 1_000), ("c1", 0, 1_000), ("c1", 1, 1_200), ("c0", 1, 4_000)]
    rows = [
        export("s", turn, 10.0 * number, tokens, **({"x_correlation_id": name} if told else {}))
        for number, (name, turn, tokens) in enumerate(order)
    ]
    trace = open_trace(write_lines(tmp_path / "profile_export.jsonl", *rows))
    # Without the ids, a turn is that of the first time that has not had it.
    assert [each.conversation for each in trace.requests] == ["s", "s#2", *(("s#2", "s") if told else ("s", "s#2"))]
    assert trace.requests[3].continues(trace.requests[0 if told else 1])


def test_each_time_a_session_is_sent_its_next_prompt_shows_its_answer(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    order = [("c0", 0), ("c1", 0), ("c1", 1), ("c0", 1)]
    rows = [export("a", turn, 10.0 * n, 30, x_correlation_id=name) for n, (name, turn) in enumerate(order)]
    write_lines(tmp_path / "profile_export.jsonl", *rows)
    trace = open_trace(str(tmp_path))
    assert [each.conversation for each in trace.requests] == ["a", "a#2", "a#2", "a"]
    # 8 characters are 2 tokens, "said" is one.
    assert [len(each.context) for each in trace.requests[:2]] == [2 + 1, 2 + 1]


def test_requests_that_failed_or_were_cancelled_are_left_out_and_counted(tmp_path: Path) -> None:
    error = {"code": 500, "type": "InternalServerError", "message": "boom"}
    failed = export("b", 0, 20.0, 30) | {"metrics": {"error_isl": {"value": 160}}, "error": error}
    source = write_lines(tmp_path / "a.jsonl", *EXPORT, failed, export("c", 0, 30.0, 5, was_cancelled=True))
    trace = open_trace(source)
    assert len(trace.requests) == 2
    assert said(trace, "left out") == (
        "of 5 requests: 1 of the warm-up, 1 failed, 1 cancelled; the first that failed: "
        'a.jsonl:4: {"code":500,"type":"InternalServerError","message":"boom"}'
    )
    failed_alone = write_lines(tmp_path / "b.jsonl", failed)
    assert refusal(failed_alone).startswith(f"trace {failed_alone}: of 1 requests: 1 failed; the first that failed:")


def test_sessions_that_a_run_did_not_reach_are_left_out_and_said(tmp_path: Path) -> None:
    inputs = [*INPUTS["data"], {"session_id": "late", "payloads": [payload("never sent")]}]
    (tmp_path / "inputs.json").write_text(json.dumps({"data": inputs}))
    write_lines(tmp_path / "profile_export.jsonl", EXPORT[0])
    trace = open_trace(str(tmp_path))
    assert [request.conversation for request in trace.requests] == ["a"]
    assert said(trace, "left out") == (
        "2 of 3 payloads of inputs.json were not answered: the run ended early, or they failed; "
        "the first: session a: payloads[1]"
    )


def test_errors_of_inputs_name_the_session_and_the_payload(tmp_path: Path) -> None:
    inputs = {"data": [{"session_id": "a", "payloads": [payload("12345678"), {"model": "m"}]}]}
    (tmp_path / "inputs.json").write_text(json.dumps(inputs))
    assert refusal(str(tmp_path / "inputs.json")) == (
        "inputs.json:1: session a: payloads[1]: neither messages nor a prompt"
    )
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    write_lines(tmp_path / "profile_export.jsonl", export("z", 0, 1.0, 5))
    assert refusal(str(tmp_path)) == (
        "profile_export.jsonl:1: metadata.conversation_id: 'z', turn_index 0: inputs.json has no such payload"
    )


def test_the_export_alone_has_lengths_and_its_contexts_are_rebuilt(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "profile_export.jsonl", *EXPORT))
    first, second = trace.requests
    # 30 + 20 tokens of context, and 20 new ones.
    assert (second.prompt_tokens, second.continues(first)) == (70, True)
    assert "contexts of 1 conversations" in said(trace, "rebuilt")


def test_the_inputs_alone_have_no_times(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    trace = open_trace(str(tmp_path / "inputs.json"))
    assert [request.prompt_tokens for request in trace.requests] == [2, 4]
    assert "times of 1 conversations" in said(trace, "drawn")


def test_a_summary_alone_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(SUMMARY))
    assert refusal(str(tmp_path / "profile_export_aiperf.json")).endswith(
        "a summary: give the folder of the run, or its profile_export.jsonl"
    )


def test_a_length_that_cannot_be_is_refused(tmp_path: Path) -> None:
    assert refusal(write_lines(tmp_path / "t.jsonl", export("a", 0, 1.0, -5))) == (
        "t.jsonl:1: metrics.input_sequence_length: -5, must be a number of tokens, 0 to 2**53"
    )


def test_a_measured_request_without_a_length_is_named(tmp_path: Path) -> None:
    bad = export("a", 0, 1.0, 5) | {"metrics": {}}
    assert refusal(write_lines(tmp_path / "t.jsonl", bad)) == (
        "t.jsonl:1: metrics.input_sequence_length: missing: the tokens of the input"
    )
