"""`python -m eval gpu`, without a server: a folder goes on with what it has, and nobody is compared with itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eval.__main__ import main
from eval.live import gpu
from eval.live.gpu_report import by_size
from eval.live.replay.rows import Folder
from eval.simulate.timing import Timing
from tests.helpers.replays import ROWS, RUN, played, row

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


def test_a_line_that_was_measured_otherwise_is_not_gone_on_with(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded(tmp_path, *BOTH)
    by = ["--lengths", "64", "128", "256"]
    assert main([*flags(tmp_path), *by]) == main([*flags(tmp_path), *by]) == 0
    capsys.readouterr()
    assert main(flags(tmp_path)) == 2
    assert "timing.json: measured with lengths [64, 128, 256], not [" in capsys.readouterr().err
    facts = json.loads((tmp_path / "timing.json").read_text())
    del facts["lengths"], facts["extra"]  # as 0.1.0 wrote them, by what it was not told
    (tmp_path / "timing.json").write_text(json.dumps(facts))
    assert main(flags(tmp_path)) == 0
    assert main([*flags(tmp_path), *by]) == 2
    assert "not [64, 128, 256]; give another --out" in capsys.readouterr().err
    assert main([*flags(tmp_path), "--extra=--enable-lora"]) == 2
    assert "timing.json: measured with extra '', not '--enable-lora'; give another --out" in capsys.readouterr().err
    assert len(measured) == 1


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


def test_what_is_for_every_server_reaches_each_and_what_is_for_the_load_reaches_it(
    measured: list[Timing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded(tmp_path, *BOTH)
    played_with: list[Sequence[str]] = []
    started_with: list[Sequence[str]] = []
    launched = gpu.launched

    def launch(arm: Any, common: Sequence[str], name: str) -> Any:
        started_with.append(common)
        return launched(arm, common, name)

    def play(words: Sequence[str]) -> int:
        played_with.append(words)
        return 0

    monkeypatch.setattr(gpu, "launched", launch)
    monkeypatch.setattr(gpu, "_replay", play)
    more = ["--extra=--kv-cache-dtype fp8_e4m3", "--load=--shrink 16 --until 90", "--settle", "1", "--quick"]
    assert main(["gpu", "--device", "cpu", "--model", "m", *more, "--out", str(tmp_path)]) == 0
    assert [words[-2:] for words in started_with] == [["--kv-cache-dtype", "fp8_e4m3"]]
    tail, decode = played_with
    assert all("--server-flags=--kv-cache-dtype fp8_e4m3" in words for words in played_with)
    assert tail[-4:] == ["--shrink", "16", "--until", "90"]
    assert "--shrink" not in decode
    assert tail[tail.index("--settle") + 1] == "1"
    for words in played_with:
        assert words[words.index("--repeats") + 1] == "1"
        assert words[words.index("--pool") + 1] == str(gpu.QUICK_POOL)
    assert tail[tail.index("--trace") + 1] == gpu.QUICK
    assert main(["gpu", "--extra=--flag 'unfinished", "--out", str(tmp_path)]) == 2
    assert "--extra --flag 'unfinished: must be flags as in a shell (No closing quotation)" in capsys.readouterr().err


def test_what_was_played_before_the_machine_went_is_written(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tmp_path)) == 2  # nobody decoded: there is not even a folder
    results = (tmp_path / "results.md").read_text()
    assert "| TEL (tokens) | 500" in results
    assert "Not played." in results
    assert f"{tmp_path / 'results.md'}" in capsys.readouterr().out
    decoded(tmp_path, *BOTH)
    assert main(flags(tmp_path)) == 0
    assert "Not played." not in (tmp_path / "results.md").read_text()


def test_a_load_of_which_no_arm_was_played_is_one_line(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tail" / "parts.jsonl").unlink()  # each server died before its end
    assert main(flags(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error == f"eval gpu: {tmp_path / 'tail'}: {', '.join(RUN.arms)} not played; the same command goes on\n"


def test_what_would_take_longer_than_quick_may_is_left_out_and_the_same_command_goes_on(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded(tmp_path, *BOTH)
    replayed: list[str] = []
    monkeypatch.setattr(gpu, "_replay", lambda words: replayed.append(words[words.index("--out") + 1]) or 0)
    usual = gpu.QUICK_S
    monkeypatch.setattr(gpu, "QUICK_S", 0.0)  # whatever it took, that was longer
    assert main([*flags(tmp_path), "--quick"]) == 0
    assert replayed == [str(tmp_path / "tail")]
    assert "saturation: left out, as --quick would take " in capsys.readouterr().out
    assert main(flags(tmp_path)) == 0  # without it there is no limit
    monkeypatch.setattr(gpu, "QUICK_S", usual)
    assert main([*flags(tmp_path), "--quick"]) == 0
    assert replayed[1:] == [str(tmp_path / "tail"), str(tmp_path / "decode")] * 2
    assert "saturation: left out" not in capsys.readouterr().out


def test_requests_are_grouped_by_half_octaves_of_what_was_prefilled() -> None:
    rows = [row(number, 0, 0, tokens, 0, float(number)) for number, tokens in enumerate((1, 64, 65, 90, 91, 128))]
    groups = by_size([*rows, row(9, 0, 0, 100, 100), row(10, 0, 0, 64, 0, ttft_ms=None)])
    assert [(group.least, group.most, group.ttft_ms) for group in groups] == [
        (1, 1, (0.0,)),
        (46, 64, (1.0,)),
        (65, 90, (2.0, 3.0)),
        (91, 128, (4.0, 5.0)),
    ]
    assert groups[2].p95 == pytest.approx(2.95)


NOWHERE = "trace nowhere: no such file, and none is generated by that name: see `eval trace --list`"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--trace", "nowhere"], NOWHERE),
        (["--decode-trace", "nowhere"], NOWHERE),
        (
            ["--decode-trace", "synthetic:conversations=2,answer_lengths=1"],
            "--decode-trace synthetic:conversations=2,answer_lengths=1: must have answers of 2 tokens or more, "
            "to time decoding",
        ),
        (["--load=--shrink 0"], "--shrink 0: must be 1 or more"),
        (["--load=--swift"], "unrecognized arguments: --swift"),
        (["--load=--speed 2 --settle 30"], "--load --settle: must be given to gpu itself"),
        (["--load=--sett=30"], "--load --settle: must be given to gpu itself"),
        (["--load=--server-flags=--x"], "--load --server-flags: must be given to gpu itself, as --extra"),
        (
            ["--load=--threshold 900"],
            "--load --threshold: must be left out, as it follows from --slo and what is measured",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_before_a_model_is_written_and_measured(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    out = tmp_path / "new"
    assert main([*flags(out), "--next-prompt-estimate", "50", *given]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"eval gpu: {said}\n")
    assert not measured
    assert not out.exists()


def test_without_a_gpu_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no nvidia-smi, whatever this machine has
    assert main(["gpu", "--out", str(tmp_path)]) == 2
    assert "--device gpu: nvidia-smi finds none" in capsys.readouterr().err


def test_one_length_is_refused_before_a_server_starts(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpu", "--device", "cpu", "--model", "m", "--lengths", "64", "64", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err == "eval gpu: --lengths 64 64: must be two or more lengths\n"
    assert measured == []
    assert not (tmp_path / "out").exists()


def test_an_objective_that_no_request_can_meet_is_named(
    measured: list[Timing], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first measurement has β = 10 ms."""
    assert main(["gpu", "--device", "cpu", "--model", "m", "--slo", "9", "--out", str(tmp_path)]) == 2
    said = "eval gpu: --slo 9 ms: cannot be met, a request without uncached tokens takes 10 ms\n"
    assert capsys.readouterr().err == said
