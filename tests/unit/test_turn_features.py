"""What is known of a turn, as a row of categories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.learning.records import Supersession
from radix_tlru.learning.turn_features import NOTHING_KNOWN, SIZES, Feature, ending_of, features_of
from tests.helpers.turns import conversation

EXAMPLES: list[tuple[Feature, str, dict[float, int]]] = [
    (Feature.TURN, "turn", {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 7: 4, 8: 5, 15: 5, 16: 6, 64: 8, 127: 8, 128: 9, 10**6: 9}),
    (Feature.ANSWER, "answer_len", {0: 0, 31: 0, 32: 1, 63: 1, 64: 2, 2_047: 6, 2_048: 7, 10**6: 7}),
    # Two octaves each.
    (
        Feature.NEW,
        "new_len",
        {0: 0, 63: 0, 64: 1, 255: 1, 256: 2, 1_023: 2, 1_024: 3, 65_535: 5, 65_536: 6, 10**9: 6},
    ),
    (
        Feature.WAIT,
        "wait",
        {-1.0: 0, 0.0: 1, 3.9: 1, 4.0: 2, 7.9: 2, 8.0: 3, 60.0: 5, 4_095.0: 11, 4_096.0: 12, 1e9: 12},
    ),
    (Feature.WAIT_BEFORE, "wait_before", {-1.0: 0, 0.0: 1, 4.0: 2, 3_600.0: 11, 1e9: 12}),
    (Feature.ENDING, "ending", {0: 0, 11: 11}),
    (Feature.SUPERSEDED, "superseded", {how: how.value for how in Supersession}),
]


@pytest.mark.parametrize(("feature", "field", "examples"), EXAMPLES, ids=[field for _, field, _ in EXAMPLES])
def test_a_category_is_an_octave_of_what_it_counts(feature: Feature, field: str, examples: dict[Any, int]) -> None:
    plain = features_of(conversation())
    for value, category in examples.items():
        row = features_of(conversation(**{field: value}))
        assert row[feature] == category, value
        others = [position for position in Feature if position != feature]
        assert [row[position] for position in others] == [plain[position] for position in others]


def test_each_feature_has_a_place_and_a_number_of_categories() -> None:
    assert len(SIZES) == len(Feature) == len(NOTHING_KNOWN) == len(EXAMPLES)
    for feature, field, examples in EXAMPLES:
        if feature is not Feature.ENDING:  # which the record holds as a category
            assert max(examples.values()) == SIZES[feature] - 1, f"{field}: the last category can be reached"


@given(
    turn=st.integers(0, 10**6),
    lengths=st.tuples(*[st.integers(0, 10**8)] * 2),
    waits=st.tuples(*[st.just(-1.0) | st.floats(0.0, 1e9)] * 2),
    superseded=st.sampled_from(Supersession),
    finish=st.sampled_from([None, "stop", "tool_calls", "length", "abort"]),
    frequent=st.integers(0, 8),
)
def test_whatever_is_counted_is_one_of_the_categories(
    turn: int,
    lengths: tuple[int, int],
    waits: tuple[float, float],
    superseded: Supersession,
    finish: str | None,
    frequent: int,
) -> None:
    row = features_of(
        conversation(
            turn=turn,
            answer_len=lengths[0],
            new_len=lengths[1],
            wait=waits[0],
            wait_before=waits[1],
            superseded=superseded,
            ending=ending_of(finish, frequent),
        )
    )
    assert len(row) == len(SIZES)
    assert all(0 <= category < size for category, size in zip(row, SIZES, strict=True))


@given(st.lists(st.integers(0, 10**8), min_size=2, max_size=2).map(sorted))
def test_what_is_more_is_in_no_lower_category(values: list[int]) -> None:
    fewer, more = values
    for feature, field, _ in EXAMPLES:
        if feature not in (Feature.ENDING, Feature.SUPERSEDED):
            assert (
                features_of(conversation(**{field: fewer}))[feature]
                <= features_of(conversation(**{field: more}))[feature]
            )


@pytest.mark.parametrize(
    ("finish", "frequent", "category"),
    [
        (None, 0, 0),  # unknown
        ("stop", 0, 1),
        ("tool_calls", 0, 2),
        ("length", 0, 3),
        ("abort", 0, 0),
        (None, 1, 4),  # by its last tokens alone
        (None, 8, 11),
        ("stop", 3, 6),  # a server that parses no calls says stop of them, too
        ("tool_calls", 3, 2),  # a parser knows better than frequent tokens
        ("length", 3, 3),
    ],
)
def test_an_ending_is_named_by_the_server_or_by_frequent_last_tokens(
    finish: str | None, frequent: int, category: int
) -> None:
    assert ending_of(finish, frequent) == category
    assert category < SIZES[Feature.ENDING]
