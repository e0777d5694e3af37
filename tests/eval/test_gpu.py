"""`python -m eval gpu`, without a server: a folder goes on with what it has, and nobody is compared with itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eval.__main__ import main
from eval.live import gpu
from eval.live.replay.rows import Folder
from eval.simulate.timing import Timing
from tests.helpers.replays import ROWS, RUN, played

BOTH = ("stock lru", "etlru")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Timing]:
    """What was measured, each time with another result; nothing else is played."""
    made: list[Timing] = []

    @contextlib.contextmanager
    def launched(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(base_url="http://fake")

    def calibrate(url: str, lengths: Sequence[int]) -> Timing:
        made.append(Timing(0.1 + len(made) / 100, 10.0, f"measured on {url}"))
        return made[-1]

    monkeypatch.setattr(gpu, "launched", launched)
    monkeypatch.setattr(gpu, "calibrate", calibrate)
    monkeypatch.setattr(gpu, "_replay", lambda words: 0)
    folder = Folder(tmp_path / "tail", RUN)
    played(folder, "stock lru", 0, ROWS)
    return made


def decoded(path: Path, *names: str) -> None:
    folder = Folder(path / "decode", msgspec.structs.replace(RUN, arms=dict.fromkeys(BOTH, "")))
    for name in names:
        played(folder, name, 0, ROWS)


def flags(path: Path, pool: str = "6000") -> list[str]:
    return ["gpu", "--device", "cpu", "--model", "m", "--pool", pool, "--out", str(path)]


def test_a_second_run_takes_the_line_of_the_first(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded(tmp_path, *BOTH)
    printed = []
    for _ in range(2):
        assert main(flags(tmp_path)) == 0
        printed.append(capsys.readouterr().out)
    assert len(measured) == 1
    assert f"{tmp_path / 'timing.json'}: α and β as they were measured before" in printed[1]
    assert [text.count("ξ = 1,900") for text in printed] == [1, 1]
    assert main(flags(tmp_path, pool="7000")) == 2
    assert "timing.json: measured with pool 6000, not 7000; give another --out" in capsys.readouterr().err


@pytest.mark.parametrize("there", [(), ("stock lru",), ("radix-tlru",)])
def test_an_arm_that_was_not_played_is_named(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str], there: tuple[str, ...]
) -> None:
    decoded(tmp_path, *there)
    assert main(flags(tmp_path)) == 1
    printed = capsys.readouterr()
    missing = ", ".join(name for name in BOTH if name not in there)
    assert printed.err == f"eval gpu: {tmp_path / 'decode'}: {missing} not played; the same command goes on\n"
    assert "within" not in printed.out


def test_without_a_gpu_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        gpu.gpu_facts()
    except ValueError:
        assert main(["gpu", "--out", str(tmp_path)]) == 2
        assert "--device gpu: nvidia-smi finds none" in capsys.readouterr().err
