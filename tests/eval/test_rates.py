"""ET-LRU that learns its rates, held against ET-LRU that is given them, where the paper's model is true."""

from __future__ import annotations

import pytest

from eval.__main__ import main
from eval.studies.paper.published import WILDCHAT
from eval.studies.rates import Setting, Tail, difference, source_of, tail

SEEDS, TURNS = 10, 4_000  # as of the command: of fewer or shorter traces chance decides
POLICIES = ("etlru", "etlru-given")


@pytest.mark.long
@pytest.mark.parametrize("threshold", [1_024, 2_048, 3_072])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_learned_rates_reach_within_three_per_cent_of_the_true_ones(spread: float, threshold: int) -> None:
    sources = [source_of(WILDCHAT, spread, TURNS, seed) for seed in range(SEEDS)]
    setting = Setting(WILDCHAT, spread, 10_000, threshold)
    learned, given = ([tail(policy, setting, source, 0.5) for source in sources] for policy in POLICIES)
    tel, p95, _ = difference(learned, given)  # ET-LRU minimises the TEL; p99, of 20 requests each, is not promised
    assert tel.mean <= 0.03, str(tel)
    assert p95.mean <= 0.03, str(p95)


def test_a_difference_is_a_mean_over_traces_with_students_interval() -> None:
    ours, theirs = [Tail(110, 100, 10), Tail(130, 100, 10)], [Tail(100, 100, 20), Tail(100, 100, 20)]
    tel, p95, p99 = difference(ours, theirs)
    # Of 10 % and 30 %: a mean of 20 %, give or take 10 % · t(0.975, 1 degree of freedom) = 10 % · 12.706.
    assert tel == pytest.approx((0.2, 1.2706), abs=1e-4)
    assert (p95, p99) == ((0.0, 0.0), (-0.5, 0.0))
    assert str(tel) == "+20.0% ± 127.1%"


def test_against_nothing_there_is_no_difference() -> None:
    ours, theirs = [Tail(0, 100, 10), Tail(5, 100, 10)], [Tail(0, 100, 10), Tail(10, 100, 10)]
    assert list(map(str, difference(ours, theirs))) == ["–", "+0.0% ± 0.0%", "+0.0% ± 0.0%"]


def test_where_all_fits_there_is_no_tail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", "--model", "wildchat", "--capacity", "10M", "--seeds", "2", "--turns", "100"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("wildchat")]
    assert any(line.count("–") == 4 for line in lines)


def test_the_command_prints_a_line_for_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "wildchat", "--capacity", "4k", "--seeds", "2", "--turns", "200"]
    assert main(["rates", *small]) == 0
    shown = capsys.readouterr().out
    assert "the last 50% of 200 turns, 2 seeds, forced caching" in shown
    lines = [line.split() for line in shown.splitlines() if line.lstrip().startswith("wildchat")]
    assert len(lines) == 6  # two spreads by three ξ
    spread, threshold = float(lines[-1][1]), int(lines[-1][3].replace(",", ""))
    sources = [source_of(WILDCHAT, spread, 200, seed) for seed in range(2)]
    setting = Setting(WILDCHAT, spread, 4_000, threshold)
    lru, own = (sum(tail(policy, setting, source, 0.5).tel for source in sources) for policy in ("lru", "tlru"))
    assert lines[-1][4] == f"{own / lru - 1:+.1%}" != "+0.0%"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--seeds", "1"], "--seeds 1: must be 2 or more"),
        (["--turns", "99"], "--turns 99: must be 100 or more"),
        (["--from", "1"], "--from 1: must be 0 or more and less than 1"),
        (["--capacity", "0"], "--capacity 0: must be 1 or more"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", *flags]) == 2
    assert capsys.readouterr().err.splitlines() == [f"eval rates: {line}"]
