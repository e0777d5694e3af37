"""`eval trace`: what was understood of a trace, and what was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.traces import GENERATORS, READERS
from tests.helpers.paths import SHARED_DATA
from tests.helpers.trace_files import write_lines

FIRST = {"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [7, 8, 9]}
SECOND = {"timestamp": 1500, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 10]}


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> Done:
        code = main(["trace", *arguments])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def test_the_command_says_what_was_understood_and_what_was_skipped(command: Command, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST, SECOND, "broken")
    refused = command(source)
    assert (refused.returncode, refused.stdout, refused.stderr) == (
        2,
        "",
        "eval trace: t.jsonl:3: not JSON: JSON is malformed: invalid character (byte 0) "
        "(--skip-bad leaves such records out)\n",
    )
    shown = command(source, "--skip-bad")
    assert (shown.returncode, shown.stderr) == (0, "")
    # The second prompt begins with both full blocks of the first: 1,024 of 1,200 + 1,100 tokens, 44.5 %.
    assert "t (mooncake): 2 requests in 1 conversations" in shown.stdout
    assert "an infinite cache would hold 44.5% of all prompt tokens" in shown.stdout
    assert "answers end: 100.0% not told" in shown.stdout
    assert "assumed: blocks of 512 tokens" in shown.stdout
    assert "1 records skipped" in shown.stdout


def test_a_trace_is_named_alone_or_with_the_flag(command: Command, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST, SECOND)
    assert command(source).stdout == command("--trace", source).stdout
    for arguments in ((), (source, "--trace", source)):
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--trace" in done.stderr


def test_a_table_that_is_piped_is_not_cut_off(command: Command, tmp_path: Path) -> None:
    huge = {
        "timestamp": 0,
        "input_length": 512 * 400_000,
        "output_length": 123_456_789,
        "hash_ids": list(range(400_000)),
    }
    shown = command(write_lines(tmp_path / "t.jsonl", huge, huge))
    assert shown.returncode == 0
    assert "…" not in shown.stdout
    assert shown.stdout.count("204,800,000") >= 7
    assert "wait since last turn (s)" in shown.stdout


def test_how_answers_and_waits_end_is_told_by_kind(command: Command, tmp_path: Path) -> None:
    told = [("tool_use", "text"), ("tool_use", "tool_result"), ("end_turn", "tool_result"), ("end_turn", "text")]
    rows = [
        SECOND | {"timestamp": 1000 * n * n, "session": 1, "agent": 0, "stop": stop, "input_types": [kind]}
        for n, (stop, kind) in enumerate(told)
    ]
    rows.append(rows[0] | {"timestamp": 99_000, "agent": 1})
    shown = command(write_lines(tmp_path / "t.jsonl", *rows)).stdout
    assert "answers end: 60.0% with a call of a tool (tool_use), 40.0% at the end of a turn (end_turn)" in shown
    assert "inputs end with: 60.0% the text of a user, 40.0% the result of a tool" in shown
    assert "subagents: 1, with 1 requests" in shown
    assert "until a tool's result" in shown
    assert "until a user's text" in shown


def test_arrivals_that_cannot_be_are_refused(command: Command, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST)
    done = command(source, "--arrivals", "birth_rate=-1")
    assert (done.returncode, done.stdout) == (2, "")
    allowed = "birth_rate: -1.0, must be from 1e-09 to 1e+09"
    assert done.stderr == f"eval trace: --arrivals: birth_rate=-1: {allowed}\n"
    assert command(source, "--arrivals", "rate=1").stderr.startswith(
        "eval trace: --arrivals: 'rate=1' is not key=value"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.jsonl", "trace no.jsonl: no such file"),
        ("batch:sessions=0", "batch: sessions=0: sessions: 0, must be from 1"),
    ],
)
def test_of_several_traces_one_that_is_none_is_said_before_any_is_read(
    command: Command, name: str, message: str, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST, SECOND)
    refused = command(source, name)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"eval trace: {message}")


def test_all_that_can_be_named_is_listed(command: Command) -> None:
    shown = command("--list")
    assert shown.returncode == 0
    words = shown.stdout.split()
    assert set(READERS) <= set(words)
    assert set(GENERATORS) <= set(words)
    assert "summary_median (3000.0)" in shown.stdout
    assert "first_prompt_range (200/3000)" in shown.stdout  # as it is typed
    assert "prompt_lengths (none; a sample is A/B/C)" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "mooncake"), "--format mooncake: agents:runs=5 is generated, not read; leave it out"),
        (("--tokenizer", "no/such"), "--tokenizer no/such: agents:runs=5 is generated, not read; leave it out"),
        (("--block-size", "16"), "--block-size 16: agents:runs=5 is generated, not read; leave it out"),
        (("--arrivals", "birth_rate=9"), "--arrivals: agents:runs=5 is generated, not read; leave it out"),
    ],
)
def test_flags_of_reading_are_refused_where_nothing_is_read(
    command: Command, words: tuple[str, str], message: str
) -> None:
    refused = command("agents:runs=5", *words)
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"eval trace: {message}\n")


def test_flags_that_have_no_effect_on_a_file_are_noted(command: Command, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST)
    shown = command(source, "--tokenizer", "no/such", "--arrivals", "birth_rate=9").stdout
    assert "ignored: --tokenizer no/such: mooncake has no texts to count" in shown
    assert "ignored: --arrivals: nothing was drawn, as the trace has times of its own" in shown
    chat = {"conversations": [{"from": "human", "value": "hi"}]}
    shown = command(write_lines(tmp_path / "u.jsonl", chat), "--block-size", "16", "--arrivals", "birth_rate=9").stdout
    assert "ignored: --block-size 16: sharegpt has no blocks" in shown
    assert shown.count("ignored: ") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("agents:runs=3,runs=5", "agents: 'runs=5': runs is given twice"),
        ("chat-mix:answer_range=5", "chat-mix: 'answer_range=5': must be answer_range=LOW/HIGH"),
    ],
)
def test_parameters_that_cannot_be_are_refused_as_they_are_typed(command: Command, name: str, message: str) -> None:
    assert command(name).stderr == f"eval trace: {message}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--policy", "lru", "--out", "OUT"),
        ("compare", "--policy", "sglang-lru", "--quick", "--out", "OUT"),
        ("later", "--policy", "lru"),
    ],
)
def test_every_command_says_once_what_of_a_trace_is_missing(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [FIRST | {"timestamp": 1000 * n, "hash_ids": [n % 3, 10 + n % 3, n]} for n in range(40)]
    write_lines(tmp_path / "day" / "a.jsonl", *rows, "broken")
    (tmp_path / "day" / "b").write_text("not read")
    asked = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    sizes = ["--capacity", "4096"] if words[0] == "compare" else ["--capacity", "4096", "--threshold", "512"]
    assert main([*asked, "--trace", str(tmp_path / "day"), "--skip-bad", *sizes]) == 0
    told = capsys.readouterr().err
    assert told.count("day: left out: 1 files of the folder, by their names no traces: b\n") == 1
    assert told.count("day: 1 records skipped, the first: a.jsonl:41: not JSON: ") == 1


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generated_workload_shows_sensible_figures(command: Command, name: str) -> None:
    shown = command(name)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"{name} ({name}): " in shown.stdout
    assert "drawn: all of it" in shown.stdout


ALL = sorted(path for path in SHARED_DATA.rglob("*") if path.is_file() and path.suffix != ".md")


@pytest.mark.skipif(not ALL, reason=f"{SHARED_DATA} is not there")
@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(SHARED_DATA)))
def test_every_file_at_hand_is_read(command: Command, path: Path) -> None:
    shown = command("--trace", str(path))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "answers end: " in shown.stdout
    assert "real: " in shown.stdout
