"""Mooncake's files: blocks of the input, sessions and agents beside them, ids of content or of prefixes."""

from __future__ import annotations

import statistics
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eval.traces import open_trace
from eval.traces.facts import facts
from tests.helpers.paths import MOONCAKE, SHARED_DATA
from tests.helpers.trace_files import ids, refusal, said, write_lines

FIRST = {"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [7, 8, 9]}
SECOND = {"timestamp": 1500, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 10]}


def test_full_blocks_of_the_input_are_cacheable_and_the_answer_is_not(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "blocks.jsonl", FIRST, SECOND))
    assert (trace.name, trace.format, trace.skipped) == ("blocks", "mooncake", 0)
    first, second = trace.requests
    # 1,200 tokens are two full blocks of 512 and 176 tokens of a third.
    assert list(first.prompt.ends) == [512, 1024]
    assert first.context is first.prompt
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens, first.conversation) == (0.0, 1200, 30, None)
    assert second.arrival_s == 1.5
    assert second.prompt.common(first.prompt) == 1024


def test_the_block_size_is_told_from_the_lengths_and_can_be_given(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 50, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    source = write_lines(tmp_path / "t.jsonl", line)
    # 50 tokens are 3 full blocks of 16 and a part of a fourth.
    for trace in (open_trace(source), open_trace(source, block_size=16)):
        assert list(trace.requests[0].prompt.ends) == [16, 32, 48]
    assert "blocks of 16 tokens, told from the lengths" in said(open_trace(source), "assumed")
    assert refusal(source, block_size=32) == (
        "t.jsonl:1: hash_ids: 4 ids, but 50 tokens are 2 blocks of 32 (--block-size)"
    )


@pytest.mark.parametrize("size", [16, 64, 128, 512, 1024])
def test_any_usual_block_size_is_told(tmp_path: Path, size: int) -> None:
    rows = [
        {"timestamp": n, "input_length": tokens, "output_length": 1, "hash_ids": list(range(-(-tokens // size)))}
        for n, tokens in enumerate((size * 20 + 3, size * 7 + 1, size * 90))
    ]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [len(request.prompt) for request in trace.requests] == [size * 20, size * 7, size * 90]


@pytest.mark.parametrize("session", [{}, {"session_id": "a"}])
def test_a_block_size_that_rows_name_is_theirs(tmp_path: Path, session: dict[str, Any]) -> None:
    # As the converter of SGLang's logs writes them. 96 tokens in two blocks would be blocks of 64 by their lengths.
    row = session | {"timestamp": 0, "input_length": 96, "output_length": 1, "hash_ids": [5, 6], "block_size": 48}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", row, row | {"timestamp": 9}))
    assert [len(request.prompt) for request in trace.requests] == [96, 96]
    mixed = write_lines(tmp_path / "m.jsonl", row, row | {"timestamp": 9, "block_size": 64})
    assert refusal(mixed) == "m.jsonl:2: block_size: 64 tokens, must be that of the trace, 48 (--block-size)"


def test_the_block_size_is_what_most_rows_fit_and_the_row_that_does_not_is_named(tmp_path: Path) -> None:
    # 750 tokens are 46 full blocks of 16 and a part of a 47th.
    row = {"input_length": 750, "output_length": 1, "hash_ids": list(range(47))}
    rows = [row | {"timestamp": n} | ({"hash_ids": []} if n == 50 else {}) for n in range(100)]
    source = write_lines(tmp_path / "t.jsonl", *rows)
    assert refusal(source) == "t.jsonl:51: hash_ids: 0 ids, but 750 tokens are 47 blocks of 16 (--block-size)"
    trace = open_trace(source, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (99, 1)
    assert len(trace.requests[0].prompt) == 46 * 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 2000, "input_len', "t.jsonl:3: not JSON: Input data was truncated"),
        (SECOND | {"output_length": -1}, "t.jsonl:3: output_length: Expected `int` >= 0, got -1"),
        (SECOND | {"input_length": "12"}, "t.jsonl:3: input_length: Expected `int`, got `str` '12'"),
        (SECOND | {"timestamp": -5}, "t.jsonl:3: timestamp: Expected `float` >= 0.0, got -5"),
        (SECOND | {"hash_ids": [7, None]}, "t.jsonl:3: hash_ids[1]: Expected `int | str`, got `null`"),
        (SECOND | {"hash_ids": [7]}, "t.jsonl:3: hash_ids: 1 ids, but 1100 tokens are 3 blocks of 512 (--block-size)"),
        (
            SECOND | {"hash_ids": [7, 8, 10, 11]},
            "t.jsonl:3: hash_ids: 4 ids, but 1100 tokens are 3 blocks of 512 (--block-size)",
        ),
        (
            '{"timestamp": NaN, "input_length": 5}',
            "t.jsonl:3: timestamp: NaN, must be a number, or null where it may be missing",
        ),
        ({"timestamp": 2000}, "t.jsonl:3: Object missing required field `input_length`"),
        ([1, 2], "t.jsonl:3: Expected `object`, got `array`"),
    ],
)
def test_a_bad_line_is_named_with_its_field_or_counted(tmp_path: Path, line: Any, message: str) -> None:
    source = write_lines(tmp_path / "t.jsonl", FIRST, SECOND, line, SECOND | {"timestamp": 1501})
    assert refusal(source) == message
    trace = open_trace(source, skip_bad=True)
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.5, 1.501]
    assert (trace.skipped, trace.skip_reasons) == (1, (message,))


def test_rows_out_of_order_are_sorted_and_that_is_said(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", SECOND, FIRST, SECOND | {"timestamp": 700}))
    assert [request.arrival_s for request in trace.requests] == [0.0, 0.7, 1.5]
    assert said(trace, "sorted") == "1 of 3 rows came before the row above them: put in order of arrival"
    assert said(open_trace(write_lines(tmp_path / "u.jsonl", FIRST, SECOND)), "sorted") == ""


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("µs", 10**6), ("ns", 10**9)])
def test_times_since_1970_may_be_in_any_unit_and_another_than_ms_is_said(
    tmp_path: Path, unit: str, per_second: int
) -> None:
    rows = [FIRST | {"timestamp": (1_760_000_000 + 60 * n) * per_second} for n in range(5)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.arrival_s for request in trace.requests] == [0.0, 60.0, 120.0, 180.0, 240.0]
    assert (f"times are in {unit} since 1970" in said(trace, "assumed")) == (unit != "ms")


@pytest.mark.parametrize(
    ("times", "arrivals"),
    [
        (("0", "1500"), [0.0, 1.5]),
        (("1753780607550317897", "1753780610550317897"), [0.0, 3.0]),  # ns, as LMBench writes them
        (("2025-10-14T07:50:58Z", "2025-10-14T09:51:03+02:00"), [0.0, 5.0]),
    ],
)
def test_times_may_be_texts(tmp_path: Path, times: tuple[str, str], arrivals: list[float]) -> None:
    rows = [FIRST | {"timestamp": time} for time in times]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.arrival_s for request in trace.requests] == pytest.approx(arrivals)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("soon", "t.jsonl:1: timestamp: 'soon' is no time, such as 2025-11-25T10:00:00Z"),
        ("-5", "t.jsonl:1: timestamp: '-5', must be a number, 0 to 2**63"),
        ("nan", "t.jsonl:1: timestamp: 'nan', must be a number, 0 to 2**63"),
    ],
)
def test_a_text_that_is_no_time_is_named(tmp_path: Path, time: str, message: str) -> None:
    assert refusal(write_lines(tmp_path / "t.jsonl", FIRST | {"timestamp": time})) == message


