"""One way for all commands: how they are listed, how they fail, what they print."""

from __future__ import annotations

import argparse
import importlib
import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

import eval
from eval.__main__ import COMMANDS, main
from eval.arguments import Several, add_policies, number, one_of, whole
from eval.command import Parser, RunError, execute
from eval.terminal import Progress, table, track
from radix_tlru import Config

WIDE = 40  # columns of a table of a thousand characters


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_that_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"eval.{COMMANDS[name].module}")
    assert {"add_arguments", "run"} <= set(vars(module))
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: python -m eval {name} ")
    assert shown.err == ""


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_a_python_without_the_packages_is_told_how_to_get_them() -> None:
    checkout = Path(eval.__file__).parents[1]
    command = [sys.executable, "-S", "-m", "eval", "trace", "figure1"]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    line = r"eval trace: needs \w+: `make setup` installs it into \.venv: then \.venv/bin/python -m eval\n"
    assert re.fullmatch(line, ended.stderr)
    assert ended.returncode == 2


def test_the_readme_has_every_command() -> None:
    readme = (Path(eval.__file__).parent / "README.md").read_text()
    assert [name for name in COMMANDS if not re.search(rf"[|,] `{name}[ `]", readme)] == []
    assert readme.count("\n") <= 120


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], f"eval: command: must be one of {', '.join(COMMANDS)}\n"),
        (["fly"], "eval: command fly: must be one of demo, "),
        (["tune", "--slo", "fast"], "eval tune: --slo fast: must be a number, 0 or more"),
        (["later", "--speed", "2"], "eval later: the following arguments are required: --trace, --capacity"),
        (["simulate", "--trace", "figure1", "--capacity", "9", "--out", ".", "--fast"], "eval simulate: unrecognized"),
        (["soak", "--core", "python"], "eval soak: --core python: needs --requests; steps are taken on both"),
        (
            ["soak", "--steps", "0", "--requests", "10", "--seed", "3"],
            "eval soak: --seed 3: is of the steps, and --steps",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_steps_that_would_be_audited_by_nothing_are_refused() -> None:
    words = [sys.executable, "-O", "-m", "eval", "soak", "--steps", "20"]
    shown = subprocess.run(words, cwd=Path(eval.__file__).parents[1], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr.startswith("eval soak: python -O: leaves out what steps are audited by;")


def failing(error: Exception) -> SimpleNamespace:
    def run(args: argparse.Namespace) -> int:
        raise error

    return SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--threshold"), run=run)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("--capacity 3: must be\nmore"), 2, "eval x: --capacity 3: must be more"),
        (
            FileNotFoundError(2, "No such file or directory", "t.jsonl"),
            2,
            "eval x: t.jsonl: No such file or directory",
        ),
        (RunError("the server died"), 1, "eval x: the server died"),
    ],
)
def test_an_error_is_a_line_and_a_status(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute("x", failing(error), []) == status
    assert capsys.readouterr().err.startswith(line)


def test_a_refusal_of_the_configuration_names_the_flags_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace) -> int:
        Config(threshold=100)
        return 0

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--threshold")

    assert execute("x", SimpleNamespace(add_arguments=add_arguments, run=run), []) == 2
    # The command has --threshold; it has no --next-prompt-estimate, so the server's flag is named.
    assert capsys.readouterr().err.startswith(
        "eval x: --threshold 100: must be more than 200, the tokens that a next prompt is expected to add "
        "(--tlru-next-prompt-estimate)"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_with_several_values_of_a_command_may_be_given_again(name: str) -> None:
    parser = Parser()
    importlib.import_module(f"eval.{COMMANDS[name].module}").add_arguments(parser)
    several = [each for each in parser._actions if each.option_strings and each.nargs in ("+", "*")]
    assert [each.option_strings for each in several if not isinstance(each, Several)] == []


def test_a_flag_with_several_values_may_also_be_given_several_times() -> None:
    parser = Parser()
    add_policies(parser, ("lru", "tlru", "etlru"), ("lru",))
    parser.add_argument("--capacity", action=Several, type=whole(1))
    for words in (["--policy", "tlru", "etlru"], ["--policy", "tlru", "--policy", "etlru"]):
        assert parser.parse_args(words).policy == ["tlru", "etlru"]
    assert parser.parse_args([]).policy == ["lru"]
    assert parser.parse_args(["--policy", "tlru"]).policy == ["tlru"], "one parser is used again"
    assert parser.parse_args(["--capacity", "64k", "--capacity", "2M"]).capacity == [64_000, 2_000_000]
    with pytest.raises(ValueError, match="--policy fifo: must be one of lru, tlru, etlru"):
        parser.parse_args(["--policy", "lru", "fifo"])


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (whole(1), "0", "0: must be 1 or more"),
        (whole(1, 18), "19", "19: must be 1 to 18"),
        (whole(0), "many", "many: must be a whole number, 0 or more"),
        (number(above=0, below=1), "1", "1: must be more than 0 and less than 1"),
        (number(least=0), "nan", "nan: must be 0 or more"),
        (number(least=0), "inf", "inf: must be 0 or more"),
        (number(), "nan", "nan: must be finite"),
        (one_of(("a", "b")), "c", "c: must be one of a, b"),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(kind: type, text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        kind(text)


def test_several_traces_are_described_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for names in (["figure1"], ["synthetic:conversations=9"], ["figure1", "synthetic:conversations=9"]):
        assert main(["trace", *names]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[2] == f"{shown[0]}\n{shown[1]}"


def test_a_trace_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "figure1"]) == 0
    alone = capsys.readouterr().out
    assert main(["trace", "--trace", "figure1"]) == 0
    assert capsys.readouterr().out == alone
    for words, said in (
        (["figure1", "--trace", "agents"], "--trace agents: figure1 is given as well"),
        ([], "--trace:"),
    ):
        assert main(["trace", *words]) == 2
        assert capsys.readouterr().err.startswith(f"eval trace: {said}")


def wide_table() -> Table:
    result = table("", [f"column {n:02}" for n in range(WIDE)])
    result.add_row(*(f"[figure] {n:,}" for n in range(WIDE)))
    return result


def test_a_table_in_a_pipe_keeps_all_of_its_columns() -> None:
    program = "from eval.terminal import show; from tests.eval.test_command import wide_table; show(wide_table())"
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert all(f"column {n:02}" in shown and f"[figure] {n:,}" in shown for n in range(WIDE))
    assert "…" not in shown
    assert len({len(line) for line in shown.splitlines()}) == 1, "one line a row"


def test_without_a_terminal_progress_is_lines() -> None:
    printed = io.StringIO()
    with Progress("cells", 3, stream=printed, every_s=0.0) as progress:
        for _ in range(3):
            progress.advance()
        progress.say("cells: done")
    steps = [line.rpartition(",")[0] for line in printed.getvalue().splitlines()]
    assert steps == ["cells: 1 of 3", "cells: 2 of 3", "cells: 3 of 3", "cells: done: 3 of 3"]


def test_a_short_run_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2, 3], "numbers")) == [1, 2, 3]
    assert capsys.readouterr().err == ""
