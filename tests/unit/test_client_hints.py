"""Hints in the words of other systems: what each field becomes, what is bounded, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.hints.clients import FIELDS, Request, asks_for_prefill, read_header, read_hints, scaled_priority
from radix_tlru.hints.schema import HIGHEST, LONGEST_S, MOST_RANGES, MOST_TOKENS, NEUTRAL, Hints, HintsError, Range

PROMPT = 1_000
ASKED = Request(prompt_len=PROMPT)


def retention(highest: int | None = None, priority: int | None = None, **fields: Any) -> tuple[Range, ...]:
    """The ranges that a request of 1,000 tokens with these fields has; none if it has no hints."""
    hints = read_hints(fields, ASKED._replace(priority=priority), highest)
    return () if hints is None else hints.retention


def test_a_request_without_a_field_has_no_hints() -> None:
    assert read_hints({}, ASKED) is None
    assert read_hints({"tlru": {}}, ASKED) == Hints()


def test_our_own_object_is_read_as_it_is() -> None:
    hints = read_hints({"tlru": {"conversation_ends": True}}, ASKED)
    assert hints == Hints(conversation_ends=True)


def test_what_is_said_may_be_as_much_as_its_bounds() -> None:
    said = {"next_prompt_tokens": MOST_TOKENS, "returns_in_s": LONGEST_S, "conversation_ends": False}
    assert Hints.parse(said) == Hints(next_prompt_tokens=MOST_TOKENS, returns_in_s=LONGEST_S)
    last = {"start": MOST_TOKENS - 1, "end": MOST_TOKENS, "priority": HIGHEST, "duration_s": LONGEST_S}
    assert retention(retention=[last] * MOST_RANGES) == (Range(*last.values()),) * MOST_RANGES
    for beyond in ([last] * (MOST_RANGES + 1), [{**last, "end": MOST_TOKENS + 1}]):
        with pytest.raises(HintsError, match=r"^retention"):
            retention(retention=beyond)


def test_where_claims_are_not_believed_all_else_is() -> None:
    said = Hints(False, 300, 30.0, (Range(0, 64, HIGHEST, 60.0), Range(64, None, 0, 60.0)))
    whole, kept, low = Range(0, None, NEUTRAL, 60.0), Range(0, 64, NEUTRAL, 60.0), Range(64, None, 0, 60.0)
    assert said.without_claims() == Hints(False, 300, None, (whole, kept, low))


def test_a_plain_priority_counts_only_where_the_server_says_so() -> None:
    assert retention(priority=7) == ()
    assert retention(highest=10, priority=7) == (Range(0, None, 80, LONGEST_S),)  # 35 + 0.7 · 65 = 80.5, to even
    assert retention(highest=10, priority=0) == ()
    assert retention(highest=10, priority=-10) == (Range(0, None, 0, LONGEST_S),)


@given(st.integers(), st.integers(), st.integers(1, 10**6))
def test_plain_priorities_keep_their_order_and_their_bounds(one: int, other: int, highest: int) -> None:
    low, high = (scaled_priority(priority, highest) for priority in sorted((one, other)))
    assert 0 <= low <= high <= HIGHEST
    assert scaled_priority(0, highest) == NEUTRAL
    assert scaled_priority(highest, highest) == HIGHEST


def test_seconds_of_retention_are_how_long_a_priority_holds() -> None:
    assert retention(retention_seconds=90) == (Range(0, None, HIGHEST, 90.0),)
    assert retention(highest=10, retention_seconds=90) == (Range(0, None, HIGHEST, 90.0),), "no priority was given"
    assert retention(highest=10, priority=10, retention_seconds=90) == (Range(0, None, HIGHEST, 90.0),)
    assert retention(highest=10, priority=-10, retention_seconds=90) == (Range(0, None, 0, 90.0),)
    assert retention(highest=10, priority=0, retention_seconds=90) == ()
    assert retention(priority=0, retention_seconds=90) == (Range(0, None, HIGHEST, 90.0),), "which says nothing there"


@pytest.mark.parametrize("seconds", [0, 3_600.5, 10**400])
def test_seconds_of_retention_are_bounded_to_an_hour(seconds: float) -> None:
    assert retention(retention_seconds=seconds) == (Range(0, None, HIGHEST, LONGEST_S),)


def test_ranges_are_read_in_the_words_of_tensorrt_or_in_ours() -> None:
    theirs = {"token_start": 0, "token_end": 512, "priority": 80, "duration_ms": 30_000}
    ours = {"start": 512, "priority": 10}
    assert retention(retention=[theirs, ours]) == (Range(0, 512, 80, 30.0), Range(512, None, 10, LONGEST_S))
    for said, read in (
        ({"token_start": 512}, Range(512, None, 80, LONGEST_S)),
        ({"token_end": 512}, Range(0, 512, 80, LONGEST_S)),
        ({"duration_ms": 500}, Range(0, None, 80, 0.5)),
        ({"duration_s": 500}, Range(0, None, 80, 500.0)),
    ):
        assert retention(retention=[{"priority": 80, **said}]) == (read,), "by one of their words alone"


def test_a_retention_config_speaks_of_the_prompt_and_then_of_the_answer() -> None:
    config = {
        "token_range_retention_configs": [
            {"token_start": 0, "token_end": 100, "priority": 100},
            {"token_start": 100, "token_end": None, "priority": 60, "duration_ms": 500},
            {"token_start": 2_000, "token_end": 3_000, "priority": 60},  # beyond the prompt: of nothing
            {"token_start": PROMPT, "priority": 60},
        ],
        "decode_retention_priority": 5,
        "decode_duration_ms": 1e12,
        "transfer_mode": "DRAM",
        "directory": "/blocks",
    }
    assert retention(kv_cache_retention_config=config) == (
        Range(0, 100, 100, LONGEST_S),
        Range(100, PROMPT, 60, 0.5),
        Range(PROMPT, None, 5, LONGEST_S),
    )
    assert retention(kv_cache_retention_config={"token_range_retention_configs": None}) == ()


def test_a_priority_of_dynamo_counts_as_a_plain_one_does() -> None:
    said = {"agent_hints": {"priority": 5, "strict_priority": 1, "osl": 1_024, "speculative_prefill": True}}
    assert retention(nvext=said) == ()
    assert retention(highest=5, nvext=said) == (Range(0, None, HIGHEST, LONGEST_S),)
    assert retention(highest=5, priority=-5, nvext=said) == (Range(0, None, 0, LONGEST_S),), "SGLang's own goes before"
    assert retention(highest=5, nvext={"annotations": []}) == ()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"agent_hints": {"speculative_prefill": True}}, True),
        ({"agent_hints": {"speculative_prefill": False}}, False),
        ({"agent_hints": {"priority": 5}}, False),
        ({"agent_hints": None}, False),
        ({"annotations": []}, False),
    ],
)
def test_a_hint_of_dynamo_asks_for_what_comes_next(said: dict[str, Any], wanted: bool) -> None:
    assert read_hints({"nvext": said}, ASKED) is None
    assert asks_for_prefill({"nvext": said}) is wanted
    assert not asks_for_prefill({"tlru": {}})


def test_ranges_go_before_what_is_said_of_the_whole_context() -> None:
    found = retention(highest=1, priority=1, tlru={"retention": [{"end": 64, "priority": 0}]})
    assert found == (Range(0, 64, 0, LONGEST_S), Range(0, None, HIGHEST, LONGEST_S))


RANGE = {"token_start": 0, "token_end": 8, "priority": 50}
CONFIG = "kv_cache_retention_config"
CONFIGS = f"{CONFIG}.token_range_retention_configs"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"retention_seconds": -1}, "retention_seconds -1: must be a number of seconds, 0 or more"),
        ({"retention_seconds": float("inf")}, "retention_seconds Infinity: must be"),
        ({"retention_seconds": True}, "retention_seconds true: must be"),
        ({"retention": {}}, "retention {}: must be a list of up to 16 ranges"),
        (
            {"retention": [{**RANGE, "priority": 101}]},
            "retention[0].priority 101: must be a whole number from 0 to 100",
        ),
        ({"retention": [{"start": -1, "priority": 1}]}, "retention[0].start -1: must be"),
        ({"retention": [{**RANGE, "start": 1}]}, "retention[0] {"),
        ({CONFIG: []}, f"{CONFIG} []: must be an object with any of token_range_retention_configs"),
        ({CONFIG: {"decode_priority": 5}}, f"{CONFIG}.decode_priority 5: must be left out; known are"),
        ({CONFIG: {"decode_retention_priority": 2.5}}, f"{CONFIG}.decode_retention_priority 2.5: must be"),
        (
            {CONFIG: {"decode_duration_ms": 0}},
            f"{CONFIG}.decode_duration_ms 0: must be a number of milliseconds above 0",
        ),
        ({CONFIG: {"decode_duration_ms": 1.1e12}}, f"{CONFIG}.decode_duration_ms 1100000000000.0: must be"),
        ({CONFIG: {"token_range_retention_configs": 7}}, f"{CONFIGS} 7: must be a list of up to 16 ranges"),
        (
            {CONFIG: {"token_range_retention_configs": [{**RANGE, "token_end": 0}]}},
            f"{CONFIGS}[0].token_end 0: must be a whole number of tokens above token_start",
        ),
        ({"nvext": 3}, "nvext 3: must be an object"),
        ({"nvext": {"agent_hints": []}}, "nvext.agent_hints []: must be an object"),
        ({"nvext": {"agent_hints": {"priority": "high"}}}, 'nvext.agent_hints.priority "high": must be a whole number'),
        ({"nvext": {"agent_hints": {"osl": -1}}}, "nvext.agent_hints.osl -1: must be a whole number of tokens"),
        ({"nvext": {"agent_hints": {"speculative_prefill": 1}}}, "nvext.agent_hints.speculative_prefill 1: must be"),
        (
            {"tlru": {"retention": [{"priority": 1}]}, "retention": [{"priority": 1}]},
            'retention [{"priority": 1}]: must be left out beside tlru.retention',
        ),
    ],
)
def test_what_is_said_wrongly_is_named_by_its_field(said: dict[str, Any], message: str) -> None:
    with pytest.raises(HintsError) as error:
        read_hints(said, ASKED)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


NUMBERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tlru.next_prompt_tokens": lambda value: {"tlru": {"next_prompt_tokens": value}},
    "tlru.returns_in_s": lambda value: {"tlru": {"returns_in_s": value}},
    **{
        f"tlru.retention[0].{field}": lambda value, field=field: {
            "tlru": {"retention": [{"priority": 1, field: value}]}
        }
        for field in Range._fields
    },
    "retention_seconds": lambda value: {"retention_seconds": value},
    **{
        f"{CONFIGS}[0].{field}": lambda value, field=field: {
            CONFIG: {"token_range_retention_configs": [{**RANGE, field: value}]}
        }
        for field in (*RANGE, "duration_ms")
    },
    f"{CONFIG}.decode_retention_priority": lambda value: {CONFIG: {"decode_retention_priority": value}},
    f"{CONFIG}.decode_duration_ms": lambda value: {CONFIG: {"decode_duration_ms": value}},
    "nvext.agent_hints.osl": lambda value: {"nvext": {"agent_hints": {"osl": value}}},
}


@pytest.mark.parametrize("wrong", [True, "9", [9], -1, float("nan")])
@pytest.mark.parametrize("field", NUMBERS)
def test_what_is_no_number_or_below_zero_is_refused_in_every_field_that_takes_a_number(field: str, wrong: Any) -> None:
    with pytest.raises(HintsError) as error:
        read_hints(NUMBERS[field](wrong), ASKED)
    assert str(error.value).startswith(f"{field} {json.dumps(wrong)}: must be a")


def test_a_header_has_the_fields_that_a_body_would_have() -> None:
    said = {"tlru": {"returns_in_s": 20}, "retention_seconds": 60, "nvext": None}
    fields = read_header(json.dumps(said))
    assert fields == {"tlru": {"returns_in_s": 20}, "retention_seconds": 60}
    assert retention(**fields) == retention(retention_seconds=60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'text "": must be a JSON object with any of tlru, retention_seconds'),
        ("retention_seconds=60", 'text "retention_seconds=60": must be a JSON object'),
        ("[1]", 'text "[1]": must be a JSON object'),
        ("[" * 100_000, 'text "[[[['),
        ('{"tlru": {}}, {"tlru": {}}', "text"),  # as a proxy joins a header that came twice
        ('{"retention_secs": 60}', "retention_secs 60: must be left out; known are tlru, retention_seconds"),
        ('{"priority": 5}', "priority 5: must be left out; known are"),
    ],
)
def test_a_header_that_is_something_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(HintsError) as error:
        read_header(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


NAMES = (
    *(*Hints.__slots__, *Range._fields, "token_start", "token_end", "duration_ms", "agent_hints", "osl"),
    *("token_range_retention_configs", "decode_retention_priority", "decode_duration_ms", "speculative_prefill"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 100) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.none() | st.integers(), st.none() | st.integers(1))
def test_whatever_is_sent_is_read_or_refused(said: Any, priority: int | None, highest: int | None) -> None:
    hints: Hints | None = None
    refused = ""
    try:
        hints = read_hints(said, ASKED._replace(priority=priority), highest)
    except HintsError as error:
        refused = str(error)
    assert not refused or refused.startswith(FIELDS)
    assert hints is None or Hints.loads(hints.dumps()) == hints


@given(st.text() | JSON.map(json.dumps) | st.dictionaries(st.sampled_from(FIELDS), JSON).map(json.dumps))
def test_whatever_a_header_has_is_read_or_refused(text: str) -> None:
    fields: dict[str, Any] = {}
    refused = ""
    try:
        fields = read_header(text)
    except HintsError as error:
        refused = str(error)
    assert not refused or refused.startswith("text ") or "must be left out" in refused
    assert set(fields) <= set(FIELDS)