def test_milliseconds_of_a_month_since_the_start_are_not_taken_for_seconds_since_1970(tmp_path: Path) -> None:
    day_ms = 86_400_000
    rows = [FIRST | {"timestamp": day * day_ms} for day in (0, 15, 30)]  # 15 days are 1.3e9 ms
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert [request.arrival_s for request in trace.requests] == [0.0, 15 * 86_400.0, 30 * 86_400.0]


def test_ids_of_prefixes_stay_apart_or_equal_as_they_are(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", FIRST, SECOND, FIRST | {"timestamp": 9}))
    first, third, second = trace.requests
    assert ids(first) == ids(second) == ids(third)  # ids 9 and 10 are of blocks that are not full
    assert said(trace, "chained") == ""


def test_ids_of_content_become_ids_of_prefixes_and_that_is_said(tmp_path: Path) -> None:
    # Block 8 stands behind 7, at the start, and behind itself: three different prefixes.
    row = {"timestamp": 0, "input_length": 1024, "output_length": 1}
    contents = [[7, 8], [8, 7], [8, 8], [7, 8]]
    rows = [row | {"timestamp": n, "hash_ids": blocks} for n, blocks in enumerate(contents)]
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    a, b, c, d = (request.prompt for request in trace.requests)
    assert (a.common(d), b.common(c), a.common(b), a.common(c)) == (1024, 512, 0, 0)
    assert len({*a.ids, *b.ids, *c.ids}) == 5
    assert said(trace, "chained") == (
        "ids stand for the content of blocks (3 stood behind a second prefix): made ids of prefixes"
    )


def test_ids_may_be_texts(tmp_path: Path) -> None:
    rows = [FIRST | {"hash_ids": ["a", "b", "c"]}, SECOND | {"hash_ids": ["a", "b", "d"]}]
    first, second = open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests
    assert second.prompt.common(first.prompt) == 1024


def test_agent_rows_say_whose_they_are_and_how_their_answers_ended(tmp_path: Path) -> None:
    told = [
        {"session": 3, "agent": 0, "stop": "tool_use", "input_types": ["text"], "model": "opus"},
        {"session": 3, "agent": 2, "stop": "end_turn", "input_types": ["text"]},
        {"session": 3, "agent": 0, "stop": "", "input_types": ["tool_result"]},
        {"session": 3, "agent": 0, "stop": "max_tokens", "input_types": ["text", "thinking", "tool_result"]},
    ]
    rows = [SECOND | {"timestamp": 1000 * n} | each for n, each in enumerate(told)]
    requests = open_trace(write_lines(tmp_path / "t.jsonl", *rows)).requests
    assert [request.stop for request in requests] == ["tool_calls", "stop", None, "length"]
    assert [request.input for request in requests] == ["user", "user", "tool", None]
    assert [request.conversation for request in requests] == ["3/0", "3/2", "3/0", "3/0"]
    assert [request.parent for request in requests] == [None, "3/0", None, None]
    assert {request.session for request in requests} == {"3"}
    assert requests[0].model == "opus"


def test_a_limit_stops_before_what_comes_later_is_looked_at(tmp_path: Path) -> None:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", FIRST, SECOND, "nonsense"), limit=2)
    assert (len(trace.requests), trace.skipped) == (2, 0)


def test_a_trace_of_a_million_requests_fits_into_four_gigabytes(tmp_path: Path) -> None:
    # 4 GB are 4,000 bytes a request. Each session has 100 calls, with 135 blocks at first and 2 more in each call.
    rows, sessions = 1_000, 10
    source = tmp_path / "t.jsonl"
    with source.open("w") as file:
        for number in range(rows):
            first, blocks = number % sessions * 1_000_000, 135 + number // sessions * 2
            told = ", ".join(map(str, range(first, first + blocks)))
            file.write(f'{{"timestamp": {number}, "input_length": {512 * blocks}, "output_length": 3, ')
            file.write(f'"hash_ids": [{told}]}}\n')
    tracemalloc.start()
    trace = open_trace(str(source))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert statistics.mean(len(request.prompt.ids) for request in trace.requests) == 234
    assert peak / rows < 4_000


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"{MOONCAKE} is not there")
def test_the_real_trace() -> None:
    trace = open_trace(str(MOONCAKE))
    known = facts(trace.requests)
    assert (trace.format, trace.skipped, known.requests) == ("mooncake", 0, 12_031)
    assert said(trace, "chained") == said(trace, "sorted") == ""
    assert round(statistics.mean(known.prompt_tokens)) == 12_035
    assert round(statistics.mean(known.output_tokens)) == 343
    assert known.duration_s == pytest.approx(59 * 60, abs=30)
    assert known.hit_ratio == pytest.approx(0.37, abs=0.005)  # 36.6 % of the blocks, of which the last are not full
    assert statistics.median(known.waits_s) == pytest.approx(123, abs=5)


DEV = SHARED_DATA / "claude_code_dev.jsonl.gz"


@pytest.mark.skipif(not DEV.exists(), reason=f"{DEV} is not there")
def test_the_real_agent_sessions() -> None:
    trace = open_trace(str(DEV))
    known = facts(trace.requests)
    assert (trace.format, known.requests, known.sessions) == ("mooncake", 22_698, 355)
    # Every session has a main agent; subagents make 167 calls.
    assert (known.conversations, known.subagents, known.subagent_requests) == (371, 16, 167)
    assert (known.stops["tool_calls"], known.stops["stop"], known.stops["not told"]) == (19_334, 1_232, 2_132)
    assert known.hit_ratio == pytest.approx(0.96, abs=0.01)
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(trace.requests))
