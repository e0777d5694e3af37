"""Logs of Codex: its rollouts."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from tests.helpers.rollouts import SECRET, counted, line, message, rollout
from tests.helpers.trace_files import refusal, said, write_lines


def test_codex_calls_end_where_their_tokens_are_counted(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "rollout-2026-02-19T02-00-00-thread.jsonl", *rollout()))
    first, second = trace.requests
    assert trace.format == "codex"
    assert (first.prompt_tokens, first.output_tokens) == (12_880, 328)
    assert (second.prompt_tokens, second.continues(first)) == (13_320, True)
    assert (first.stop, second.stop, second.input, first.model) == ("tool_calls", "stop", "tool", "gpt-5.2")
    # The call is asked at 1 s and answered at 5; its tool is done at 9.
    assert (first.answer_s, second.arrival_s, second.wait_s) == (4.0, 8.0, 4.0)
    assert first.conversation == "thread/0"
    kept = repr([astuple(request) for request in trace.requests])
    assert "alice" not in kept


def test_codex_subagents_name_the_session_that_started_them(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "thread", "depth": 1}}}
    write_lines(tmp_path / "rollout-1.jsonl", *rollout())
    write_lines(tmp_path / "rollout-2.jsonl", *rollout("child", source=source))
    trace = open_trace(str(tmp_path))
    assert {(r.session, r.conversation, r.parent) for r in trace.requests} == {
        *{("thread", "thread/0", None), ("thread", "thread/child", "thread/0")}
    }


def test_a_subagent_of_a_subagent_is_in_the_session_of_the_first(tmp_path: Path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "child", "depth": 2}}}
    write_lines(tmp_path / "rollout-1.jsonl", *rollout())
    write_lines(tmp_path / "rollout-2.jsonl", *rollout("child", parent_thread_id="thread", thread_source="subagent"))
    write_lines(tmp_path / "rollout-3.jsonl", *rollout("grandchild", source=source))
    trace = open_trace(str(tmp_path))
    assert {(r.session, r.conversation, r.parent) for r in trace.requests} == {
        ("thread", "thread/0", None),
        ("thread", "thread/child", "thread/0"),
        ("thread", "thread/grandchild", "thread/child"),
    }


def test_a_fork_of_codex_does_not_repeat_the_calls_of_the_session_that_it_goes_on_with(tmp_path: Path) -> None:
    again = [each | {"timestamp": line(100, "")["timestamp"]} for each in rollout()]  # written anew, with its times
    more = [message(130, "user", "go on"), message(133, "assistant", "yes"), counted(134, 40_000, 13_400, 13_300, 9)]
    write_lines(tmp_path / "rollout-1.jsonl", *rollout())
    write_lines(tmp_path / "rollout-2.jsonl", line(99, "session_meta", id="fork"), *again, *more)
    write_lines(tmp_path / "rollout-3.jsonl", *rollout("other"))
    trace = open_trace(str(tmp_path))
    by_session = {name: [r for r in trace.requests if r.session == name] for name in ("thread", "fork", "other")}
    assert {name: len(found) for name, found in by_session.items()} == {"thread": 2, "fork": 1, "other": 2}
    assert by_session["fork"][0].continues(by_session["thread"][1]), "what it repeats is in the cache"
    assert by_session["other"][0].prompt.common(by_session["thread"][0].prompt) < 12_880


def _forked(name: str, *, meta: bool) -> list[dict[str, Any]]:
    """A subagent with the history of the thread: its messages and counts, and neither calls of tools nor thoughts."""
    begin = 20.0 + (name == "two")
    kept = [each for each in rollout() if each["type"] == "event_msg" or each["payload"].get("type") == "message"]
    kept = [*rollout()[: int(meta)], *kept]
    return [
        line(begin, "session_meta", id=name, forked_from_id="thread", parent_thread_id="thread"),
        *(each | {"timestamp": line(begin, "")["timestamp"]} for each in kept),
        *(line(begin, "turn_context", model="gpt-5.2"), message(21, "user", f"task of {name}")),
        line(25, "response_item", type="function_call", name="shell", arguments="{}", call_id=name),
        counted(25.1, 38_000, 11_000, 9_600, 420),
        *(
            line(28, "response_item", type="function_call_output", call_id=name, output="r"),
            message(30, "assistant", "done"),
        ),
        counted(30.1, 50_000, 11_500, 11_000, 80),
    ]


@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("files", ["123", "321"])
def test_the_history_of_a_forked_subagent_is_no_call_of_its_own(tmp_path: Path, files: str, meta: bool) -> None:
    sessions = (rollout(), _forked("one", meta=meta), _forked("two", meta=meta))
    for number, lines in zip(files, sessions, strict=True):
        write_lines(tmp_path / f"rollout-{number}.jsonl", *lines)
    trace = open_trace(str(tmp_path))
    calls = [(each.conversation, each.prompt_tokens, each.output_tokens, each.model) for each in trace.requests]
    subagents = ("thread/one", "thread/two")
    assert calls == [
        *(("thread/0", 12_880, 328, "gpt-5.2"), ("thread/0", 13_320, 52, "gpt-5.2")),
        *((name, 11_000, 420, "gpt-5.2") for name in subagents),
        *((name, 11_500, 80, "gpt-5.2") for name in subagents),
    ]
    assert [each.arrival_s for each in trace.requests[2:]] == [20.0, 20.0, 27.0, 27.0]
    one, two = trace.requests[2:4]
    assert two.prompt.common(one.prompt) == 9_600, "what the provider had cached of both"


def test_the_count_that_a_fork_begins_with_is_of_no_call_in_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollout-1.jsonl", *rollout())
    head, *kept = _forked("one", meta=False)
    own = kept[kept.index(message(21, "user", "task of one")) :]
    write_lines(tmp_path / "rollout-2.jsonl", head, own[0], counted(22, 26_580, 13_320, 13_200, 52), *own[1:])
    calls = [(each.prompt_tokens, each.output_tokens) for each in open_trace(str(tmp_path)).requests]
    assert calls == [(12_880, 328), (13_320, 52), (11_000, 420), (11_500, 80)]


@pytest.mark.parametrize("meta", [True, False])
def test_what_a_fork_repeats_of_a_session_that_is_not_there_is_its_history(tmp_path: Path, meta: bool) -> None:
    again = [each | {"timestamp": line(100, "")["timestamp"]} for each in rollout()][1 - meta :]
    more = [message(130, "user", "go on"), message(133, "assistant", "yes"), counted(134, 40_000, 13_400, 13_300, 9)]
    head = line(100, "session_meta", id="fork", forked_from_id="thread")
    write_lines(tmp_path / "rollout-1.jsonl", *_forked("one", meta=meta))
    write_lines(tmp_path / "rollout-2.jsonl", head, *again, *more)
    trace = open_trace(str(tmp_path))
    calls = [(each.conversation, each.prompt_tokens, each.arrival_s) for each in trace.requests]
    # The user of the fork asks at 130 s, that of the subagent at 21.
    assert calls == [("thread/one", 11_000, 0.0), ("thread/one", 11_500, 7.0), ("fork/0", 13_400, 109.0)]
    assert "calls are repeated in a fork of a session that is not in the trace" in said(trace, "rebuilt")


def test_a_fork_without_the_head_of_the_session_that_it_repeats_has_no_calls_of_it(tmp_path: Path) -> None:
    more = [message(30, "user", "go on"), message(33, "assistant", "yes"), counted(34, 40_000, 13_400, 13_300, 9)]
    # Behind the fork both come to the same sum of tokens.
    later = [message(35, "user", "then"), message(36, "assistant", "no"), counted(37, 53_000, 13_450, 13_400, 7)]
    write_lines(tmp_path / "rollout-1.jsonl", *rollout(), *later)
    also = [message(38, "user", "and"), message(39, "assistant", "so"), counted(40, 53_000, 13_480, 13_400, 9)]
    head = line(29, "session_meta", id="fork", forked_from_id="thread")
    write_lines(tmp_path / "rollout-2.jsonl", head, *rollout()[1:], *more, *also)
    trace = open_trace(str(tmp_path))
    assert [each.session for each in trace.requests] == ["thread", "thread", "fork", "thread", "fork"]
    assert trace.requests[2].continues(trace.requests[1])


@pytest.mark.parametrize("form", ["line", "item"])
def test_what_another_agent_says_begins_a_call(tmp_path: Path, form: str) -> None:
    mail = {"author": "/root", "recipient": "/root/one", "content": "the next task", "trigger_turn": True}
    text = [{"type": "input_text", "text": "the next task"}]
    handed = {
        "line": line(20, "inter_agent_communication", **mail),
        "item": line(20, "response_item", type="agent_message", **mail | {"content": text}),
    }
    more = [handed[form], message(33, "assistant", "yes"), counted(34, 40_000, 13_400, 13_300, 9)]
    third = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *rollout(), *more)).requests[2]
    # The first call is asked at 1 s, and the second one answered at 11.
    assert (third.arrival_s, third.wait_s, third.answer_s) == (19.0, 9.0, 13.0)
    assert (third.input, third.prompt_tokens, third.output_tokens) == (None, 13_400, 9)


def test_codex_compactions_replace_the_history(tmp_path: Path) -> None:
    more = [
        line(20, "compacted", message="summary " * 20),
        message(30, "user", "go on"),
        message(33, "assistant", "yes"),
        counted(34, 40_000, 12_900, 9_600, 9),
    ]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *rollout(), *more))
    second, third = trace.requests[1:]
    assert third.prompt_tokens == 12_900
    assert 9_600 <= third.prompt.common(second.context) < second.prompt_tokens
    assert "1 histories were replaced by a summary" in said(trace, "rebuilt")


def test_an_estimate_of_a_compacted_history_is_the_count_of_no_call(tmp_path: Path) -> None:
    """The turn goes on behind the compaction, so that no message comes between the estimate and the next answer."""
    more = [
        *(counted(20, 40_000, 13_400, 13_300, 700), line(20, "compacted", message="summary " * 20)),
        *(counted(20.1, 44_000, 0, 0, 0), message(24, "assistant", "yes"), counted(24.1, 52_909, 12_900, 9_600, 9)),
    ]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *rollout(), *more))
    assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests] == [
        *((12_880, 328), (13_320, 52), (12_900, 9))
    ]
    # The first call is asked at 1 s, the last one when the history was compacted, at 20.
    assert [request.arrival_s for request in trace.requests] == [0.0, 8.0, 19.0]


def test_a_search_that_the_api_runs_itself_does_not_end_an_answer(tmp_path: Path) -> None:
    lines = [
        *rollout()[:4],
        line(4, "response_item", type="web_search_call", action={"type": "search", "query": "x"}),
        *(message(6, "assistant", "found"), counted(6.1, 13_208, 12_880, 9_600, 328)),
    ]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *lines))
    assert [request.stop for request in trace.requests] == ["stop"]


def test_an_item_of_codex_without_a_time_is_named(tmp_path: Path) -> None:
    lines = rollout()
    del lines[8]["timestamp"]
    source = write_lines(tmp_path / "rollout-1.jsonl", *lines)
    assert refusal(source) == "rollout-1.jsonl:9: timestamp: missing: when an item was written"


def test_turns_of_codex_that_a_user_takes_back_are_not_in_the_next_prompt(tmp_path: Path) -> None:
    def turn(seconds: float, text: str) -> list[dict[str, Any]]:
        return [message(seconds, "user", text), line(seconds, "event_msg", type="user_message", message=text)]

    more = [
        *(*turn(20, "wrong"), message(22, "assistant", "no"), counted(22.5, 40_000, 13_400, 13_300, 9)),
        line(30, "event_msg", type="thread_rolled_back", num_turns=1),
        *(*turn(31, "right"), message(33, "assistant", "yes"), counted(33.5, 54_000, 13_500, 13_372, 9)),
    ]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *rollout(), *more))
    _, kept, undone, right = trace.requests
    assert (undone.continues(kept), right.continues(kept)) == (True, True)
    assert right.prompt.common(undone.context) == 13_320 + 52
    assert "1 conversations went back to an earlier message" in said(trace, "rebuilt")


def test_a_number_of_codex_that_is_no_number_of_tokens_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rollout-1.jsonl", *rollout()[:6], counted(5.5, 328, -1, 9_600, 328))
    assert refusal(source) == (
        "rollout-1.jsonl:7: payload.info.last_token_usage.input_tokens: -1, must be a number of tokens, 0 to 2**53"
    )


def test_codex_calls_that_nobody_counted_are_measured(tmp_path: Path) -> None:
    lines = [each for each in rollout() if each["payload"].get("type") != "token_count"]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *lines))
    first, second = trace.requests
    assert (first.prompt_tokens, second.continues(first)) == (len(SECRET) // 4, True)


def test_lines_of_other_kinds_alone_are_no_trace(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rollout-1.jsonl", *rollout()[:2])
    assert refusal(source) == f"trace {source}: holds no request, 0 records skipped"


def written_late(*, until: float = 100) -> list[dict[str, Any]]:
    """A session of Codex 0.46: a count comes before its answer, which is written when its tools have run."""
    tool = {"type": "function_call", "name": "shell", "arguments": "{}"}
    lines = [
        line(0, "session_meta", id="thread", cli_version="0.46.0"),
        *(message(0, "user", "<environment_context>"), message(1, "user", SECRET)),
        line(1, "event_msg", type="user_message", message=SECRET),
        line(1, "event_msg", type="token_count", info=None),
        line(1, "turn_context", model="gpt-5-codex"),
        counted(5, 13_208, 12_880, 9_600, 328),
        line(9, "response_item", type="reasoning", summary=[], encrypted_content="x"),
        *(line(9, "response_item", **tool, call_id="1"), result(9, "1")),
        *(line(9, "response_item", **tool, call_id="2"), result(9, "2")),
        line(9, "turn_context", model="gpt-5-codex"),
        *(counted(12, 26_580, 13_420, 13_200, 52), message(12, "assistant", "done")),
        *(message(40, "user", "more"), line(40, "event_msg", type="user_message", message="more")),
        line(40, "turn_context", model="gpt-5-codex"),
        *(counted(43, 40_100, 13_500, 13_472, 20), message(43, "assistant", "yes")),
    ]
    return [each for each in lines if each["timestamp"] < line(until, "")["timestamp"]]


def result(seconds: float, call: str) -> dict[str, Any]:
    return line(seconds, "response_item", type="function_call_output", call_id=call, output="r" * 400)


def test_a_count_may_come_before_its_answer(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *written_late()))
    first, second, third = trace.requests
    assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests] == [
        *((12_880, 328), (13_420, 52), (13_500, 20))
    ]
    assert [each.stop for each in trace.requests] == ["tool_calls", "stop", "stop"]
    assert second.continues(first)
    assert third.continues(second)
    # An answer ends when it is counted: the first one after 4 s, its two tools 4 s later.
    assert [each.arrival_s for each in trace.requests] == [0.0, 8.0, 39.0]
    assert [each.answer_s for each in trace.requests] == [4.0, 3.0, 3.0]
    assert [each.wait_s for each in trace.requests] == [None, 4.0, 28.0]


def test_a_later_release_goes_on_with_a_session_whose_counts_come_first(tmp_path: Path) -> None:
    more = [
        *(message(60, "user", "go on"), line(60, "turn_context", model="gpt-5.2")),
        line(63, "response_item", type="function_call", name="shell", arguments="{}", call_id="3"),
        *(counted(63, 53_700, 13_580, 13_500, 30), result(64, "3")),
        *(message(66, "assistant", "ok"), counted(66, 67_400, 13_750, 13_580, 25)),
    ]
    write_lines(tmp_path / "rollout-1.jsonl", *written_late())
    write_lines(tmp_path / "rollout-2.jsonl", line(59, "session_meta", id="fork"), *written_late(until=40), *more)
    trace = open_trace(str(tmp_path))
    tokens = [(each.session, each.prompt_tokens, each.output_tokens) for each in trace.requests]
    assert tokens[:3] == [("thread", 12_880, 328), ("thread", 13_420, 52), ("thread", 13_500, 20)]
    assert tokens[3:] == [("fork", 13_580, 30), ("fork", 13_750, 25)]
    assert trace.requests[3].continues(trace.requests[1])
    assert trace.requests[4].continues(trace.requests[3])


def test_an_answer_that_was_broken_off_has_no_count_of_another(tmp_path: Path) -> None:
    broken = [
        *(message(50, "user", "stop"), line(50, "turn_context", model="gpt-5-codex")),
        line(52, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "t" * 40}]),
        *(message(60, "user", "go on"), line(60, "turn_context", model="gpt-5-codex")),
        *(counted(63, 53_700, 13_580, 13_500, 30), message(63, "assistant", "ok")),
    ]
    trace = open_trace(write_lines(tmp_path / "rollout-1.jsonl", *written_late(), *broken))
    # 13,520 tokens of context, one for "stop", ten for the thought that nobody counted.
    assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests[3:]] == [(13_521, 10), (13_580, 30)]


def test_the_count_of_a_summary_is_of_no_answer(tmp_path: Path) -> None:
    more = [
        *(message(20, "user", "go on"), counted(25, 40_000, 13_400, 13_300, 700)),
        *(line(25, "compacted", message="summary " * 20), message(30, "user", "then")),
        *(message(33, "assistant", "yes"), counted(34, 52_909, 12_900, 9_600, 9)),
    ]
    for kind, before in (("new", rollout()), ("old", written_late(until=40))):
        trace = open_trace(write_lines(tmp_path / f"rollout-{kind}.jsonl", *before, *more))
        assert len(trace.requests) == 3
        assert (trace.requests[2].prompt_tokens, trace.requests[2].output_tokens) == (12_900, 9)
