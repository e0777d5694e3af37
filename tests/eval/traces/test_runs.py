"""Runs of coding agents: rows of published data sets, and the .traj files of SWE-agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.traces import Trace, open_trace
from tests.helpers.openai_rows import read
from tests.helpers.trace_files import refusal, said, write_lines

# At 4 characters a token: system 100, issue 50, the first answer 10 with a call of 2 + 3, its result 20, the last 10.
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "open", "arguments": '{"path": 5}'}}]
SYSTEM = {"role": "system", "content": "s" * 400}
ISSUE = {"role": "user", "content": "u" * 200}
LOOK = {"role": "assistant", "content": "a" * 40, "tool_calls": CALLS}
RESULT = {"role": "tool", "content": "o" * 80}
DONE = {"role": "assistant", "content": "b" * 40, "tool_calls": None}
TURNS = [(150, 15), (150 + 15 + 20, 10)]


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return [(request.prompt_tokens, request.output_tokens) for request in trace.requests]


def nebius() -> dict[str, Any]:
    def said_by(role: str, text: str | None, prompt: str | None = None) -> dict[str, Any]:
        return {"cutoff_date": None, "mask": role == "ai", "role": role, "system_prompt": prompt, "text": text}

    messages = [said_by("system", None, "s" * 400), said_by("user", "u" * 200), said_by("ai", "a" * 60)]
    messages += [said_by("user", "o" * 80), said_by("ai", "b" * 40)]
    row = {"instance_id": "a__b-1", "model_name": "swe-agent-llama-70b", "target": False, "trajectory": messages}
    return row | {"exit_status": "submitted", "generated_patch": "", "eval_logs": ""}


def openhands(**fields: Any) -> dict[str, Any]:
    empty = {"function_call": None, "name": None, "tool_call_id": None, "tool_calls": None}
    return {"instance_id": "a__b-1", "resolved": True} | {
        name: [empty | each for each in value] if name != "tools" else value for name, value in fields.items()
    }


@pytest.mark.parametrize("table", [True, False])
def test_a_row_of_an_agents_data_set_is_a_conversation_of_as_many_calls_as_answers(tmp_path: Path, table: bool) -> None:
    tools = [{"type": "function", "function": {"name": "open", "parameters": {"path": "int"}}}]
    messages = [SYSTEM, ISSUE, LOOK, RESULT, DONE]
    for row in (nebius(), *(openhands(**{name: messages}) for name in ("messages", "trajectory", "history"))):
        source = str(tmp_path / "t.parquet") if table else write_lines(tmp_path / "t.jsonl", row, row)
        if table:
            pq.write_table(pa.Table.from_pylist([row, row]), source)
        trace = open_trace(source)
        assert lengths(trace) == [TURNS[0], TURNS[0], TURNS[1], TURNS[1]]
        # Two runs of one issue: calls of their own, that begin with the same prompt.
        assert len({request.conversation for request in trace.requests}) == 2
        assert len({request.prompt.ids[-1] for request in trace.requests}) == 2
    assert read(tmp_path, nebius()).requests[0].model == "swe-agent-llama-70b"
    with_tools = read(tmp_path, openhands(trajectory=messages, tools=tools))
    assert with_tools.requests[0].prompt_tokens == 150 + -(-len(json.dumps(tools, separators=(",", ":"))) // 4)


def test_messages_as_a_text_of_json_are_read_however_they_are_indented(tmp_path: Path) -> None:
    for indent in (None, 2):
        row = {"messages": json.dumps([SYSTEM, ISSUE, LOOK, RESULT, DONE], indent=indent), "traj_id": "a.1"}
        assert lengths(read(tmp_path, row)) == TURNS


def test_a_run_that_ended_behind_a_result_has_no_call_for_it(tmp_path: Path) -> None:
    cut = [SYSTEM, ISSUE, LOOK, RESULT]
    for row in (openhands(messages=cut), openhands(trajectory=cut), {"history": cut}):
        assert lengths(read(tmp_path, row)) == TURNS[:1]


def test_a_history_beside_what_was_asked_is_no_conversation(tmp_path: Path) -> None:
    row = {"model": "m", "prompt": "p" * 40, "history": [ISSUE, DONE], "response": "r" * 20}
    assert lengths(read(tmp_path, row)) == [(10, 5)]


def history(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"agent": "main", "message_type": "", "thought": "t" * 99, "action": "ls"} | each for each in messages]


def traj(*, asked: bool = True) -> dict[str, Any]:
    """As SWE-agent 1.1 writes it; without ``query``, as earlier releases do."""
    whole = history(SYSTEM, ISSUE, LOOK, RESULT, DONE)
    step = {"action": "ls", "observation": "o" * 80, "response": "a" * 40, "state": {}, "thought": ""}
    steps = [step | {"execution_time": 0.5, "query": whole[:2]}]
    steps += [step | {"execution_time": 9.0, "query": whole[:4], "response": "b" * 40}]
    # It ran out of money: nobody was asked.
    steps += [step | {"execution_time": 0.0, "query": [{}], "response": "Exit due to cost limit"}]
    if not asked:
        steps = [{name: value for name, value in each.items() if name != "query"} for each in steps]
    return {"trajectory": steps, "history": whole, "info": {}, "replay_config": "{}", "environment": "main"}


def test_each_step_of_a_traj_is_a_call_and_waits_as_long_as_the_tool_ran(tmp_path: Path) -> None:
    (tmp_path / "a__b-1.traj").write_text(json.dumps(traj(), indent=2))
    trace = open_trace(str(tmp_path / "a__b-1.traj"))
    assert lengths(trace) == TURNS
    first, second = trace.requests
    assert second.continues(first)
    assert (first.session, first.stop, second.stop, second.input) == ("a__b-1", "tool_calls", "stop", "tool")
    assert (first.wait_s, second.wait_s) == (None, 0.5)


def test_results_that_the_agent_cut_are_not_in_the_later_prompts(tmp_path: Path) -> None:
    run = traj()
    shown = {"role": "tool", "content": "Old output: 9 lines"}  # 5 tokens
    asked = history(SYSTEM, ISSUE, LOOK, shown, DONE, RESULT)
    run["trajectory"].insert(2, run["trajectory"][1] | {"query": asked, "response": "c" * 40})
    first, second, third = read(tmp_path, run).requests
    assert (second.prompt_tokens, third.prompt_tokens) == (185, 150 + 15 + 5 + 10 + 20)
    assert third.prompt.common(second.context) == len(first.context) == 165
    # The last answer is not in the history: it is the text that the step has.
    assert third.output_tokens == 10


def test_a_run_without_queries_is_its_history_and_a_demonstration_is_part_of_the_first_prompt(tmp_path: Path) -> None:
    assert lengths(read(tmp_path, traj(asked=False))) == TURNS
    demo = [each | {"is_demo": True} for each in (ISSUE, DONE)]
    assert lengths(read(tmp_path, {"history": history(SYSTEM, *demo, ISSUE, LOOK)})) == [(150 + 60, 15)]


def test_each_attempt_is_a_session_and_a_folder_of_runs_leaves_other_files_out(tmp_path: Path) -> None:
    retried = traj() | {"attempts": [traj(), traj(asked=False)]}
    for name, run in (("a", traj()), ("b", retried)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.traj").write_text(json.dumps(run, indent=2))
        (tmp_path / name / f"{name}.config.yaml").write_text("agent: {}\n")
    (tmp_path / "preds.json").write_text(json.dumps({"a": {"model_patch": ""}}))
    trace = open_trace(str(tmp_path))
    assert {request.conversation for request in trace.requests} == {"a/a", "b/b/1", "b/b/2"}
    assert sorted(lengths(trace)) == sorted(TURNS * 3)
    assert "preds.json" in said(trace, "left out")


def test_a_message_of_a_run_that_no_model_could_read_is_named(tmp_path: Path) -> None:
    run = traj(asked=False) | {"history": history(SYSTEM, ISSUE, {"role": "alien", "content": "x"})}
    assert refusal(write_lines(tmp_path / "t.traj", run)).startswith("t.traj:1: messages[2].role: 'alien' is no role")
