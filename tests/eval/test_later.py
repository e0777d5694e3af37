"""`python -m eval later`: policies on the later part of a trace."""

from __future__ import annotations

import itertools

import pytest

from eval.__main__ import main
from eval.studies.figures import Figures, figures, four_digits, shown
from eval.traces import open_trace

SMALL = ["--trace", "synthetic:conversations=40", "--capacity", "5k", "--threshold", "600"]


def test_a_policy_without_a_weight_has_one_line_and_no_weight(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["later", *SMALL, "--policy", "lru", "tlru", "tail-belady", "--median-weight", "0", "0.5"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    named = ("lru", "tlru", "tail-belady")
    assert [line for line in lines if line and line[0] in named] == [
        ["lru", "–"],
        ["tlru", "0"],
        ["tlru", "0.5"],
        ["tail-belady", "–"],
    ]


def test_a_weight_that_no_policy_takes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["later", *SMALL, "--policy", "lru", "--median-weight", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eval later: --median-weight 2: must be a number from 0 to 1")
    assert main(["later", *SMALL, "--policy", "lru", "--median-weight", "0.5", "1"]) == 2
    said = capsys.readouterr().err
    assert said == "eval later: --median-weight 0.5 1: has no effect on --policy lru; leave it out\n"
    assert said.count("\n") == 1


def test_a_cell_without_a_gap_is_no_gap_that_was_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--trace", "synthetic:conversations=40", "--policy", "tail-belady", "--threshold", "600", "1M"]
    assert main(["later", *flags, "--capacity", "5k"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if "tail-belady" in line)
    # No prompt has a million tokens: in that cell nobody has any TEL.
    assert (row[2], row[-2:]) == ("100.0%", ["100", "–"])


def test_a_capacity_that_is_given_twice_weighs_once_in_a_mean(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*capacities: str) -> str:
        assert main(["later", *SMALL[:2], *SMALL[4:], "--policy", "tlru", "--capacity", *capacities]) == 0
        return capsys.readouterr().out

    assert said("5k", "5000", "9k") == said("5k", "9k")


def test_the_worst_p95_is_that_of_the_cell_in_which_it_rises_most(capsys: pytest.CaptureFixture[str]) -> None:
    def p95_and_worst(*capacities: str) -> list[float]:
        assert main(["later", *SMALL[:2], *SMALL[4:], "--policy", "tlru", "--capacity", *capacities]) == 0
        (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if "tlru" in line)
        return [float(share.rstrip("%")) for share in row[5:7]]

    (small, _), (large, _) = p95_and_worst("3k"), p95_and_worst("9k")
    assert small != large
    assert p95_and_worst("3k", "9k") == [pytest.approx((small + large) / 2, abs=0.11), max(small, large)]


def test_figures_of_the_later_part_are_of_no_request_before_it() -> None:
    requests, cached = open_trace("synthetic:conversations=9").requests, itertools.count()
    found = [min(next(cached), request.prompt_tokens) for request in requests]
    assert figures(requests, found, 50, 7) == figures(requests[7:], found[7:], 50) != figures(requests, found, 50)


def test_a_change_from_nothing_is_not_told_as_none() -> None:
    none, some = Figures(0, 0, 9, 3, 0, 0.5), Figures(500, 0, 9, 4, 1, 0.5)
    change = some.against(none)
    assert [shown(each) for each in (change.tel, change.p50, change.p95, change.violations)] == [
        "–",
        "+0.0%",
        "+0.0%",
        "–",
    ]


def test_a_change_of_the_hit_ratio_is_a_difference() -> None:
    before, after = Figures(10, 10, 10, 10, 10, 0.5), Figures(10, 10, 10, 10, 10, 0.45)
    assert after.against(before).hit_ratio == pytest.approx(-0.05)


def test_a_large_figure_is_no_power_of_ten() -> None:
    values = (float("nan"), 0.0, 4.2512, 999.96, 1_000.4, 24_681.2)
    assert [four_digits(each) for each in values] == ["–", "0", "4.251", "1000", "1,000", "24,681"]
