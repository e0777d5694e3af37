"""ξ where no prefill was seen that takes as long as the objective."""

from __future__ import annotations

import math
import random

import pytest

from radix_tlru.objective.calibration import EVERY, Calibration, PrefillBatch
from radix_tlru.objective.prefill_latency import Line
from radix_tlru.objective.threshold import Threshold


@pytest.mark.parametrize(
    ("groups", "objective_ms", "tokens", "line"),
    [
        # 300 tokens take 1 ms more: a line through that has 54,100 tokens. In proportion to 400 they are fewer.
        ([(100, 20, 40), (400, 21, 40)], 200.0, 400 * 200 / 21, Line(21 / 400, 0.0)),
        # Four times the largest are believed: 1,000 tokens by the line, though 740 in proportion.
        ([(100, 100, 40), (400, 130, 40)], 190.0, 1_000, Line(0.1, 90.0)),
        # By the line 2,100 tokens, in proportion 923: it is four times 400.
        ([(100, 100, 40), (400, 130, 40)], 300.0, 1_600, Line(300 / 1_600, 0.0)),
        # Two are not the largest, three are.
        ([(100, 20, 40), (400, 21, 40), (6_400, 21.5, 2)], 200.0, 400 * 200 / 21, Line(21 / 400, 0.0)),
        ([(100, 20, 40), (400, 21, 40), (6_400, 21.5, 3)], 200.0, 6_400 * 200 / 21.5, Line(21.5 / 6_400, 0.0)),
        # 200 and 400 tokens have one usual time, and count as 400.
        ([(50, 20.9, 40), (200, 21, 40), (400, 21, 40)], 200.0, 400 * 200 / 21, Line(21 / 400, 0.0)),
        # In chunks of a busy server: the line from 32,768 to 8,192 tokens has 4,096 in 200 ms, and 2,731 in none.
        ([(8_192, 800, 40), (32_768, 4_400, 40)], 200.0, 2_048, Line(800 / 8_192, 0.0)),
        # Where all are full chunks, all that is known is that.
        ([(8_192, 800, 40)], 200.0, 2_048, Line(800 / 8_192, 0.0)),
        # The other way round there is a time without tokens: 8 ms + 0.1 ms a token.
        ([(1_000, 108, 40), (4_000, 408, 40)], 58.0, 500, Line(0.1, 8.0)),
    ],
)
def test_far_from_what_was_seen_times_are_taken_to_be_in_proportion(
    groups: list[tuple[int, float, int]], objective_ms: float, tokens: float, line: Line
) -> None:
    calibration = Calibration()
    for size, ms, count in groups:
        for number in range(count):
            calibration.count_batch(PrefillBatch((f"{size} {number}",), None, size), ms)
    estimate = calibration.estimate(objective_ms)
    assert estimate is not None
    assert estimate.tokens == pytest.approx(tokens, rel=0.005)  # of 200 tokens some are late by so much
    assert estimate.line.alpha == pytest.approx(line.alpha, rel=0.005)
    assert estimate.line.beta == pytest.approx(line.beta)


def test_where_all_prefills_take_as_long_as_the_weights_to_read_chance_does_not_move_the_threshold() -> None:
    """28 ms, or 0.05 ms a token if that is more, and all are of up to 400 tokens: 200 ms are 4,000."""
    threshold, moves, rng, calibration = Threshold(2_048, 200, page_size=1), 0, random.Random(4), Calibration()
    late = math.exp(1.645 * 0.05)  # 19 of 20 take at most so many times that
    for number in range(100 * EVERY):
        tokens = rng.randrange(10, 401)
        ms = max(28.0, 0.05 * tokens) * math.exp(rng.gauss(0.0, 0.05))
        calibration.count_batch(PrefillBatch((f"{number}",), None, tokens), ms)
        if number % EVERY == EVERY - 1 and (estimate := calibration.estimate(late * 200.0)) is not None:
            assert 2_000 < estimate.tokens < 4_000
            moves += threshold.follow(estimate.tokens)
    assert threshold.tokens == pytest.approx(2_857, rel=0.1)  # in proportion to 400 tokens in 28 ms
    assert moves < 10
