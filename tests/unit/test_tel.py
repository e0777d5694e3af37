"""The arithmetic, with numbers a reader can check."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.policy.tel import excess, keep_within_budget, marginal_cost, round_up

tokens = st.integers(0, 200_000)


def test_a_history_of_2000_at_threshold_600_and_next_prompt_100_keeps_1500() -> None:
    assert keep_within_budget(2000, 100, 600) == 1500
    assert keep_within_budget(2000, 100, 600, page_size=64) == 24 * 64 == 1536


def test_a_history_that_meets_the_threshold_uncached_keeps_nothing() -> None:
    assert keep_within_budget(500, 100, 600) == 0
    assert keep_within_budget(501, 100, 600) == 1


@given(history=tokens, next_prompt=tokens, threshold=tokens, page_size=st.sampled_from([1, 16, 64, 512]))
def test_the_budget_is_the_least_whole_number_of_pages_without_excess(
    history: int, next_prompt: int, threshold: int, page_size: int
) -> None:
    keep = keep_within_budget(history, next_prompt, threshold, page_size)
    assert keep % page_size == 0
    assert excess(history - keep + next_prompt, threshold) == 0
    if keep:
        assert excess(history - (keep - page_size) + next_prompt, threshold) > 0


@given(st.integers(0, 10**6), st.sampled_from([1, 16, 64, 512]))
def test_rounding_up_adds_less_than_a_page(count: int, page_size: int) -> None:
    assert count <= round_up(count, page_size) < count + page_size


@pytest.mark.parametrize(
    ("weight", "safe", "protected"),
    [(0.0, 0.0, 0.5), (0.2, 0.1, 0.5), (1.0, 0.5, 0.5)],
)
def test_the_weight_is_what_a_safe_token_costs(weight: float, safe: float, protected: float) -> None:
    assert marginal_cost(0.5, 0.0, weight) == pytest.approx(safe)
    assert marginal_cost(0.5, 1.0, weight) == pytest.approx(protected)
