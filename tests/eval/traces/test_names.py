"""Folders whose files have the same ids: parts of one log, or logs, or chats that have nothing in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.traces import Trace, open_trace
from tests.helpers.trace_files import said, write_lines

APART = "1 ids of {} are in files that overlap in time: logs with ids of their own"
ONE = "1 ids of {} go on in a file that begins when another has ended: one log"


def mooncake(path: Path, *times_s: float) -> None:
    row = {"input_length": 1000, "output_length": 5, "hash_ids": [1, 2], "session": 1}
    write_lines(path.with_suffix(".jsonl"), *(row | {"timestamp": 1000 * time_s} for time_s in times_s))


def bailian(path: Path, *times_s: float) -> None:
    row = {"chat_id": 1, "parent_chat_id": 1, "input_length": 40, "output_length": 5, "hash_ids": [1, 2]}
    write_lines(path.with_suffix(".jsonl"), *(row | {"timestamp": time_s} for time_s in times_s))


def burstgpt(path: Path, *times_s: float) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = [f"{time_s},1,3.1,m,400,18,418,Conversation log" for time_s in times_s]
    path.with_suffix(".csv").write_text("\n".join([head, *rows]))


def conversations(trace: Trace) -> list[str | None]:
    return [request.conversation for request in trace.requests]


KINDS = [(mooncake, "sessions", "1/0", "1#2/0"), (bailian, "chats", "1", "1#2"), (burstgpt, "sessions", "1", "1#2")]
STAMPED = pytest.mark.parametrize(("write", "what", "name", "other"), KINDS)


@STAMPED
def test_files_that_overlap_in_time_have_sessions_of_their_own(
    tmp_path: Path, write: Any, what: str, name: str, other: str
) -> None:
    write(tmp_path / "a", 0, 10, 20)
    write(tmp_path / "b", 5, 15, 25)
    trace = open_trace(str(tmp_path))
    assert conversations(trace) == [name, other] * 3
    assert APART.format(what) in said(trace, "assumed")


@STAMPED
def test_a_session_goes_on_in_the_next_file_of_a_log_that_was_split_by_time(
    tmp_path: Path, write: Any, what: str, name: str, other: str
) -> None:
    # The names are not in order of time, and the first row of the second hour is a little late.
    write(tmp_path / "hour10", 3599, 5000, 7200)
    write(tmp_path / "hour9", 0, 10, 3600)
    trace = open_trace(str(tmp_path))
    assert conversations(trace) == [name] * 6
    assert ONE.format(what) in said(trace, "assumed")
    assert other not in said(trace, "assumed")


def test_equal_ids_of_blocks_in_several_files_are_taken_for_one_block_and_that_is_said(tmp_path: Path) -> None:
    mooncake(tmp_path / "a", 0)
    alone = open_trace(str(tmp_path))
    mooncake(tmp_path / "b", 5)
    both = open_trace(str(tmp_path))
    assert both.requests[0].prompt.common(both.requests[1].prompt) == 512
    note = "equal ids of blocks in different files are the same block"
    assert note in said(both, "assumed")
    assert note not in said(alone, "assumed")


@pytest.mark.parametrize("write", [mooncake, bailian])
def test_equal_ids_of_blocks_in_files_that_overlap_in_time_are_other_blocks(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "conversation", 0, 20)
    write(tmp_path / "toolagent", 5, 25)
    # This one begins when the first has ended, 1 % of its 20 s before at the earliest: it goes on with its blocks.
    write(tmp_path / "conversation_2", 20, 30)
    trace = open_trace(str(tmp_path))
    first, other, *_, last = (request.prompt for request in trace.requests)
    assert len(trace.requests) == 6
    assert (first.common(other), first.common(last)) == (0, len(first))
    note = "equal ids are the same block within each, other blocks in another, unless they are hashes"
    assert f"2 logs that overlap in time count their blocks from 0 each: {note}" in said(trace, "assumed")


def test_hashes_of_blocks_are_the_same_block_in_every_file(tmp_path: Path) -> None:
    # Two servers write at the same time; both hash the first of two blocks of 512 tokens alike.
    row = {"input_length": 1024, "output_length": 5}
    for name, time in (("a", 0), ("b", 5)):
        rows = [row | {"timestamp": time + 10 * n, "hash_ids": [1 << 60, f"{name}{n}"]} for n in range(2)]
        write_lines(tmp_path / f"{name}.jsonl", *rows)
    one, other, *_ = (request.prompt for request in open_trace(str(tmp_path)).requests)
    assert one.common(other) == 512


@pytest.mark.parametrize(
    ("field", "name", "said_in", "text"),
    [("conversations", "id", "from", "value"), ("conversation", "conversation_id", "role", "content")],
)
def test_every_row_that_is_a_whole_conversation_is_one_whatever_its_id(
    tmp_path: Path, field: str, name: str, said_in: str, text: str
) -> None:
    for shard in range(3):
        said_there = [{said_in: "user", text: f"shard {shard}"}, {said_in: "assistant", text: "yes"}] * 2
        rows = [{name: str(number), "model": "m", field: said_there} for number in range(2)]
        (tmp_path / f"p{shard}.json").write_text(json.dumps(rows))
    trace = open_trace(str(tmp_path))
    assert len(trace.requests) == 12
    assert set(conversations(trace)) == {"0", "1", "0#2", "1#2", "0#3", "1#3"}
    assert said(trace, "assumed") == "4 rows have the id of an earlier row: conversations of their own"
