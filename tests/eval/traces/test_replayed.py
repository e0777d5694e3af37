"""Traces of sessions as they are sent to live servers: prompts have the lengths and the shared tokens of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.live.replay.load import load_from
from eval.traces import open_trace
from tests.helpers.trace_files import write_lines


def test_a_session_of_blocks_is_sent_with_the_tokens_of_the_trace(tmp_path: Path) -> None:
    told = {"output_length": 30, "session": 1, "agent": 0}
    rows = [
        told | {"timestamp": 0, "input_length": 1200, "hash_ids": [1, 2, 3]},
        told | {"timestamp": 900, "input_length": 1700, "hash_ids": [1, 2, 4, 5]},
    ]
    (conversation,) = load_from(open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests).conversations
    # Whole prompts: the answer of the first is not in the trace, so it cannot be continued.
    assert [turn.whole for turn in conversation.turns] == [True, True]
    assert [sum(each.tokens for each in turn.segments) for turn in conversation.turns] == [1200, 1700]


@pytest.mark.parametrize(
    ("source", "whole"),
    [
        ("batch:sessions=20,jobs_count=1", {False}),
        ("compaction:sessions=4,limit_tokens=30000", {False, True}),
        ("rewind", {False, True}),
    ],
)
def test_histories_that_were_replaced_or_left_are_sent_whole(source: str, whole: set[bool]) -> None:
    load = load_from(open_trace(source, limit=800).requests)
    assert {turn.whole for conversation in load.conversations for turn in conversation.turns} == whole
