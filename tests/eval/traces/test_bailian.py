"""Bailian's traces: seconds, chats that continue each other, ids of the content of 16 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from tests.helpers.trace_files import refusal, said, write_lines


def row(chat: int, parent: int, at_s: float, blocks: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    lengths = {"input_length": tokens, "output_length": 14}
    told = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "type": "text", "turn": 1}
    return told | lengths | {"hash_ids": blocks} | more


def test_seconds_are_seconds_and_turns_are_conversations(tmp_path: Path) -> None:
    # 33 tokens are two full blocks of 16; the next prompt begins with them.
    rows = [row(0, -1, 61.114, [1, 2, 3], 33), row(1, 0, 181.114, [1, 2, 4, 5, 6], 80, type="search")]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, second = trace.requests
    assert trace.format == "bailian"
    assert (first.arrival_s, round(second.arrival_s, 6)) == (0.0, 120.0)
    assert "times (in seconds)" in said(trace, "real")
    assert list(second.prompt.ends) == [16, 32, 48, 64, 80]
    assert second.prompt.common(first.prompt) == 32
    assert first.conversation == second.conversation == "0"
    assert [request.category for request in trace.requests] == ["text", "search"]
    assert (first.stop, first.parent, first.input) == (None, None, "user")


def test_equal_blocks_behind_other_prefixes_are_not_shared(tmp_path: Path) -> None:
    rows = [row(0, -1, 0, [1, 2], 32), row(1, -1, 1, [2, 1], 32), row(2, -1, 2, [1, 2], 32)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, other, again = (request.prompt for request in trace.requests)
    assert (first.common(other), first.common(again)) == (0, 32)
    assert said(trace, "chained").startswith("ids stand for the content of blocks (2 stood behind a second prefix)")


def test_a_branch_is_a_conversation_and_so_is_what_continues_a_missing_one(tmp_path: Path) -> None:
    rows = [
        *(row(0, -1, 0, [1], 16), row(1, 0, 1, [1, 2], 32), row(2, 0, 2, [1, 3], 32), row(3, 2, 3, [1, 3, 4], 48)),
        row(9, 8, 4, [5], 16),
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.conversation for request in trace.requests] == ["0", "0", "2", "2", "9"]
    assert "1 requests branch off" in said(trace, "assumed")
    assert "1 requests continue a request that is not in the file" in said(trace, "assumed")


def test_a_chat_id_that_begins_twice_is_two_conversations(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", row(1, -1, 0, [1], 16), row(1, -1, 5, [1], 16)))
    assert [request.conversation for request in trace.requests] == ["1", "1#2"]
    assert "1 rows have the id of an earlier row: conversations of their own" in said(trace, "assumed")


def test_rows_out_of_order_find_their_parents(tmp_path: Path) -> None:
    rows = [row(1, 0, 5, [1, 2], 32), row(0, -1, 0, [1], 16)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [(request.conversation, request.arrival_s) for request in trace.requests] == [("0", 0.0), ("0", 5.0)]
    assert said(trace, "sorted") == "1 of 2 rows came before the row above them: put in order of arrival"


def test_text_ids_and_missing_blocks_are_read_and_said(tmp_path: Path) -> None:
    rows = [row(0, -1, 0, [1], 80), row(1, -1, 1, [1, 2, 3, 4], 20)]
    texts = [each | {"chat_id": f"c{each['chat_id']}", "parent_chat_id": "-1"} for each in rows]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *texts))
    assert [len(request.prompt) for request in trace.requests] == [16, 16]
    assert "2 rows have more or fewer ids than blocks" in said(trace, "assumed")


def test_rows_without_ids_of_blocks_share_nothing_and_their_times_are_seconds(tmp_path: Path) -> None:
    rows = [row(0, -1, 0, [], 80), row(1, -1, 7.5, [], 80)]
    for each in rows:
        del each["hash_ids"]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [(each.arrival_s, each.prompt_tokens, len(each.prompt)) for each in trace.requests] == [
        (0.0, 80, 0),
        (7.5, 80, 0),
    ]
    assert "2 rows have more or fewer ids than blocks" in said(trace, "assumed")


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", row(0, -1, 0, [1], 16), row(1, 0, "soon", [1], 16))  # type: ignore[arg-type]
    assert refusal(source) == "t.jsonl:2: timestamp: Expected `float`, got `str` 'soon'"


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("µs", 10**6), ("ns", 10**9)])
def test_times_since_1970_may_be_in_any_unit_and_another_than_s_is_said(
    tmp_path: Path, unit: str, per_second: int
) -> None:
    rows = [row(0, -1, 1_760_000_000 * per_second, [1], 16), row(1, 0, 1_760_000_060 * per_second, [1, 2], 32)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [each.arrival_s for each in trace.requests] == [0.0, 60.0]
    told = f"times are in {unit} since 1970, as their size tells; in this format they are in s"
    assert (told in said(trace, "assumed")) == (unit != "s")


def test_blocks_of_another_size_are_told_from_the_lengths(tmp_path: Path) -> None:
    # 130 tokens are two blocks of 64 and a part of a third; 260 are four and a part.
    rows = [row(0, -1, 0, [1, 2, 3], 130), row(1, 0, 5, [1, 2, 4, 5, 6], 260)]
    source = write_lines(tmp_path / "t.jsonl", *rows)
    trace = open_trace(source)
    assert [len(each.prompt) for each in trace.requests] == [128, 256]
    assert said(trace, "assumed") == "blocks of 64 tokens, told from the lengths (--block-size)"
    assert [len(each.prompt) for each in open_trace(source, block_size=16).requests] == [48, 80]


def test_of_rows_of_one_moment_the_earlier_turn_comes_first(tmp_path: Path) -> None:
    rows = [row(1, 0, 60, [1, 2], 32, turn=2), row(0, -1, 60, [1], 16)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [(each.conversation, each.prompt_tokens) for each in trace.requests] == [("0", 16), ("0", 32)]


def test_a_later_turn_without_a_parent_continues_the_one_with_its_id(tmp_path: Path) -> None:
    rows = [row(1, -1, 0, [1], 16), row(1, -1, 5, [1, 2], 32, turn=2), row(2, -1, 6, [1], 16, turn=2)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [each.conversation for each in trace.requests] == ["1", "1", "2"]
