"""The tuner: what it chooses, what it says to expect, and that the flags it prints are flags of the server."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from eval.__main__ import main
from eval.command import RunError
from eval.simulate.cells import Cell, Outcome
from eval.studies.tune import choose, flags_of
from eval.studies.tune_figure import Setting
from radix_tlru import Config
from radix_tlru.config import FLAGS

TRACE = "synthetic:conversations=400,seed=2"
CELL = Cell("t", "tlru", 10_000, 600, 200, 0.0, 16)
NOTHING = Outcome(10, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, {}, 0.0)


def setting(weight: float, p50: float, tel: int) -> Setting:
    return Setting(
        replace(CELL, median_weight=weight), replace(NOTHING, p50=p50, tel=tel), NOTHING, np.zeros(10, np.int64)
    )


STOCK = setting(0.0, 100.0, 2000)
FRONTIER = [setting(0.0, 140.0, 1000), setting(0.1, 120.0, 1009), setting(0.2, 90.0, 1200), setting(0.4, 80.0, 1900)]


def test_of_settings_with_nearly_the_least_tail_the_one_whose_median_pays_least() -> None:
    assert choose(FRONTIER, STOCK, 50).cell.median_weight == 0.1
    assert choose(FRONTIER, STOCK, 50, tolerance=0.0).cell.median_weight == 0.0
    assert choose(FRONTIER, STOCK, 50, tolerance=0.5).cell.median_weight == 0.2


def test_a_limit_of_the_median_leaves_out_what_breaks_it() -> None:
    assert choose(FRONTIER, STOCK, median_limit=0).cell.median_weight == 0.2
    assert choose(FRONTIER, STOCK, median_limit=-15).cell.median_weight == 0.4
    with pytest.raises(RunError, match="--median-limit -50: no setting that was tried keeps it: allow more"):
        choose(FRONTIER, STOCK, median_limit=-50)


def test_the_flags_to_paste_are_flags_of_the_server() -> None:
    words = shlex.split(flags_of(replace(CELL, median_weight=0.05)))
    assert {word for word in words if word.startswith("--")} <= set(FLAGS.values())
    assert words[:2] == ["--radix-eviction", "tlru"]
    Config(policy="tlru", threshold=600, next_prompt_estimate=200, median_weight=0.05)


def test_it_prints_what_to_expect_and_writes_what_it_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", TRACE, "--capacity", "40k", "--slo", "100", "--page-size", "16", "--out", str(tmp_path)]
    assert main(["tune", *words, "--median-weight", "0", "0.2", "--median-limit", "500"]) == 0
    printed = capsys.readouterr().out
    tried = json.loads((tmp_path / "tune.json").read_text())
    assert len(tried) == 1 + 2 * 4 * 2
    assert tried[0]["policy"] == "sglang-lru"
    (chosen,) = (row for row in tried if row["chosen"])
    assert f"--tlru-threshold {chosen['threshold']} " in printed
    for name, figure, unit in (("TEL (tokens over ξ)", "tel", 1.0), ("TTFT p90 (ms)", "p90", 200 / 2048)):
        old, new = (unit * row["second_half"][figure] for row in (tried[0], chosen))
        (shown,) = (line.partition(name)[2].split()[:3] for line in printed.splitlines() if name in line)
        assert shown == [f"{old:,.0f}", f"{new:,.0f}", f"{new / old - 1:+.1%}"]
    assert "95 % interval" in printed
    assert "Chance alone" not in printed
    assert chosen["first_half"]["requests"] + chosen["second_half"]["requests"] > 400
    assert chosen["second_half"]["requests"] - chosen["first_half"]["requests"] in (0, 1)
    assert (tmp_path / "frontier.png").stat().st_size > 10_000
    least = min(row["first_half"]["tel"] for row in tried[1:])
    assert chosen["first_half"]["tel"] <= least * 1.01


@pytest.mark.parametrize(
    ("trace", "doubt"),
    [
        ("synthetic:conversations=150", "Chance alone may have lowered TEL: its interval holds 0."),
        ("subagents:sessions=3,calls_median=12", "By chance or not cannot be told: fewer than 6 sessions"),
    ],
)
def test_a_gain_that_other_sessions_might_not_have_is_doubted(
    trace: str, doubt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trace", trace, "--capacity", "20k", "--slo", "200", "--policy", "tlru", "--median-weight", "0.4"]
    assert main(["tune", *words, "--median-limit", "500", "--out", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--radix-eviction tlru" in printed
    assert doubt in printed


def test_a_median_that_breaks_its_limit_on_the_other_half_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pool is not full in the first half, so that nothing is evicted there and the median is stock's."""
    words = ["--trace", "chat-mix:conversations=40", "--capacity", "20k", "--slo", "100", "--policy", "tlru"]
    assert main(["tune", *words, "--median-weight", "0", "--out", str(tmp_path)]) == 0
    stock, *tried = json.loads((tmp_path / "tune.json").read_text())
    (chosen,) = (one for one in tried if one["chosen"])
    assert chosen["first_half"]["p50"] <= stock["first_half"]["p50"] * 1.01
    assert chosen["second_half"]["p50"] > stock["second_half"]["p50"] * 1.01
    told = "The median keeps --median-limit 1 on the half that was chosen by, and not on the other."
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(["tune", *words, "--median-weight", "0", "--median-limit", "10000", "--out", str(tmp_path)]) == 0
    assert "The median keeps" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--slo 0", "--slo 0: leaves no token to prefill"),
        ("--slo 100 --alpha -1", "--alpha -1: must be more than 0"),
        ("--slo 100 --median-weight 2", "--median-weight 2: must be a number from 0 to 1"),
        ("--slo 100 --timing none.json", "--timing none.json: No such file or directory"),
        ("--slo 100 --policy best", "best"),
        ("--slo 100 --page-size 100000", "--capacity 40000: must be at least one page, --page-size 100000"),
        ("--slo 100 --page-size 0", "--page-size 0: must be 1 or more"),
        ("--slo 100 --alpha 0.5", "--slo 100 --alpha 0.5: is ξ = 200 tokens, which must be more than"),
        ("--slo 10 --alpha 0.1 --beta 20", "--slo 10 ms: cannot be met, a request without uncached tokens takes 20 ms"),
        ("--slo 100 --beta 30", "--beta 30: needs --alpha"),
        ("--slo 100 --alpha 0.1 --beta -3", "--beta -3: must be 0 or more"),
        ("--slo 100 --alpha nan", "--alpha nan: must be more than 0"),
        ("--slo 100 --timing t.json --beta 0", "--timing t.json: not together with --alpha or --beta"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trace", "synthetic:conversations=30", "--capacity", "40k", *shlex.split(words), "--out", str(tmp_path)]
    assert main(["tune", *given]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") == 0


def test_a_folder_that_cannot_be_made_is_said_before_settings_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.studies.tune.tried", lambda *_: pytest.fail("settings were tried"))
    (tmp_path / "file").touch()
    words = ["--trace", TRACE, "--capacity", "40k", "--slo", "100", "--out", str(tmp_path / "file" / "folder")]
    assert main(["tune", *words]) == 2
    assert f"must be a folder, and {tmp_path / 'file'} is none" in capsys.readouterr().err


def test_flags_are_printed_only_for_what_is_better_than_stock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trace", TRACE, "--capacity", "4M", "--slo", "60", "--page-size", "16", "--out", str(tmp_path)]
    assert main(["tune", *words]) == 0
    printed = capsys.readouterr().out
    assert "best tried" in printed
    assert "keep stock lru" in printed
    assert "--radix-eviction" not in printed
    _, *tried = json.loads((tmp_path / "tune.json").read_text())
    assert {(row["policy"], row["median_weight"]) for row in tried} == {
        *(("tlru", weight) for weight in (0.0, 0.05, 0.1, 0.2, 0.4)),
        ("etlru", None),
    }


def test_a_threshold_that_leaves_nothing_over_the_next_prompt_is_not_tried(tmp_path: Path) -> None:
    words = ["--trace", "chat-mix:conversations=20", "--capacity", "4k", "--slo", "200", "--alpha", "0.5"]
    assert main(["tune", *words, "--policy", "tlru", "--median-weight", "0", "--out", str(tmp_path)]) == 0
    _, *tried = json.loads((tmp_path / "tune.json").read_text())
    assert [row["threshold"] for row in tried] == [300, 400, 600]  # 0.5 · 400 tokens are no more than Q̂, 200


def test_without_a_tail_no_figure_is_named_and_no_larger_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "frontier.png").write_text("of another run")
    words = ["--trace", "chat-mix:conversations=20", "--capacity", "1M", "--slo", "400", "--median-weight", "0"]
    assert main(["tune", *words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "no request of the half that was not chosen by is over the SLO: keep stock lru." in printed
    assert "larger pool" not in printed
    assert "frontier.png" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["tune.json"]


def test_where_everything_fits_a_larger_pool_is_no_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", "chat-mix:conversations=20", "--capacity", "1M", "--slo", "60", "--median-weight", "0"]
    assert main(["tune", *words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "as many tokens are prefilled as with stock lru: keep stock lru." in printed
    assert "larger pool" not in printed


def test_the_figure_names_what_was_chosen_and_marks_the_least_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles, names = [], []

    def legend(axes: Axes, **given: Any) -> None:
        titles.append(given["title"])
        names.append(axes.get_legend_handles_labels()[1][-1])

    monkeypatch.setattr("matplotlib.axes.Axes.legend", legend)
    words = ["--trace", "chat-mix:conversations=20", "--capacity", "4k", "--slo", "60", "--policy", "tlru"]
    assert main(["tune", *words, "--median-weight", "0.4", "0.2", "--out", str(tmp_path)]) == 0
    (chosen,) = (row for row in json.loads((tmp_path / "tune.json").read_text()) if row["chosen"])
    assert titles == ["large marks: the least w"]
    assert names == [f"recommended, w = {chosen['median_weight']}"]
