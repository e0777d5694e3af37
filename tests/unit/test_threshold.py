"""The threshold in force: it follows what is measured, in whole pages and within bounds, and not for little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.objective.threshold import Threshold
from tests.helpers.examples import examples


def test_a_threshold_moves_only_for_more_than_a_tenth() -> None:
    threshold = Threshold(2_048, next_prompt_estimate=200, page_size=1)
    assert not threshold.follow(2_250)
    assert not threshold.follow(1_850)
    assert threshold.tokens == 2_048
    assert threshold.follow(1_000.7)
    assert threshold.tokens == 1_000
    assert not threshold.follow(1_100), "a tenth"
    assert threshold.follow(1_100.1)


@pytest.mark.parametrize(("wanted", "tokens"), [(1_000.0, 992), (1_008.0 - 1e-7, 1_008), (1_007.9, 992)])
def test_a_threshold_is_rounded_down_to_a_page_but_for_errors_of_rounding(wanted: float, tokens: int) -> None:
    threshold = Threshold(2_048, next_prompt_estimate=200, page_size=16)
    assert threshold.follow(wanted)
    assert threshold.tokens == tokens


@settings(max_examples=examples(200))
@given(
    wanted=st.lists(st.floats(-1e9, 1e12), max_size=20),
    estimate=st.integers(0, 5_000),
    page_size=st.sampled_from([1, 16, 64]),
)
def test_a_threshold_stays_above_the_next_prompt_in_whole_pages_and_below_any_context(
    wanted: list[float], estimate: int, page_size: int
) -> None:
    threshold = Threshold(max(2_048, estimate + 1), estimate, page_size)
    for tokens in wanted:
        before = threshold.tokens
        assert threshold.follow(tokens) == (threshold.tokens != before)
        assert estimate < threshold.tokens <= Threshold.HIGHEST
        assert threshold.tokens % page_size == 0 or threshold.tokens == before


def test_a_threshold_that_would_move_by_less_than_a_page_stays() -> None:
    threshold = Threshold(64, next_prompt_estimate=0, page_size=64)
    assert not threshold.follow(100.0)
    assert threshold.tokens == 64


def test_a_threshold_is_at_most_a_million_tokens() -> None:
    threshold = Threshold(2_048, next_prompt_estimate=200, page_size=1)
    assert threshold.follow(1e12)
    assert threshold.tokens == 1_048_576
