"""Logs of Claude Code: its projects."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from eval.traces import Request, open_trace
from eval.traces.facts import facts
from tests.helpers.rollouts import SECRET, at, rollout
from tests.helpers.trace_files import refusal, said, write_lines


class Session:
    """The lines of a session, each with the one above it as its parent."""

    def __init__(self, name: str, **more: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._head: dict[str, Any] = {"sessionId": name, "isSidechain": False, "version": "2.1.47"} | more
        self._last: str | None = None

    def user(self, seconds: float, content: Any, **more: Any) -> str:
        return self._line("user", seconds, {"role": "user", "content": content}, **more)

    def result(self, seconds: float, text: str) -> str:
        return self.user(seconds, [{"type": "tool_result", "tool_use_id": "t", "content": text}])

    def answer(self, seconds: float, key: str, tokens: Sequence[int], stop: str, *blocks: dict[str, Any]) -> str:
        """Lines of one answer, a block each; tokens: new, written to the cache, read from it, output."""
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        usage = dict(zip(names, tokens, strict=True))
        for number, block in enumerate(blocks):
            last = number == len(blocks) - 1
            told = usage if last else usage | {"output_tokens": 1}
            message = {"id": key, "role": "assistant", "model": "claude-opus", "content": [block], "usage": told}
            name = self._line("assistant", seconds, message | {"stop_reason": stop if last else None}, requestId=key)
        return name

    def _line(self, kind: str, seconds: float, message: dict[str, Any], **more: Any) -> str:
        name = f"{self._head['sessionId']}-{self._head.get('agentId', '')}-{len(self.lines)}"
        head = {"parentUuid": self._last, "uuid": name, "type": kind, "timestamp": at(seconds)}
        self.lines.append(self._head | head | {"message": message} | more)
        self._last = name
        return name


TEXT = {"type": "text", "text": "a" * 40}
TOOL = {"type": "tool_use", "id": "t", "name": "Read", "input": {"file_path": "/home/alice/secret"}}


def worked(name: str = "s") -> Session:
    """A user asks, a tool is called after 3 s and answers after 5 more, the turn ends."""
    session = Session(name)
    session.user(0, SECRET)
    session.answer(3, f"{name}m1", (10, 5_000, 15_000, 200), "tool_use", {"type": "thinking", "thinking": ""}, TOOL)
    session.result(8, "r" * 400)
    session.answer(10, f"{name}m2", (5, 300, 20_010, 60), "end_turn", TEXT)
    return session


def test_prompts_have_the_tokens_that_were_counted_for_them(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *worked().lines))
    first, second = trace.requests
    assert trace.format == "claude-code"
    assert (first.prompt_tokens, second.prompt_tokens) == (20_010, 20_315)
    assert (first.output_tokens, second.output_tokens) == (200, 60)
    # The context after the first answer has 20,210 tokens; the result of the tool is the rest.
    assert (len(first.context), second.continues(first)) == (20_210, True)
    assert (first.stop, second.stop) == ("tool_calls", "stop")
    assert (first.input, second.input) == ("user", "tool")
    # The answer took 3 s, the tool 5; the next call came with its result.
    assert (first.answer_s, second.arrival_s, second.wait_s) == (3.0, 8.0, 5.0)
    assert (first.conversation, first.session, first.model) == ("s/0", "s", "claude-opus")


def test_a_prompt_counts_once_where_the_api_ran_tools_before_it_answered(tmp_path: Path) -> None:
    """The tokens of all iterations are added up; a summary that was made before them is none of the prompt."""
    session = worked()
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    rounds = [(10, 0, 90_000, 700, "compaction"), (5, 300, 20_010, 40, "message"), (9, 200, 20_310, 20, "message")]
    iterations = [dict(zip((*names, "type"), each, strict=True)) for each in rounds]
    added = dict(zip(names, (14, 500, 40_320, 60), strict=True))
    without_cached = [{name: each[name] for name in ("input_tokens", "type")} for each in iterations]
    summed = 14 + 500 + 40_320
    for told, tokens in ((iterations, 5 + 300 + 20_010), (without_cached, summed), (None, summed)):
        session.lines[-1]["message"]["usage"] = added | {"iterations": told}
        second = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines)).requests[1]
        assert (second.prompt_tokens, second.output_tokens) == (tokens, 60)


def test_what_the_provider_had_cached_of_a_first_prompt_is_shared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.jsonl", *worked(name).lines)
    one, other = (r for r in open_trace(str(tmp_path)).requests if r.prompt_tokens == 20_010)
    assert one.prompt.common(other.prompt) == 15_000


def test_no_text_of_the_user_is_in_the_trace(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *worked().lines))
    kept = repr([astuple(request) for request in trace.requests]) + repr(trace.notes)
    assert "alice" not in kept
    assert "hunter2" not in kept


def test_subagents_in_files_of_their_own_belong_to_their_session(tmp_path: Path) -> None:
    sub = Session("s", agentId="a1", isSidechain=True)
    sub.user(4, "look")
    sub.answer(5, "x1", (10, 900, 9_000, 20), "tool_use", TOOL)
    sub.result(6, "found")
    sub.answer(7, "x2", (10, 20, 9_930, 20), "end_turn", TEXT)
    write_lines(tmp_path / "project" / "s.jsonl", *worked().lines)
    write_lines(tmp_path / "project" / "s" / "subagents" / "agent-a1.jsonl", *sub.lines)
    trace = open_trace(str(tmp_path / "project"))
    assert [(r.conversation, r.parent) for r in trace.requests] == [
        *(("s/0", None), ("s/a1", "s/0"), ("s/a1", "s/0"), ("s/0", None))
    ]
    known = facts(trace.requests)
    assert (known.sessions, known.subagents, known.subagent_requests) == (1, 1, 2)


def test_side_chains_in_one_file_are_told_apart_by_their_parents(tmp_path: Path) -> None:
    chains = []
    for number in range(2):
        chain = Session("s", isSidechain=True, agentId=f"only for names {number}")
        chain.user(4 + number, f"look {number}")
        chain.answer(6 + number, f"x{number}", (10, 900, 9_000, 20), "end_turn", TEXT)
        chains.append([{k: v for k, v in line.items() if k != "agentId"} for line in chain.lines])
    mixed = [line for pair in zip(*chains, strict=True) for line in pair]
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *worked().lines, *mixed))
    assert len({request.conversation for request in trace.requests}) == 3
    assert sum(request.parent == "s/0" for request in trace.requests) == 2


def test_a_resumed_session_does_not_repeat_its_calls(tmp_path: Path) -> None:
    resumed = [line | {"sessionId": "t"} for line in worked().lines]
    more = Session("t")
    more.user(60, "go on", parentUuid=resumed[-1]["uuid"])
    more.answer(63, "m3", (10, 50, 20_400, 30), "end_turn", TEXT)
    write_lines(tmp_path / "a.jsonl", *worked().lines)
    write_lines(tmp_path / "b.jsonl", *resumed, *more.lines)
    trace = open_trace(str(tmp_path))
    assert [request.prompt_tokens for request in trace.requests] == [20_010, 20_315, 20_460]
    assert [request.conversation for request in trace.requests] == ["s/0", "s/0", "t/0"]
    assert trace.requests[2].continues(trace.requests[1]), "what it repeats is in the cache"


@pytest.mark.parametrize("names", [("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")])
@pytest.mark.parametrize("copied", [4, 2, 0])
@pytest.mark.parametrize("session", ["s", "t"])
def test_a_resumed_session_goes_on_behind_lines_that_keep_their_session(
    tmp_path: Path, names: tuple[str, str], copied: int, session: str
) -> None:
    old = worked()
    answered = old.lines[-1]["uuid"]
    more = Session(session)
    more.lines = [{}] * 10  # so that lines get names of their own
    more.user(60, "go on", parentUuid=answered)
    more.answer(63, "m3", (10, 50, 20_400, 30), "end_turn", TEXT)
    write_lines(tmp_path / names[0], *old.lines)
    write_lines(tmp_path / names[1], *old.lines[len(old.lines) - copied :], *more.lines[10:])
    trace = open_trace(str(tmp_path))
    assert [request.prompt_tokens for request in trace.requests] == [20_010, 20_315, 20_460]
    assert [request.conversation for request in trace.requests] == ["s/0", "s/0", f"{session}/0"]
    assert trace.requests[2].continues(trace.requests[1])
    assert trace.requests[2].wait_s == 50.0
    assert "went back" not in said(trace, "rebuilt")


def test_a_fork_waits_for_the_answer_that_it_goes_on_with_and_for_no_later_one(tmp_path: Path) -> None:
    old, fork = worked(), Session("t")
    fork.user(40, "another way", parentUuid=old.lines[-1]["uuid"])
    fork.answer(43, "t1", (10, 50, 20_400, 30), "end_turn", TEXT)
    old.user(60, "one way")
    old.answer(63, "m3", (10, 60, 20_400, 30), "end_turn", TEXT)
    write_lines(tmp_path / "a.jsonl", *old.lines)
    write_lines(tmp_path / "b.jsonl", *fork.lines)
    forked = next(request for request in open_trace(str(tmp_path)).requests if request.session == "t")
    # The answer ended at 10 s, the one that only the other session has at 63.
    assert (forked.arrival_s, forked.wait_s) == (40.0, 30.0)


@pytest.mark.parametrize("place", ["agent-c.jsonl", "f/subagents/agent-c.jsonl"])
def test_calls_that_a_subagent_repeats_are_those_of_its_session(tmp_path: Path, place: str) -> None:
    write_lines(tmp_path / "f.jsonl", *worked("f").lines)
    compacts = worked("f")
    compacts.user(20, "summarize")
    compacts.answer(25, "x", (10, 50, 20_360, 900), "end_turn", TEXT)
    copied = [line | {"isSidechain": True, "agentId": "c"} for line in compacts.lines]
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    write_lines(tmp_path / place, *copied)
    trace = open_trace(str(tmp_path))
    assert [request.conversation for request in trace.requests] == ["f/0", "f/0", "f/c"]
    assert trace.requests[2].continues(trace.requests[1]), "what it repeats is in the cache"


def test_a_compacted_history_is_its_summary(tmp_path: Path) -> None:
    session = worked()
    session.user(100, "This session continues: " + "s" * 400, isCompactSummary=True)
    session.answer(103, "m3", (10, 3_000, 15_000, 40), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    before, after = trace.requests[1:]
    # 18,010 tokens do not hold what the first prompt had beside its text; they share what the provider had cached.
    assert (after.prompt_tokens, after.prompt.common(before.context)) == (18_010, 15_000)
    assert "1 histories were replaced by a summary" in said(trace, "rebuilt")


def test_a_user_who_edits_the_message_behind_a_summary_goes_back_to_the_summary(tmp_path: Path) -> None:
    session = worked()
    summary = session.user(100, "This session continues: " + "s" * 400, isCompactSummary=True)
    session.user(110, "one way")
    session.answer(113, "m3", (10, 6_000, 15_000, 40), "end_turn", TEXT)
    session.user(120, "another way", parentUuid=summary)
    session.answer(123, "m4", (10, 6_100, 15_000, 40), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    first, before, one, other = trace.requests
    # The system prompt is what the first prompt has beside its text, of eight tokens.
    system = first.prompt_tokens - len(SECRET) // 4
    assert (one.prompt_tokens, other.prompt_tokens) == (21_010, 21_110)
    assert [each.prompt.common(before.context) for each in (one, other)] == [system, system]


def test_a_history_that_was_cut_keeps_what_the_provider_had_cached(tmp_path: Path) -> None:
    session = worked()
    session.result(20, "x" * 40_000)
    session.answer(23, "m3", (10, 10_000, 20_375, 40), "end_turn", TEXT)
    # Results of tools were cleared: of 30,425 tokens the first 20,210 are in the prompt, those up to the first answer.
    session.user(60, "go on")
    session.answer(63, "m4", (10, 200, 20_210, 40), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    first, *_, before, after = trace.requests
    assert (len(before.context), after.prompt_tokens) == (30_425, 20_420)
    assert after.prompt.common(before.context) == len(first.context) == 20_210
    assert "1 prompts are shorter than their history" in said(trace, "rebuilt")


def test_a_user_who_edits_an_earlier_message_goes_back_to_it(tmp_path: Path) -> None:
    session = worked()
    asked = session.lines[-1]["uuid"]
    session.user(60, "one way")
    session.answer(63, "m3", (10, 50, 20_400, 30), "end_turn", TEXT)
    session.user(90, "another way", parentUuid=asked)
    session.answer(93, "m4", (10, 60, 20_400, 30), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    second, one, other = trace.requests[1:]
    assert one.continues(second)
    assert other.continues(second)
    assert not other.continues(one)
    assert "1 conversations went back to an earlier message" in said(trace, "rebuilt")


def test_a_user_who_edits_the_first_message_goes_back_to_the_system_prompt(tmp_path: Path) -> None:
    session = Session("s")
    session.user(0, "a" * 40)
    session.answer(3, "m1", (10, 5_000, 15_000, 200), "end_turn", TEXT)
    session.user(60, "b" * 4_000, parentUuid=None)
    session.answer(63, "m2", (1_000, 0, 20_000, 60), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    first, second = trace.requests
    # 20,010 tokens, 10 of them the message; the next prompt has room for the answer, and does not hold it.
    assert (second.prompt_tokens, second.prompt.common(first.context)) == (21_000, 20_000)
    assert "1 conversations went back to an earlier message" in said(trace, "rebuilt")
    without = [{name: value for name, value in line.items() if name != "parentUuid"} for line in session.lines]
    first, second = open_trace(write_lines(tmp_path / "t.jsonl", *without)).requests
    assert second.continues(first), "lines that name no parents follow each other"


def test_thoughts_that_are_dropped_make_the_last_answer_shorter(tmp_path: Path) -> None:
    session = Session("s")
    session.user(0, "think")
    session.answer(9, "m1", (10, 990, 15_000, 4_000), "end_turn", TEXT)
    session.user(60, "m" * 40)
    # 16,000 tokens, then 4,000 of the answer, of which 3,900 were thoughts.
    session.answer(63, "m2", (10, 100, 16_000, 30), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    first, second = trace.requests
    assert (second.prompt_tokens, second.prompt.common(first.context)) == (16_110, 16_000)
    assert "1 last answers are shorter in the next prompt" in said(trace, "rebuilt")


def test_results_of_parallel_tools_are_one_prompt(tmp_path: Path) -> None:
    session = Session("s")
    session.user(0, "do both")
    session.answer(3, "m1", (10, 990, 15_000, 80), "tool_use", TOOL, TOOL)
    parents = [line["uuid"] for line in session.lines[-2:]]
    for number, parent in enumerate(parents):
        session.user(5 + number, [{"type": "tool_result", "content": "r" * 40}], parentUuid=parent)
    session.answer(8, "m2", (10, 70, 16_080, 30), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    first, second = trace.requests
    assert (first.output_tokens, second.arrival_s, second.continues(first)) == (80, 6.0, True)
    assert len(second.prompt.ids) == len(first.context.ids) + 2


def test_a_call_starts_when_the_answer_before_it_has_ended_though_a_clock_is_set_back(tmp_path: Path) -> None:
    session = worked()
    session.user(5, "go on")
    session.answer(7, "m3", (10, 50, 20_400, 30), "end_turn", TEXT)
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    # The second answer ended at 10 s by the clock before.
    assert [request.arrival_s for request in trace.requests] == [0.0, 8.0, 10.0]
    assert [request.answer_s for request in trace.requests] == [3.0, 2.0, 0.0]
    assert trace.requests[2].continues(trace.requests[1])
    assert "1 calls were logged before the end of the answer before them" in said(trace, "rebuilt")


@pytest.mark.parametrize(("attached", "start_s"), [(True, 60.0), (False, 63.0)])
def test_a_call_without_a_message_starts_with_what_was_attached(tmp_path: Path, attached: bool, start_s: float) -> None:
    session = worked()
    session.answer(63, "m3", (10, 50, 20_400, 30), "end_turn", TEXT)
    typed = session.lines[-1] | {"type": "attachment", "uuid": "typed", "timestamp": at(60)}
    del typed["message"]
    session.lines[-1:] = [*([typed] if attached else []), session.lines[-1]]
    trace = open_trace(write_lines(tmp_path / "s.jsonl", *session.lines))
    # The answer before it ended at 10 s.
    assert [request.arrival_s for request in trace.requests] == [0.0, 8.0, start_s]
    assert (trace.requests[2].wait_s, trace.requests[2].answer_s) == (start_s - 10, 63 - start_s)


def test_errors_that_the_client_shows_are_no_calls(tmp_path: Path) -> None:
    session = worked()
    session.answer(20, "e1", (0, 0, 0, 0), "stop_sequence", TEXT)
    session.lines[-1]["message"]["model"] = "<synthetic>"
    session.answer(21, "e2", (0, 0, 0, 0), "stop_sequence", TEXT)
    session.lines[-1]["isApiErrorMessage"] = True
    assert len(open_trace(write_lines(tmp_path / "s.jsonl", *session.lines)).requests) == 2


def test_other_lines_come_first_and_broken_ones_are_named(tmp_path: Path) -> None:
    first = [{"type": "summary", "summary": SECRET}, {"type": "file-history-snapshot", "snapshot": {}}]
    source = write_lines(tmp_path / "s.jsonl", *first, *worked().lines, "broken")
    assert refusal(source).startswith("s.jsonl:8: not JSON")
    assert len(open_trace(source, skip_bad=True).requests) == 2
    late = worked().lines
    late[0]["timestamp"] = "yesterday"
    assert refusal(write_lines(tmp_path / "t.jsonl", *late)) == (
        "t.jsonl:1: timestamp: 'yesterday' is no time, such as 2025-11-25T10:00:00Z"
    )


def test_a_message_without_a_time_is_named(tmp_path: Path) -> None:
    lines = worked().lines
    del lines[1]["timestamp"]
    source = write_lines(tmp_path / "s.jsonl", *lines)
    assert refusal(source) == "s.jsonl:2: timestamp: missing: when a message was said"


@pytest.mark.parametrize("lines", [worked().lines, rollout()])
def test_logs_of_agents_may_be_packed(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    plain = open_trace(write_lines(tmp_path / "s.jsonl", *lines)).requests
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert [prompt_tokens(each) for each in open_trace(str(tmp_path / "s.jsonl.gz")).requests] == [
        prompt_tokens(each) for each in plain
    ]


def prompt_tokens(request: Request) -> int:
    return request.prompt_tokens
