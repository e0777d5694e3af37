"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from eval.__main__ import COMMANDS, main
from eval.arguments import output_file, output_folder, tokens


@pytest.mark.parametrize(
    ("text", "number"), [("65536", 65536), ("64k", 64_000), ("16.1k", 16_100), ("4.35M", 4_350_000), ("1e3k", 10**6)]
)
def test_a_number_of_tokens_is_exact(text: str, number: int) -> None:
    assert tokens(text) == number


@pytest.mark.parametrize("text", ["", "k", "nank", "infM", "0.0001k", "-1k", "1e99999999k", "9e9999999999999999999k"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        tokens(text)


def test_a_folder_to_write_to_is_there_or_can_be_made(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a folder" / "below"):
        assert output_folder(str(folder)) == folder
        assert output_file(str(folder / "x.png")) == folder / "x.png"
    assert not (tmp_path / "a folder").exists()


@pytest.mark.parametrize("below", ["", "/folder", "/folder/below"])
def test_a_folder_to_write_to_is_no_file(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for there in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(
            argparse.ArgumentTypeError, match=f"^{there}{below}: must be a folder, and {there} is none$"
        ):
            output_folder(f"{there}{below}")
        with pytest.raises(argparse.ArgumentTypeError, match=f"/x: must be in a folder, and {there} is none$"):
            output_file(f"{there}{below}/x")


def test_nothing_is_the_name_of_no_folder_nor_file(tmp_path: Path) -> None:
    """`--out "$DIR"` where no DIR is set: the current folder is not meant."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"^'': must be the name of a folder$"):
        output_folder("")
    with pytest.raises(argparse.ArgumentTypeError, match=r"^'': must be the name of a file$"):
        output_file("")
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{tmp_path}: must be the name of a file$"):
        output_file(str(tmp_path))


def test_an_out_that_cannot_be_is_refused_by_every_command_that_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything else is done, and with the flag."""
    (tmp_path / "file").touch()
    asked = []
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(f"eval.{command.module}").add_arguments(parser)
        if any("--out" in action.option_strings for action in parser._actions):
            asked.append(name)
            assert main([name, "--out", str(tmp_path / "file" / "x.png")]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"eval {name}: --out {tmp_path / 'file' / 'x.png'}: must be ")
            assert line.endswith(f"a folder, and {tmp_path / 'file'} is none")
    assert len(asked) == 12
