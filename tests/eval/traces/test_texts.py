"""WildChat, ShareGPT and LMSYS-Chat-1M from small files in the schemas of the hub, as their cards have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path as FilePath
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.traces import Arrivals, TraceError, open_trace
from eval.traces.readers.wildchat import WAIT_S
from radix_tlru.tools.demo_model import write_demo_model
from tests.helpers.chat_files import (
    LONG,
    MODERATION,
    SHAREGPT,
    SHORT,
    WILDCHAT_1M,
    WILDCHAT_4_8M,
    at,
    message,
    milliseconds,
    row,
    write_json,
    write_jsonl,
    write_parquet,
)

# ---- WildChat ----

WILDCHAT_FILES: dict[str, Callable[[FilePath], str]] = {
    "1M parquet": lambda folder: write_parquet(folder / "w.parquet", WILDCHAT_1M, [LONG, SHORT]),
    "4.8M parquet": lambda folder: write_parquet(folder / "w.parquet", WILDCHAT_4_8M, [LONG, SHORT]),
    "jsonl": lambda folder: write_jsonl(folder / "w.jsonl", [LONG, SHORT]),
    "jsonl of pandas": lambda folder: write_jsonl(folder / "w.jsonl", [LONG, SHORT], milliseconds),
    "jsonl in s": lambda folder: write_jsonl(folder / "w.jsonl", [LONG, SHORT], datetime.timestamp),
    "jsonl in µs": lambda folder: write_jsonl(
        folder / "w.jsonl", [LONG, SHORT], lambda time: 1000 * milliseconds(time)
    ),
    "json": lambda folder: write_json(folder / "w.json", [LONG, SHORT]),
}


@pytest.mark.parametrize("kind", WILDCHAT_FILES)
def test_wildchat_turns_come_in_order_of_their_answers(kind: str, tmp_path: FilePath) -> None:
    trace = open_trace(WILDCHAT_FILES[kind](tmp_path))
    assert (trace.name, trace.format, trace.skipped) == ("w", "wildchat", 0)
    first, other, second = trace.requests
    assert [(each.conversation, each.arrival_s) for each in trace.requests] == [
        *(("long", 0.0), ("short", 40.0), ("long", 100.0))
    ]
    assert (list(first.prompt.ends), list(first.context.ends)) == ([2], [2, 5])
    assert (list(second.prompt.ends), list(second.context.ends)) == ([2, 5, 6], [2, 5, 6, 8])
    assert (second.prompt_tokens, second.output_tokens, second.return_rate) == (6, 2, None)
    assert second.prompt.common(first.context) == 5, "a turn begins with all of the one before"
    assert other.prompt.common(first.context) == 2, "equal first questions are shared"
    assert other.context.common(first.context) == 2, "different answers are not"


def test_every_wildchat_file_gives_the_same_requests(tmp_path: FilePath) -> None:
    traces = [open_trace(make(tmp_path)).requests for make in WILDCHAT_FILES.values()]
    assert all(before == after for before, after in pairwise(traces))


def test_a_turn_without_a_time_comes_a_constant_wait_before_the_next(tmp_path: FilePath) -> None:
    def turn(time: datetime | None) -> tuple[dict[str, Any], dict[str, Any]]:
        return message("user", "question"), message("assistant", "answer", time)

    unknown = row("unknown", at(1000), *turn(None), *turn(None), *turn(None))
    partly = row("partly", at(1000), *turn(at(700)), *turn(None), *turn(at(710)), *turn(None))
    trace = open_trace(write_jsonl(tmp_path / "w.jsonl", [unknown, partly]))
    start = 700  # of the first to arrive; arrivals count from it
    times = {
        name: [start + request.arrival_s for request in trace.requests if request.conversation == name]
        for name in ("unknown", "partly")
    }
    assert times["unknown"] == [1000 - 2 * WAIT_S, 1000 - WAIT_S, 1000]
    assert times["partly"] == [700, 700, 710, 1000], "but not before a turn whose time is known"


def test_wildchat_conversations_with_the_same_hash_are_told_apart(tmp_path: FilePath) -> None:
    again = row("short", at(400), message("user", "12345678"), message("assistant", "another answer", at(400)))
    trace = open_trace(write_jsonl(tmp_path / "w.jsonl", [SHORT, again]))
    assert [each.conversation for each in trace.requests] == ["short", "short#2"]


def test_the_first_release_of_wildchat_has_ids_and_the_time_of_each_conversation(tmp_path: FilePath) -> None:
    said = [{"role": "user", "content": "12345678"}, {"role": "assistant", "content": "said"}]
    rows = [
        {"conversation_id": name, "model": "gpt-4", "timestamp": at(seconds), "conversation": said * turns}
        for name, seconds, turns in (("a", 200, 2), ("b", 300, 1))
    ]
    trace = open_trace(write_jsonl(tmp_path / "w.jsonl", rows))
    assert trace.format == "wildchat"
    # The last turn of `a` is at 200 s, the one before it WAIT_S earlier.
    assert [(each.conversation, each.arrival_s) for each in trace.requests] == [
        *(("a", 0.0), ("a", WAIT_S), ("b", WAIT_S + 100))
    ]


def test_a_limit_takes_the_first_to_arrive_and_stops_reading(tmp_path: FilePath) -> None:
    day = 86_400
    late = [row(str(n), at(n * day), message("user", "?"), message("assistant", "!", at(n * day))) for n in (1, 2, 3)]
    trace = open_trace(write_jsonl(tmp_path / "w.jsonl", [LONG, SHORT, *late, "broken"]), limit=2)
    assert [(each.conversation, each.arrival_s) for each in trace.requests] == [("long", 0.0), ("short", 40.0)]
    assert trace.skipped == 0


def test_rows_in_any_order_are_sorted_without_a_limit_and_refused_with_one(tmp_path: FilePath) -> None:
    later = row("later", at(200_000), message("user", "?"), message("assistant", "!", at(200_000)))
    source = write_jsonl(tmp_path / "w.jsonl", [later, LONG])
    assert [each.conversation for each in open_trace(source).requests] == ["long", "long", "later"]
    with pytest.raises(TraceError, match=r"^w\.jsonl:2: timestamp: rows are out of order by more than a day"):
        open_trace(source, limit=3)


def test_a_conversation_of_more_than_a_day_is_left_out_under_a_limit_and_counted(tmp_path: FilePath) -> None:
    answers = message("assistant", "!", at(0)), message("assistant", "!", at(90_000))
    days = row("days", at(90_000), message("user", "?"), answers[0], message("user", "?"), answers[1])
    soon = row("soon", at(89_000), message("user", "?"), message("assistant", "!", at(89_000)))
    source = write_jsonl(tmp_path / "w.jsonl", [soon, days])
    assert len(open_trace(source).requests) == 3
    trace = open_trace(source, limit=3)
    assert [each.conversation for each in trace.requests] == ["soon"]
    assert trace.skip_reasons == ("w.jsonl:2: conversation: lasts more than a day, which a limit does not allow",)


def test_a_conversation_without_a_user_is_counted_and_one_without_an_answer_is_kept(tmp_path: FilePath) -> None:
    asked = row("asked", at(5), message("user", "12345678"))
    trace = open_trace(write_jsonl(tmp_path / "w.jsonl", [row("empty", at(0)), asked]))
    (request,) = trace.requests
    assert (request.prompt_tokens, request.output_tokens, request.context) == (2, 0, request.prompt)
    assert (trace.skipped, trace.skip_reasons) == (1, ("w.jsonl:1: conversation: no message of a user",))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ('{"conversation_hash": "x", "conv', "w.jsonl:2: not JSON: Input data was truncated"),
        (SHORT | {"timestamp": None}, "w.jsonl:2: timestamp: Expected `float | datetime`, got `null`"),
        (
            SHORT | {"timestamp": "yesterday"},
            "w.jsonl:2: timestamp: Invalid RFC3339 encoded datetime, got yesterday, "
            "must be a time such as 2025-11-25T10:00:00Z",
        ),
        (
            SHORT | {"conversation_hash": None},
            "w.jsonl:2: conversation_hash: missing, and so is conversation_id: one of them",
        ),
        (SHORT | {"timestamp": -1}, "w.jsonl:2: timestamp: Expected `float` >= 0.0, got -1"),
        (
            SHORT | {"conversation": [message("tool", "")]},
            "w.jsonl:2: conversation[0].role: Invalid enum value 'tool', must be one of assistant, system, user",
        ),
        (
            SHORT | {"conversation": [{"role": "user"}]},
            "w.jsonl:2: conversation[0]: Object missing required field `content`",
        ),
        (
            row("x", at(9), *[message(role, "", at(-n)) for n in (1, 2) for role in ("user", "assistant")]),
            "w.jsonl:2: conversation: turn 2 was answered before turn 1",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_field_or_counted(tmp_path: FilePath, bad: Any, text: str) -> None:
    source = write_jsonl(tmp_path / "w.jsonl", [LONG, bad, SHORT])
    with pytest.raises(TraceError) as error:
        open_trace(source)
    assert str(error.value) == text
    trace = open_trace(source, skip_bad=True)
    assert (len(trace.requests), trace.skip_reasons) == (3, (text,))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any] = JSON) -> st.SearchStrategy[Any]:
    """Nine in ten are good, so that whole rows often are."""
    return st.integers(1, 10).flatmap(lambda one: bad if one == 10 else good)


TIMES = mostly(st.integers(0, 2**41) | st.datetimes().map(datetime.isoformat))
ROLES = mostly(st.sampled_from(["user", "assistant"]), st.sampled_from(["system", "human", "gpt", "tool"]))
SPEAKERS = mostly(st.sampled_from(["human", "gpt"]), st.sampled_from(["system", "user", "bing", "tool"]))
MESSAGES = st.fixed_dictionaries({"role": ROLES, "content": st.text(), "timestamp": mostly(TIMES, st.none())})
WILDCHAT_ROWS = st.fixed_dictionaries(
    {"conversation_hash": st.text(), "timestamp": TIMES, "conversation": mostly(st.lists(MESSAGES, max_size=3))}
)
SAID = st.fixed_dictionaries({"from": SPEAKERS, "value": mostly(st.text())})
SHAREGPT_ROWS = st.fixed_dictionaries({"id": st.text(), "conversations": mostly(st.lists(SAID, max_size=3))})


@given(rows=st.lists(WILDCHAT_ROWS | SHAREGPT_ROWS, min_size=1), kind=st.sampled_from(["wildchat", "sharegpt"]))
def test_any_rows_are_read_or_refused_in_one_line(
    rows: list[Any], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = write_jsonl(tmp_path_factory.getbasetemp() / "any.jsonl", rows)
    for skip_bad, limit in product((False, True), (None, 2)):
        refusal, trace = "", None
        try:
            trace = open_trace(source, format=kind, skip_bad=skip_bad, limit=limit)
        except TraceError as error:
            refusal = str(error)
        if trace is None:
            assert refusal
            assert "\n" not in refusal
            continue
        assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(trace.requests))
        assert len({request.conversation for request in trace.requests}) + trace.skipped <= len(rows)


# ---- ShareGPT ----


def shared(name: str, *messages: str) -> dict[str, Any]:
    speakers = ("human", "gpt")
    return {"id": name, "conversations": [{"from": speakers[n % 2], "value": text} for n, text in enumerate(messages)]}


TALKS = [shared("a_0", "12345678", "123456789", "1", "12345"), shared("b_0", "12345678", "else"), shared("c_0")]

SHAREGPT_FILES: dict[str, Callable[[FilePath], str]] = {
    "json": lambda folder: write_json(folder / "s.json", TALKS),
    "jsonl": lambda folder: write_jsonl(folder / "s.jsonl", TALKS),
    "parquet": lambda folder: write_parquet(folder / "s.parquet", SHAREGPT, TALKS),
}


@pytest.mark.parametrize("kind", SHAREGPT_FILES)
def test_sharegpt_is_stamped_by_the_arrival_process(kind: str, tmp_path: FilePath) -> None:
    source = SHAREGPT_FILES[kind](tmp_path)
    trace = open_trace(source, arrivals=Arrivals(birth_rate=0.5, turn_rate=0.25, seed=1))
    assert (trace.format, trace.skipped) == ("sharegpt", 1)
    assert trace.skip_reasons[0].endswith("conversations: no message of a user")
    assert {each.return_rate for each in trace.requests} == {0.25}
    a, b = ([each for each in trace.requests if each.conversation == name] for name in ("a_0", "b_0"))
    assert [list(each.context.ends) for each in a] == [[2, 5], [2, 5, 6, 8]]
    assert a[0].arrival_s < a[1].arrival_s
    assert a[0].arrival_s < b[0].arrival_s
    assert b[0].prompt == a[0].prompt
    again = open_trace(source, arrivals=Arrivals(birth_rate=0.5, turn_rate=0.25, seed=1))
    assert again.requests == trace.requests
    other = open_trace(source, arrivals=Arrivals(birth_rate=0.5, turn_rate=0.25, seed=2))
    assert [each.arrival_s for each in other.requests] != [each.arrival_s for each in trace.requests]


def test_sharegpt_roles_as_the_release_has_them(tmp_path: FilePath) -> None:
    # A system prompt and a rest of an answer come before the first question: they are its prefix. Two answers in a
    # row are one; a last question that nobody answered is a request all the same.
    speakers = ("system", "gpt", "human", "chatgpt", "bing", "user")
    talk = {"id": "x", "conversations": [{"from": speaker, "value": "1234"} for speaker in speakers]}
    trace = open_trace(write_json(tmp_path / "s.json", [talk]))
    assert [(len(each.prompt), len(each.context)) for each in trace.requests] == [(3, 5), (6, 6)]


def test_a_bad_record_of_an_array_is_named_by_its_number(tmp_path: FilePath) -> None:
    bad = {"id": "x", "conversations": [{"from": "alien", "value": "?"}]}
    source = write_json(tmp_path / "s.json", [TALKS[0], bad, TALKS[1]])
    with pytest.raises(TraceError) as error:
        open_trace(source)
    assert str(error.value) == (
        "s.json: record 2: conversations[0].from: Invalid enum value 'alien', must be system, user, assistant, tool or "
        "another API's name of one, such as human, gpt or function"
    )
    assert open_trace(source, skip_bad=True).skipped == 1


def test_half_a_surrogate_pair_in_an_array_is_read(tmp_path: FilePath) -> None:
    (tmp_path / "s.json").write_text(json.dumps([shared("x", "\ud83d", "1234")]))
    (request,) = open_trace(str(tmp_path / "s.json")).requests
    assert len(request.context) == 2


def test_sharegpt_without_an_id_is_named_by_its_place(tmp_path: FilePath) -> None:
    talks = [{"conversations": each["conversations"]} for each in TALKS[:2]]
    trace = open_trace(write_json(tmp_path / "s.json", talks))
    assert {request.conversation for request in trace.requests} == {"s.json: record 1", "s.json: record 2"}


def test_sharegpt_in_the_names_of_messages_is_read_too(tmp_path: FilePath) -> None:
    said = [{"role": "user", "content": "12345678"}, {"role": "assistant", "content": "123456789"}]
    trace = open_trace(write_json(tmp_path / "s.json", [{"id": "a_0", "conversations": said}]))
    assert (trace.format, list(trace.requests[0].context.ends)) == ("sharegpt", [2, 5])


@pytest.mark.parametrize("field", ["conversations", "conversation"])
@pytest.mark.parametrize("text", ["content", "value"])
def test_messages_without_roles_take_turns(tmp_path: FilePath, field: str, text: str) -> None:
    said = [{text: each} for each in ("12345678", "123456789", "1", "12345")]
    trace = open_trace(write_jsonl(tmp_path / "s.jsonl", [{field: said}]))
    assert [list(each.context.ends) for each in trace.requests] == [[2, 5], [2, 5, 6, 8]]
    with pytest.raises(TraceError, match=rf"^s\.jsonl:1: {field}\[1\]\.(from|role): missing: who says it$"):
        open_trace(write_jsonl(tmp_path / "s.jsonl", [{field: [{text: "1", "role": "user"}, {text: "2"}]}]))


def test_sharegpt_with_tools_has_a_call_for_each_answer(tmp_path: FilePath) -> None:
    said = [("human", "12345678"), ("function_call", "1234"), ("observation", "1" * 40), ("gpt", "done")]
    talk = {"system": "1" * 16, "tools": "1" * 8, "conversations": [{"from": who, "value": text} for who, text in said]}
    first, second = open_trace(write_json(tmp_path / "s.json", [talk])).requests
    # Tools 2, system 4, user 2 tokens; the call has 1, its result 10.
    assert (list(first.prompt.ends), list(second.prompt.ends)) == ([2, 6, 8], [2, 6, 8, 9, 19])
    assert (first.stop, second.stop) == ("tool_calls", "stop")
    assert (first.input, second.input) == ("user", "tool")
    assert second.continues(first)


# ---- LMSYS-Chat-1M ----

LMSYS = pa.schema(
    [
        *(("conversation_id", pa.string()), ("model", pa.string())),
        ("conversation", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        *(("turn", pa.int64()), ("language", pa.string()), ("openai_moderation", pa.list_(MODERATION))),
        ("redacted", pa.bool_()),
    ]
)


def test_lmsys_is_stamped_by_the_arrival_process(tmp_path: FilePath) -> None:
    said = [{"role": role, "content": "12345678"} for role in ("user", "assistant", "user", "assistant")]
    told = {"model": "vicuna-13b", "turn": 2, "language": "English", "openai_moderation": [], "redacted": False}
    rows = [{"conversation_id": name, "conversation": said} | told for name in ("a", "b")]
    for source in (
        write_parquet(tmp_path / "l.parquet", LMSYS, rows),
        write_jsonl(tmp_path / "l.jsonl", rows),
        write_json(tmp_path / "l.json", rows),
    ):
        trace = open_trace(source)
        assert trace.format == "lmsys"
        assert {request.conversation for request in trace.requests} == {"a", "b"}
        assert {request.model for request in trace.requests} == {"vicuna-13b"}
        assert sorted(len(request.prompt) for request in trace.requests) == [2, 2, 6, 6]
        assert any(note.kind == "drawn" and "seed 0" in note.text for note in trace.notes)


# ---- tokens ----


def test_tokens_are_counted_by_any_hugging_face_tokenizer(tmp_path: FilePath) -> None:
    write_demo_model(tmp_path / "model")  # its tokenizer makes one token of each byte
    talk = row("x", at(0), message("user", "été"), message("assistant", "", at(0)))
    (request,) = open_trace(write_jsonl(tmp_path / "w.jsonl", [talk]), tokenizer=str(tmp_path / "model")).requests
    assert (request.prompt_tokens, request.output_tokens) == (5, 1)  # a message costs at least one


def test_a_stated_ratio_rounds_up(tmp_path: FilePath) -> None:
    source = write_jsonl(tmp_path / "w.jsonl", [SHORT])
    assert open_trace(source, characters_per_token=3.0).requests[0].prompt_tokens == 3  # 8 / 3


def test_a_tokenizer_that_is_not_there_is_one_line(tmp_path: FilePath) -> None:
    source = write_jsonl(tmp_path / "w.jsonl", [SHORT])
    with pytest.raises(TraceError) as error:
        open_trace(source, tokenizer=str(tmp_path))
    assert str(error.value).startswith(f"tokenizer {tmp_path}: ")
    assert not str(error.value).endswith(":"), "a list of reasons is told with its reasons"
    with pytest.raises(TraceError) as error:
        open_trace(source, tokenizer=str(tmp_path / "nowhere"))
    assert str(error.value) == f"tokenizer {tmp_path / 'nowhere'}: no such folder"
    assert "\n" not in str(error.value)


# ---- what cannot be had ----


@pytest.mark.parametrize("name", ["allenai/WildChat-1M", "anon8231489123/ShareGPT_Vicuna_unfiltered"])
def test_without_a_network_and_a_file_there_is_one_clear_line(name: str) -> None:
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "eval", "trace", name]
    done = subprocess.run(command, env=offline, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"eval trace: trace {name}: no such file, and as a data set of the hub not reachable (OfflineModeIsEnabled: "
    )
    assert line.endswith("; give a local .jsonl or .parquet file in its schema")
