"""Which candidate had the least TEL: another is preferred if it is ahead by more than chance."""

from __future__ import annotations

from random import Random

from radix_tlru.learning.least_tel import LeastTel

THRESHOLD, PROMPT = 600, 5_000  # tokens


def count(rule: LeastTel, *excess: int) -> str:
    """A turn that costs each candidate so much TEL."""
    rule.count_turn(PROMPT, [THRESHOLD + tokens for tokens in excess], THRESHOLD)
    return rule.preferred


def test_the_first_is_preferred_until_another_leads_by_a_standard_deviation() -> None:
    rule = LeastTel(["tlru", "lru"])
    # A turn by which one is ahead by d tokens has a standard deviation of d: a lead of d is not more than that.
    assert count(rule, 100, 0) == "tlru"
    assert count(rule, 100, 0) == "lru", "200 tokens ahead, of a deviation of 141"
    assert count(rule, 0, 100) == "lru", "100 ahead"
    assert count(rule, 0, 200) == "lru", "100 behind, of 245"
    assert count(rule, 0, 300) == "tlru", "400 behind, of 387"


def test_turns_within_the_threshold_and_those_that_cost_all_the_same_decide_nothing() -> None:
    rule = LeastTel(["tlru", "lru"])
    for _ in range(1_000):
        rule.count_turn(PROMPT, [THRESHOLD, 0], THRESHOLD)
        assert count(rule, 70, 70) == "tlru"


def test_a_deviation_is_that_of_the_difference_however_much_both_cost() -> None:
    rule = LeastTel(["tlru", "lru"])
    for _ in range(100):
        assert count(rule, 1_000, 1_000) == "tlru"
    assert count(rule, 1_100, 1_000) == "tlru"
    assert count(rule, 1_100, 1_000) == "lru", "200 tokens ahead, of a deviation of 141"


def test_of_many_the_best_is_preferred() -> None:
    rule, random = LeastTel(["a", "b", "c"]), Random(0)
    for _ in range(300):
        count(rule, *(random.randrange(mean) for mean in (200, 120, 160)))
    assert rule.preferred == "b"


def test_what_a_turn_cost_2000_turns_ago_counts_half() -> None:
    rule = LeastTel(["tlru", "lru"])
    assert [count(rule, 1_000, 0) for _ in range(4)][-1] == "lru"
    for _ in range(1_999):  # turns that cost nobody anything pass all the same
        rule.count_turn(PROMPT, [0, 0], THRESHOLD)
    # 4 · 1,000 tokens are 2,000 by now; their squares are 2,000,000.
    assert count(rule, 0, 2_000) == "lru", "even"
    assert count(rule, 0, 2_000) == "lru", "2,000 behind, of √(2,000,000 + 2 · 4,000,000) = 3,162"
    assert count(rule, 0, 2_000) == "tlru", "4,000 behind, of √(2,000,000 + 3 · 4,000,000) = 3,742"


def test_what_a_turn_cost_counts_half_after_2000_turns_whether_or_not_others_cost_something_meanwhile() -> None:
    rule = LeastTel(["tlru", "lru"])
    assert [count(rule, 1_000, 0) for _ in range(4)][-1] == "lru"
    for number in range(2_000):
        count(rule, number % 100 // 99, number % 100 // 99)  # a token in one turn of 100
    # 4 · 1,000 tokens are 2,000 by now.
    assert [count(rule, 0, 1_000) for _ in range(2)][-1] == "lru", "even"


def test_the_square_of_a_deviation_of_8000_turns_ago_counts_a_sixteenth() -> None:
    rule = LeastTel(["tlru", "lru"])
    assert [count(rule, 1_000, 0) for _ in range(4)][-1] == "lru"
    for _ in range(7_999):
        rule.count_turn(PROMPT, [0, 0], THRESHOLD)
    # 4 · 1,000 tokens are 250 by now; their squares are 250,000.
    assert count(rule, 0, 1_000) == "lru", "750 behind, of √(250,000 + 1,000,000) = 1,118"
    assert count(rule, 0, 1_000) == "tlru", "1,750 behind, of √(250,000 + 2 · 1,000,000) = 1,500"
