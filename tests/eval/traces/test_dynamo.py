"""Request traces of NVIDIA Dynamo: hashes of prefixes, sessions and the agents that started them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.live.replay.load import load_from
from eval.traces import open_trace
from tests.helpers.trace_files import refusal, said, write_lines

BEGIN_MS = 1_777_312_800_000


def ended(at_s: float, hashes: list[int], tokens: int, agent: dict[str, Any] | None = None, **asked: Any) -> Any:
    """A request that came at so many seconds, and took one."""
    came_ms = BEGIN_MS + round(1000 * at_s)
    replay = {"trace_block_size": 64, "input_length": tokens, "input_sequence_hashes": hashes}
    request = {"request_id": f"r{at_s}", "model": "m", "request_received_ms": came_ms, "output_tokens": 16} | asked
    head = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": came_ms + 1000}
    return head | {"request": {"replay": replay} | request} | ({"agent_context": agent} if agent else {})


FIRST, SECOND = (
    ended(0, [2**63 + 7, 1], 128, {"session_id": "a"}),
    ended(10, [2**63 + 7, 1, 2], 150, {"session_id": "a"}),
)


@pytest.mark.parametrize("wrapped", [False, True])
def test_blocks_times_and_sessions_are_as_logged(tmp_path: Path, wrapped: bool) -> None:
    rows = [{"timestamp": 5, "event": each} if wrapped else each for each in (FIRST, SECOND)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    first, second = trace.requests
    assert trace.format == "dynamo"
    # 150 tokens are two full blocks of 64 and a part of a third.
    assert (list(second.prompt.ends), second.prompt_tokens, second.output_tokens) == ([64, 128], 150, 16)
    assert second.prompt.common(first.prompt) == 128
    assert (second.arrival_s, second.answer_s, second.wait_s) == (10.0, 1.0, 9.0)
    assert (first.conversation, first.session, first.parent, first.model) == ("a", "a", None, "m")


def test_subagents_are_in_the_session_of_the_agent_that_started_them(tmp_path: Path) -> None:
    child = ended(3, [5], 64, {"session_id": "b", "parent_session_id": "a"})
    grandchild = ended(4, [6], 64, {"session_id": "c", "parent_session_id": "b", "session_final": True})
    tool = FIRST | {"event_type": "tool_end", "request": None, "tool": {"tool_class": "search"}}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", grandchild, FIRST, tool, child, ended(5, [7], 64)))
    said_of = [(each.conversation, each.session, each.parent, each.closes) for each in trace.requests]
    assert said_of == [
        ("a", "a", None, False),
        ("b", "a", "a", False),
        ("c", "a", "b", True),
        (None, None, None, False),
    ]
    assert said(trace, "left out") == "events that are no request: 1 tool_end"


def test_trajectories_are_the_conversations_of_a_session(tmp_path: Path) -> None:
    agent = {"session_type_id": "coding", "session_id": "run", "trajectory_id": "run:0"}
    child = agent | {"trajectory_id": "run:1", "parent_trajectory_id": "run:0"}
    rows = [ended(0, [1, 2], 128, agent), ended(2, [5], 64, child), ended(10, [1, 2, 3], 150, agent)]
    old = [{"timestamp": 5, "event": each | {"schema": "dynamo.agent.trace.v1"}} for each in rows]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *old))
    assert [(each.conversation, each.session, each.parent) for each in trace.requests] == [
        *(("run:0", "run", None), ("run:1", "run", "run:0"), ("run:0", "run", None))
    ]
    assert [each.wait_s for each in trace.requests] == [None, None, 9.0]


def test_an_agent_of_a_session_of_its_own_is_in_that_of_the_agent_that_started_it(tmp_path: Path) -> None:
    agent = {"session_id": "run", "trajectory_id": "run:0"}
    child = {"session_id": "other", "trajectory_id": "run:1"}
    started = child | {"parent_trajectory_id": "run:0"}  # told with its first request alone
    rows = [ended(0, [1], 64, agent), ended(2, [5], 64, started), ended(4, [5, 6], 128, child)]
    requests = open_trace(write_lines(tmp_path / "t.jsonl", *rows, ended(10, [1, 2], 128, agent))).requests
    assert [each.session for each in requests] == ["run"] * 4
    assert [each.session_index for each in load_from(requests).conversations] == [0, 0]


def test_payloads_alone_are_refused_with_what_the_file_holds(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST | {"event_type": "request_payload", "request": None})
    assert refusal(source).endswith("0 records skipped: events that are no request: 1 request_payload")


def test_how_an_answer_ended_is_told_where_the_agent_is(tmp_path: Path) -> None:
    calls = ended(10, [1], 64, finish_reason_metadata={"finish_reason": "tool_calls", "tool_calls": [{"id": "c"}]})
    trace = open_trace(write_lines(tmp_path / "t.jsonl", FIRST, calls))
    assert [request.stop for request in trace.requests] == [None, "tool_calls"]


def test_a_start_is_told_by_the_end_and_how_long_it_took(tmp_path: Path) -> None:
    later = ended(10, [1], 64, request_received_ms=None, total_time_ms=4000.0)
    trace = open_trace(write_lines(tmp_path / "t.jsonl", FIRST, later))
    # It ended at 11 s.
    assert (trace.requests[1].arrival_s, trace.requests[1].answer_s) == (7.0, 4.0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ended(1, [1], 200),
            "request.replay.input_sequence_hashes: 1 ids, but 200 tokens are 4 blocks of 64 (--block-size)",
        ),
        (
            ended(1, [1], 64, replay=None),
            "request.replay: missing: it has the length of the prompt and the hashes of its blocks",
        ),
        (ended(1, [1], 64, output_tokens=-5), "request.output_tokens: Expected `int` >= 0, got -5"),
        (
            ended(1, [1], 64, request_received_ms=None),
            "request.request_received_ms: missing, and so is total_time_ms: one of them",
        ),
        (
            ended(1, [1], 32, replay={"trace_block_size": 32, "input_length": 32, "input_sequence_hashes": [1]}),
            "request.replay.trace_block_size: 32, must be that of the trace, 64 tokens",
        ),
    ],
)
def test_a_bad_request_says_what_is_wrong(tmp_path: Path, row: Any, message: str) -> None:
    assert refusal(write_lines(tmp_path / "t.jsonl", FIRST, row)) == f"t.jsonl:2: {message}"


# ---- agentic Mooncake ----

HEAD = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local"}


def planned(name: str, at_ms: float, hashes: list[int], tokens: int, *waits: tuple[str, str, float]) -> dict[str, Any]:
    """A request ``play.session.number``, and what it waits for: relation, request, ms."""
    play, session, _ = name.split(".")
    told = [{"relation": kind, "request_id": on, "delay_ms": ms, "trigger": "completion"} for kind, on, ms in waits]
    head = {"request_id": name, "play_id": play, "session_id": session, "model": "m", "not_before_ms": at_ms}
    return head | {"input_length": tokens, "output_length": 9, "hash_ids": hashes, "dependencies": told}


def test_requests_of_a_play_come_when_they_did_and_name_the_agents_that_started_them(tmp_path: Path) -> None:
    rows = [
        planned("p.sub.1", 4_000, [1, 9], 128, ("spawn", "p.main.2", 100.0)),
        planned("p.main.1", 0, [1, 2], 128),
        planned("p.main.2", 3_000, [1, 2, 3], 150, ("join", "p.sub.1", 7.0), ("sequence", "p.main.1", 500.0)),
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", HEAD, *rows))
    first, second, child = trace.requests
    assert trace.format == "dynamo-agentic"
    assert [each.arrival_s for each in trace.requests] == [0.0, 3.0, 4.0]
    assert [each.wait_s for each in trace.requests] == [None, 0.5, None]
    # 150 tokens are two full blocks of 64 and a part of a third.
    assert (list(second.prompt.ends), second.prompt_tokens, second.output_tokens) == ([64, 128], 150, 9)
    assert (second.prompt.common(first.prompt), child.prompt.common(first.prompt)) == (128, 64)
    assert (first.conversation, first.session, first.parent, first.model) == ("p/main", "p", None, "m")
    assert (child.conversation, child.session, child.parent) == ("p/sub", "p", "p/main")
    assert not said(trace, "drawn")


def test_plays_share_neither_blocks_nor_sessions_and_start_as_drawn_where_all_count_from_0(tmp_path: Path) -> None:
    rows = [planned("p.main.1", 0, [1, 2], 128), planned("q.main.1", 0, [1, 2], 128)]
    one, other = (trace := open_trace(write_lines(tmp_path / "t.jsonl", HEAD, *rows))).requests
    assert {one.conversation, other.conversation} == {"p/main", "q/main"}
    assert one.prompt.common(other.prompt) == 0
    assert other.arrival_s > one.arrival_s
    assert "starts of 2 plays" in said(trace, "drawn")
    rows[1]["not_before_ms"] = 5_000
    trace = open_trace(write_lines(tmp_path / "t.jsonl", HEAD, *rows))
    assert [each.arrival_s for each in trace.requests] == [0.0, 5.0]
    assert not said(trace, "drawn")


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([planned("p.s.1", 0, [1], 64)], "t.jsonl:1: block_size: missing: the first line of a file has it"),
        ([HEAD | {"version": 3}], "t.jsonl:1: version: 3, must be 2"),
        ([HEAD | {"hash_id_scope": "global"}], "t.jsonl:1: hash_id_scope: 'global', must be 'local'"),
        ([HEAD, HEAD | {"block_size": 16}], "t.jsonl:2: block_size: 16, must be 64"),
        ([HEAD, planned("p.s.1", 0, [1], 200)], "t.jsonl:2: hash_ids: 1 ids, but 200 tokens are 4 blocks of 64"),
    ],
)
def test_a_play_without_its_head_or_its_blocks_is_refused(tmp_path: Path, rows: list[Any], error: str) -> None:
    assert error in refusal(write_lines(tmp_path / "t.jsonl", *rows))
