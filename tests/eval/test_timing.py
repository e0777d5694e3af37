"""The line TTFT = β + α·uncached: which corner it has, what it says of tokens and ms, and how it is fitted.

The examples are small enough to be worked out by hand. A line of repeated medians has the median, over all points, of
the median slope from each to the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.simulate.timing import Point, Timing, TimingError, fit, read_timing, write_timing


def fitted(ms: Sequence[float]) -> Timing:
    """The line through one point at each of 1, 2, 3, … uncached tokens."""
    return fit([Point(number, each) for number, each in enumerate(ms, 1)], "measured")


def test_below_its_corner_a_request_takes_the_floor() -> None:
    timing = Timing(0.1, 10.0, "given", floor=25.0)  # 10 + 0.1 · 150 = 25
    assert timing.corner == 150
    assert [timing.ms(tokens) for tokens in (0, 150, 160)] == [25, 25, 26]
    assert [timing.tokens(ms) for ms in (25, 26, 26.09)] == [150, 160, 160]
    with pytest.raises(TimingError, match=r"^24\.9 ms: cannot be met, a request without uncached tokens takes 25 ms"):
        timing.tokens(24.9)
    assert str(timing) == "TTFT = max(25 ms, 10 ms + 0.1 ms · uncached)"
    assert str(Timing(0.1, 10.0, "given")) == "TTFT = 10 ms + 0.1 ms · uncached"


def test_no_request_takes_less_than_no_time() -> None:
    timing = Timing(0.1, -5.0, "fitted")  # 0.1 · 50 = 5
    assert timing.corner == 50
    assert [timing.ms(tokens) for tokens in (0, 50, 60)] == [0, 0, 1]
    assert timing.tokens(0) == 50
    with pytest.raises(TimingError, match=r"^-1 ms: cannot be met, a request without uncached tokens takes 0 ms"):
        timing.tokens(-1)


def test_an_objective_of_beta_leaves_no_token() -> None:
    assert Timing(0.1, 10.0, "given").tokens(10) == 0
    with pytest.raises(TimingError, match=r"^9\.99 ms: cannot be met"):
        Timing(0.1, 10.0, "given").tokens(9.99)


def test_tokens_are_whole_numbers_that_a_float_holds() -> None:
    assert Timing(1.0, 0.0, "given").tokens(2**53 - 1) == 2**53 - 1
    for ms in (2.0**53, math.nan):
        with pytest.raises(TimingError, match=r"must be a number of ms, and less than 2\^53 tokens take"):
            Timing(1.0, 0.0, "given").tokens(ms)


@pytest.mark.parametrize(
    ("alpha", "beta", "floor", "named"),
    [
        *((alpha, 0.0, 0.0, "alpha") for alpha in (0.0, -1.0, math.nan, math.inf)),
        *((1.0, beta, 0.0, "beta") for beta in (math.nan, math.inf)),
        *((1.0, 0.0, floor, "floor") for floor in (-1.0, math.nan, math.inf)),
    ],
)
def test_what_is_no_time_is_refused(alpha: float, beta: float, floor: float, named: str) -> None:
    with pytest.raises(
        TimingError, match=f"^{named} {[alpha, beta, floor][('alpha', 'beta', 'floor').index(named)]:g}"
    ):
        Timing(alpha, beta, "given", floor=floor)


@pytest.mark.parametrize("count", range(2, 10))
def test_points_on_a_line_have_no_corner(count: int) -> None:
    found = fitted([20 + 0.3 * number for number in range(1, count + 1)])  # but for the last bits of floats
    assert found.floor == 0
    assert (found.alpha, found.beta) == pytest.approx((0.3, 20))
    assert found.r2 == pytest.approx(1)


def test_most_points_may_lie_below_the_corner() -> None:
    found = fitted([10, 10, 10, 10, 10, 20, 30, 40])  # 10 · 6 - 40 = 20
    assert (found.alpha, found.beta, found.floor, found.corner) == pytest.approx((10, -40, 10, 5))
    assert found.r2 == pytest.approx(1)


def test_nearly_all_points_may_lie_on_the_floor() -> None:
    found = fitted([*[10] * 18, 20, 30])  # 10 · 19 - 170 = 20
    assert (found.alpha, found.beta, found.floor) == pytest.approx((10, -170, 10))


def test_a_corner_has_two_lengths_on_either_side() -> None:
    # Median slopes 2.5, 5 and 7.5: 5 ms a token; what is left of the points is 5, 0 and 5 ms. Else: 10 ms, then a rise.
    assert fitted([10, 10, 20]) == Timing(5.0, 5.0, "measured", 0.625, points_of(10, 10, 20))


def points_of(*ms: float) -> tuple[Point, ...]:
    return tuple(Point(number, each) for number, each in enumerate(ms, 1))


@pytest.mark.parametrize(
    ("second", "alpha", "beta", "floor"),
    [
        # The line is 3.2 + 5.9n, 0.9 ms off at three points. The corner is 12.05 ms, then 10n - 10: 2.05 ms off at two.
        # Of three points in four, 2.05 ms are left of 2.7, or 76 %.
        (14.1, 10, -10, 12.05),
        # The line is 3.4 + 5.8n, 0.8 ms off at three points; the corner 2.1 off at two. 2.1 are left of 2.4, or 88 %.
        (14.2, 5.8, 3.4, 0),
    ],
)
def test_a_corner_leaves_less_than_four_fifths_of_the_error(
    second: float, alpha: float, beta: float, floor: float
) -> None:
    found = fitted([10, second, 20, 30])
    assert (found.alpha, found.beta, found.floor) == pytest.approx((alpha, beta, floor))


def test_a_curve_that_flattens_has_no_corner() -> None:
    # 6.75 + 3.5n is 0.75 ms off at three points. 12 + 2n, through the last two, is 1.5 off at the next; but the median
    # of the first two, 9.25, is no floor of it.
    found = fitted([4, 14.5, 18, 20])
    assert (found.alpha, found.beta, found.floor) == (3.5, 6.75, 0)


def test_what_one_point_is_off_is_in_r2_and_not_in_the_line() -> None:
    # 9 + n, and 4 ms more at the last: 16 of the 29 that the points are from their mean of 12.5, squared and summed.
    found = fitted([10, 11, 12, 17])
    assert (found.alpha, found.beta, found.floor) == (1, 9, 0)
    assert found.r2 == pytest.approx(1 - 16 / 29)
    assert found.origin == "measured"
    assert found.points == points_of(10, 11, 12, 17)


def test_a_time_that_does_not_change_with_length_is_no_line() -> None:
    with pytest.raises(
        TimingError, match=r"^TTFT of 1 to 3 uncached tokens: must rise with length, and changes by 0 ms"
    ):
        fitted([7, 7, 7])


def test_a_file_says_where_it_was_measured_and_a_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    write_timing(path, fitted([10, 11, 12, 17]), device="H200", lengths=[1, 2, 3, 4])
    assert json.loads(path.read_text())["device"] == "H200"
    assert read_timing(path) == fitted([10, 11, 12, 17])
    path.write_text('{"alpha": 0.1, "beta": 5, "floor": 25}')
    assert read_timing(path) == Timing(0.1, 5.0, f"from {path}", floor=25.0)
    path.write_text('{"alpha": 0.1, "beta": 5, "floor": -1}')
    with pytest.raises(TimingError, match=r"^--timing .*timing\.json: floor -1: must be a number of ms, 0 or more"):
        read_timing(path)
