"""The flags of a replay, and what a run is known by."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.command import Parser
from eval.live import disaggregated, router
from eval.live.replay import command
from eval.live.replay.arms import Arm, default_arms, parse_arm, parse_url
from eval.live.replay.hosts import STARTUP_S
from eval.live.replay.plan import Plan, plan_of, run_of
from eval.live.replay.rows import Folder, Run
from eval.live.replay.turns import Conversation, Load, Segment, Turn
from tests.helpers.replays import RUN, played, row


def run_cli(capsys: pytest.CaptureFixture[str], text: str, out: Path) -> tuple[int, str]:
    status = main(["replay", *shlex.split(text), "--out", str(out)])
    return status, capsys.readouterr().err.strip()


def planned(*words: str) -> Plan:
    parser = Parser()
    command.add_arguments(parser)
    return plan_of(parser.parse_args(words))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--trace figure1 --users 0", "--users 0: must be 1 or more"),
        ("--trace figure1 --speed 0", "--speed 0: must be more than 0"),
        ("--trace figure1 --arm a= --arm a=", "every arm needs a name of its own"),
        ("--trace figure1 --arm 'w<1=' --arm 'w>1='", "--arm, --url: w<1, w>1: two of them would name the same file"),
        ("--trace figure1 --router 0", "--router 0: must be 1 or more"),
        ("--trace figure1 --pool 0", "--pool 0: must be 1 or more"),
        ("--trace figure1 --slo 0", "--slo 0: must be more than 0"),
        ("--trace figure1 --threshold 100", "--threshold 100: must be more than --next-prompt-estimate 200"),
        ("--trace figure1 --users 5", "--users 5: with --loop open requests come by their times"),
        ("--trace figure1 --url a=http://x --pool 9k", "--pool: of servers that are started, and those of --url run"),
        ("--trace figure1 --url a=http://x --model m", "--model: of servers that are started"),
        ("--trace figure1 --url a=http://x --server-flags=--x", "--server-flags: of servers that are started"),
        ("--trace nowhere.jsonl", "trace nowhere.jsonl: no such file"),
        ("--trace figure1 --device gpu", "--device gpu: --model is needed"),
        ("--trace figure1 --router 2 --url a=http://x", "--router: starts its own servers"),
        ("--trace figure1 --disaggregated --url a=http://x", "--disaggregated: starts its own servers"),
        ("--trace chat-mix:thought_range=10/20", "has thoughts, which a replay cannot have a model think"),
        ("--trace figure1 --disaggregated --router 2", "--disaggregated: has one server of each kind"),
        ("--trace figure1 --conversations 0", "--conversations 0: must be 1 or more"),
        ("--trace figure1 --sessions --router 2", "--sessions: SGLang's router does not pass them on"),
        ("--trace figure1 --together --disaggregated", "--together: starts one server an arm"),
        ("--trace figure1 --together --url a=http://x", "--together: starts one server an arm"),
        ("--trace figure1 --in-turn", "--in-turn: one request is under way at any time; needs --loop ordered and --u"),
        ("--trace figure1 --in-turn --loop ordered --users 2", "--in-turn: one request is under way at any time"),
        ("--trace figure1 --in-turn --loop ordered --users 1 --settle 5", "--in-turn: a server's own time"),
        ("--trace figure1 --in-turn 0", "--in-turn 0: must be more than 0"),
        ("--trace figure1 --in-turn 20 --device gpu", "--in-turn: the servers of all arms would"),
        ("--trace figure1 --in-turn --loop ordered --users 1 --device gpu", "--in-turn: the servers of all arms would"),
        ("--trace figure1 --device gpu --together", "--together: the servers of all arms would share one GPU"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, message: str
) -> None:
    status, error = run_cli(capsys, flags, tmp_path / "out")
    assert status == 2
    assert message in error
    assert error.count("\n") == 0
    assert not (tmp_path / "out").exists()


def test_texts_are_not_shrunk_and_lengths_are(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "word " * 400}, {"from": "gpt", "value": "yes " * 40}]
    trace = tmp_path / "texts.json"
    trace.write_text(json.dumps([{"id": "a", "conversations": said}]))
    words = ("--trace", str(trace), "--shrink", "8", "--url", "a=http://x", "--out", str(tmp_path / "out"))
    with pytest.raises(ValueError, match="--shrink 8: texts are sent as they are"):
        planned(*words, "--api", "chat")
    load = planned(*words).load
    assert [len(load.ids(turn)) for each in load.conversations for turn in each.turns] == [500 // 8 + 1]


@pytest.mark.parametrize("turns", ["", "--in-turn 5"])
def test_servers_none_of_which_answers_are_named_and_nothing_is_played(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, turns: str
) -> None:
    nobody = "http://127.0.0.1:9"  # the port of a service that is long gone
    status, error = run_cli(capsys, f"--trace figure1 --url a={nobody} --url b={nobody} {turns}", tmp_path / "out")
    assert status == 1
    for arm in "ab":
        assert f"eval replay: {arm}, repeat 1: {arm}: {nobody} does not answer" in error
    assert "eval replay: missing: a #1, b #1." in error


def test_servers_that_run_need_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = ["--url", "a=http://x", "--out", str(tmp_path / "out")]
    for device in ("cpu", "gpu"):
        assert planned("--trace", "figure1", "--device", device, *url).common == []
    assert list(tmp_path.iterdir()) == [], "no demo model was written"


def test_the_first_conversations_and_the_sessions_that_the_trace_names(tmp_path: Path) -> None:
    url = ["--url", "a=http://x", "--out", str(tmp_path / "out")]
    agents = "subagents:sessions=12,seed=1"
    plan = planned("--trace", agents, "--conversations", "9", *url)
    assert len({each.session_index for each in plan.load.conversations}) == 9
    assert len(plan.load.conversations) > 9, "their subagents are with them"
    assert plan.run.requests == plan.load.requests < planned("--trace", agents, *url).load.requests
    assert plan.run.sessions, "the trace names them"
    assert not planned("--trace", "figure1", *url).run.sessions
    assert planned("--trace", "figure1", "--sessions", *url).run.sessions


def test_parts_of_an_arm_have_as_long_to_start_as_a_plain_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    given = []
    for made in (router.Router, disaggregated.Disaggregated):
        monkeypatch.setattr(made, "__enter__", lambda self: given.append(self._startup_s))
        monkeypatch.setattr(made, "__exit__", lambda *_: None)
    model = ["--device", "gpu", "--model", str(tmp_path)]
    for words in (("--router", "2"), ("--disaggregated",)):
        plan = planned("--trace", "figure1", *model, *words, "--out", str(tmp_path))
        with plan.launch(plan.arms[0], plan.common, "test"):
            pass
    assert given == [STARTUP_S, STARTUP_S]


def test_a_run_without_a_success_is_a_failure_and_not_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play_nothing(plan: Plan, folder: Folder) -> bool:
        for arm in plan.arms:
            played(folder, arm.name, 0, [row(0, 0, 0, 100, 0, error="HTTP 500")])
        return True

    monkeypatch.setattr(command, "play_all", play_nothing)
    status, error = run_cli(capsys, "--trace figure1 --url a=http://x", tmp_path)
    assert (status, error) == (1, "eval replay: a: all 1 requests failed; the first error: HTTP 500")


@pytest.mark.parametrize("text", ["ours", "=--radix-eviction tlru", "ours='--x"])
def test_an_arm_is_a_name_and_flags(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_arm(text)


@pytest.mark.parametrize("text", ["ours", "ours=127.0.0.1:3000", "=http://a", "ours=http://"])
def test_a_url_is_a_name_and_an_address(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_url(text)


def test_arms_are_parsed_as_a_shell_would() -> None:
    assert parse_arm("ours = --radix-eviction tlru --x 'a b'") == Arm(
        "ours", ("--radix-eviction", "tlru", "--x", "a b")
    )
    assert parse_url("ours=http://127.0.0.1:3000/") == Arm("ours", url="http://127.0.0.1:3000")
    assert [arm.name for arm in default_arms(600, 100)] == ["stock lru", "stock tlru", "etlru"]


def test_a_run_is_known_by_its_load_and_its_servers() -> None:
    load = Load((Conversation(0, 0.0, (Turn((Segment(1, 9),), False, 4, 0.0),)),))
    settings = {**{name: getattr(RUN, name) for name in Run.__struct_fields__[4:]}}
    same = [run_of("t", load, [Arm("a")], ["--page-size", "1"], **settings) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != run_of("t", load, [Arm("a")], ["--page-size", "2"], **settings)
    other = {**settings, "servers": "a prefill and a decode server"}
    assert same[0] != run_of("t", load, [Arm("a")], ["--page-size", "1"], **other)
    assert same[0] != run_of("t", Load(load.conversations, seed=1), [Arm("a")], ["--page-size", "1"], **settings)


def test_the_command_that_a_demo_prints_is_one_that_a_shell_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run", lambda args: 0)
    assert main(["demo", "--out", str(tmp_path / "a b")]) == 0
    assert shlex.split(capsys.readouterr().out)[-1] == str(tmp_path / "a b")
