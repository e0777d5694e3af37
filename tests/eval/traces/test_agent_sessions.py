"""Sessions of agents as kv-cache-tester publishes them: subagents, their times, ids that are a session's own."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eval.traces import Arrivals, Trace, open_trace
from eval.traces.facts import facts
from tests.helpers.paths import SHARED_DATA
from tests.helpers.trace_files import refusal, said, write_lines


def call(t: float, blocks: int, stop: str = "tool_use", first: int = 1, **more: Any) -> dict[str, Any]:
    tokens = {"in": 64 * blocks + 3, "out": 10, "hash_ids": list(range(first, first + blocks))}
    told = {"input_types": ["text"] if t == 0 else ["tool_result"], "output_types": ["text"], "stop": stop}
    return {"t": t, "type": "n", "model": "opus"} | tokens | told | more


def subagent(t: float, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"agent_id": "agent_001", "subagent_type": "Explore", "status": "completed", "models": ["haiku"]}
    return {"t": t, "type": "subagent", "requests": list(requests), "tool_tokens": 0} | told | more


def session(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"id": name, "models": ["opus"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 9}
    return head | {"requests": list(requests)} | more


def read(tmp_path: Path, *sessions: dict[str, Any], **options: Any) -> Trace:
    return open_trace(write_lines(tmp_path / "t.jsonl", *sessions), **options)


def test_calls_of_a_session_keep_their_times_lengths_and_ends(tmp_path: Path) -> None:
    trace = read(tmp_path, session("a", call(0, 3, api_time=2.5, think_time=0.0), call(10, 5, "end_turn")))
    first, second = trace.requests
    assert (trace.format, first.arrival_s, second.arrival_s) == ("agent-sessions", 0.0, 10.0)
    assert (first.prompt_tokens, list(first.prompt.ends)) == (195, [64, 128, 192])
    assert second.prompt.common(first.prompt) == 192
    assert (first.stop, second.stop) == ("tool_calls", "stop")
    assert (first.input, second.input) == ("user", "tool")
    assert (first.session, first.parent, first.model) == ("a", None, "opus")
    # The answer ended at 2.5 s, so the tool took 7.5 s.
    assert (first.answer_s, first.wait_s, second.wait_s) == (2.5, None, 7.5)


def test_a_recorded_think_time_is_the_wait(tmp_path: Path) -> None:
    trace = read(tmp_path, session("a", call(0, 3, api_time=2.5), call(10, 5, think_time=7.0)))
    assert trace.requests[1].wait_s == 7.0


def test_subagents_run_beside_each_other_until_the_call_that_ran_them_ends(tmp_path: Path) -> None:
    # Both tools ended at 60 s; one had lasted 50 s, the other 30: they began at 10 and at 30.
    trace = read(
        tmp_path,
        session(
            "a",
            call(0, 3),
            subagent(60, call(0, 2, first=50), call(20, 4, "end_turn", first=50), duration_ms=50_000),
            subagent(60, call(0, 2, first=80), call(5, 3, "end_turn", first=80), duration_ms=30_000),
            call(61, 6),
        ),
    )
    told = [(request.conversation, round(request.arrival_s, 6)) for request in trace.requests]
    assert told == [("a/0", 0), ("a/1", 10), ("a/1", 30), ("a/2", 30), ("a/2", 35), ("a/0", 61)]
    assert [request.parent for request in trace.requests] == [None, "a/0", "a/0", "a/0", "a/0", None]
    assert {request.session for request in trace.requests} == {"a"}
    known = facts(trace.requests)
    assert (known.conversations, known.subagents, known.subagent_requests) == (3, 2, 4)


def test_times_of_a_subagent_may_count_from_the_session(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        session("a", call(0, 3), subagent(60, call(10, 2, first=50), call(20, 4, first=50), duration_ms=50_000)),
    )
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0, 10, 20])


def test_a_subagent_without_a_duration_lasts_until_its_last_call(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        session("a", call(0, 3), subagent(60, call(0, 2, first=50), call(20, 4, first=50), duration_ms=None)),
    )
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0, 40, 60])


@pytest.mark.parametrize("first_s", [0, 60])
def test_a_subagent_in_the_background_starts_when_the_call_that_ran_it_ends(tmp_path: Path, first_s: float) -> None:
    inner = call(first_s, 2, first=50), call(first_s + 20, 4, first=50)
    background = subagent(60, *inner, duration_ms=None) | {"status": "async_launched"}
    trace = read(tmp_path, session("a", call(0, 3), background, call(61, 6)))
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0, 60, 61, 80])


def test_subagents_may_have_subagents(tmp_path: Path) -> None:
    inner = subagent(8, call(0, 2, first=90), duration_ms=4_000)
    trace = read(tmp_path, session("a", call(0, 3), subagent(60, call(0, 2, first=50), inner, duration_ms=50_000)))
    assert [(request.conversation, request.parent, round(request.arrival_s, 6)) for request in trace.requests] == [
        *(("a/0", None, 0), ("a/1", "a/0", 10), ("a/2", "a/1", 14))
    ]


def test_local_ids_are_a_sessions_own_and_global_ones_are_shared(tmp_path: Path) -> None:
    for scope, shared in (("local", 0), ("global", 192)):
        rows = [session(name, call(0, 3), hash_id_scope=scope) for name in ("a", "b")]
        trace = read(tmp_path, *rows)
        one, other = trace.requests
        assert other.prompt.common(one.prompt) == shared
        assert ("sessions share nothing" in said(trace, "assumed")) is (scope == "local")
    assert refusal(write_lines(tmp_path / "u.jsonl", session("a", call(0, 3), hash_id_scope="new"))) == (
        "u.jsonl:1: hash_id_scope: 'new', must be local or global"
    )


def test_starts_are_drawn_from_a_stated_seed(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", *(session(str(n), call(0, 3)) for n in range(1_000)))
    trace = open_trace(source)
    # 355 in 12 hours, as the sessions of one source had them.
    assert trace.requests[-1].arrival_s / 1_000 == pytest.approx(12 * 3600 / 355, rel=0.15)
    assert "starts of 1,000 sessions: 29.58 an hour, seed 0" in said(trace, "drawn")
    assert open_trace(source).requests == trace.requests
    other = open_trace(source, arrivals=Arrivals(seed=1))
    assert [each.arrival_s for each in other.requests] != [each.arrival_s for each in trace.requests]
    faster = open_trace(source, arrivals=Arrivals(birth_rate=1.0))
    assert faster.requests[-1].arrival_s / 1_000 == pytest.approx(1.0, rel=0.15)


def test_larger_blocks_keep_every_prefix(tmp_path: Path) -> None:
    rows = session("a", call(0, 9), call(5, 12))
    small, large = read(tmp_path, rows), read(tmp_path, rows, block_size=256)
    # 9 blocks of 64 are 2 of 256; 12 are 3.
    assert [list(request.prompt.ends) for request in large.requests] == [[256, 512], [256, 512, 768]]
    assert large.requests[1].prompt.common(large.requests[0].prompt) == 512
    assert small.requests[1].prompt.common(small.requests[0].prompt) == 576
    source = write_lines(tmp_path / "t.jsonl", rows)
    assert refusal(source, block_size=100) == (
        "t.jsonl:1: block_size: 64 tokens; --block-size 100 must be a multiple of it"
    )


def test_a_folder_holds_one_file_a_session_pretty_printed_or_not(tmp_path: Path) -> None:
    for name, indent in (("a", None), ("b", 2)):
        (tmp_path / f"{name}.json").write_text(json.dumps(session(name, call(0, 3), call(9, 4)), indent=indent))
    (tmp_path / "cache_hit_rates.txt").write_text("trace  rate\n")
    trace = open_trace(str(tmp_path))
    assert sorted({request.session for request in trace.requests if request.session}) == ["a", "b"]
    left = "1 of 3 files of the folder, which is read as agent-sessions: cache_hit_rates.txt:1: not JSON: "
    assert said(trace, "left out").startswith(left)


def test_two_sessions_of_one_name_stay_two(tmp_path: Path) -> None:
    trace = read(tmp_path, session("a", call(0, 3)), session("a", call(0, 3)))
    assert sorted(str(request.session) for request in trace.requests) == ["a", "a#2"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (session("x", {"t": 0, "type": "n", "hash_ids": []}), "requests.in: missing: the tokens of a call's input"),
        (session("x", call(-1, 2)), "requests[0].t: Expected `float` >= 0.0, got -1"),
        (session("x", call(0, 2) | {"in": "many"}), "requests[0].in: Expected `int | null`, got `str` 'many'"),
        (session("x"), "requests: none"),
        (session("x", call(0, 2)) | {"block_size": 0}, "block_size: Expected `int` >= 1, got 0"),
    ],
)
def test_a_bad_session_is_named_with_its_field(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    source = write_lines(tmp_path / "t.jsonl", session("a", call(0, 3)), bad)
    trace = open_trace(source, skip_bad=True)
    assert trace.skip_reasons == (f"t.jsonl:2: {message}",)
    assert len(trace.requests) == 1


NATIVE = SHARED_DATA / "claude_code_native"


@pytest.mark.skipif(not NATIVE.exists(), reason=f"{NATIVE} is not there")
def test_the_real_sessions() -> None:
    trace = open_trace(str(NATIVE))
    known = facts(trace.requests)
    assert (trace.format, known.requests, known.conversations, known.subagents) == ("agent-sessions", 23, 3, 0)
    assert (known.stops["tool_calls"], known.stops["stop"]) == (21, 1)
    by_session: dict[str | None, list[int]] = {}
    for request in trace.requests:
        by_session.setdefault(request.session, []).append(request.prompt_tokens)
    assert sum(by_session["trace_0101"]) == 707_920  # as its `totals` have it
    assert all(before <= after for tokens in by_session.values() for before, after in pairwise(tokens))
