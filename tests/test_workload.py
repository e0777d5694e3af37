"""The generated workload and the figures made from its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from eval.client import RequestResult
from eval.summary import (
    NoResultError,
    Percentiles,
    comparison_table,
    median_sentence,
    relative_change,
    summarise,
    tail_sentence,
    write_rows,
)
from eval.workload import ChatMix, Conversation, Turn, generate, request_count, token_count

MIX = ChatMix(conversations=50, arrival_span_s=10.0)


def test_the_same_seed_gives_the_same_conversations() -> None:
    assert generate(MIX, seed=7) == generate(MIX, seed=7)
    assert generate(MIX, seed=7) != generate(MIX, seed=8)


def test_a_larger_mix_starts_with_the_conversations_of_the_smaller_one() -> None:
    larger = ChatMix(conversations=60, arrival_span_s=10.0)
    assert generate(larger, seed=7)[:50] == generate(MIX, seed=7)


def test_all_lengths_lie_in_the_ranges_of_the_mix() -> None:
    conversations = generate(MIX, seed=7)
    for conversation in conversations:
        first, *later = conversation.turns
        assert 0.0 <= conversation.start_s <= 10.0
        assert len(conversation.turns) <= 6
        assert 200 <= len(first.new_ids) <= 3000
        assert first.wait_s == 0.0
        assert all(20 <= len(turn.new_ids) <= 200 and turn.wait_s > 0.0 for turn in later)
        assert all(8 <= turn.output_tokens <= 48 for turn in conversation.turns)
        assert all(0 <= token < 256 for turn in conversation.turns for token in turn.new_ids)
    assert request_count(conversations) == sum(len(conversation.turns) for conversation in conversations)
    assert len({len(conversation.turns) for conversation in conversations}) > 3, "turn counts do not vary"


def test_turns_are_due_one_wait_after_the_other() -> None:
    turns = (Turn((1,), 8, wait_s=0.0), Turn((2,), 8, wait_s=1.5), Turn((3,), 8, wait_s=2.0))
    assert Conversation(0, start_s=4.0, turns=turns).times() == [4.0, 5.5, 7.5]


def test_tokens_of_a_workload_count_prompts_and_answers() -> None:
    (conversation,) = generate(ChatMix(conversations=1, arrival_span_s=0.0, max_turns=1), seed=7)
    (turn,) = conversation.turns
    assert token_count([conversation]) == len(turn.new_ids) + turn.output_tokens


def result(
    turn: int, prompt: int, cached: int, ttft_ms: float | None = 10.0, error: str | None = None
) -> RequestResult:
    return RequestResult(
        conversation=0,
        turn=turn,
        prompt_tokens=prompt,
        cached_tokens=cached,
        ttft_ms=ttft_ms,
        e2e_ms=50.0,
        output_ids=(1, 2),
        error=error,
    )


# Uncached: 1000, 200, 700, 600. With a threshold of 600 the first and the third violate, by 400 and 100 tokens.
ROWS = [
    result(turn=0, prompt=1000, cached=0, ttft_ms=40.0),
    result(turn=1, prompt=1200, cached=1000, ttft_ms=10.0),
    result(turn=2, prompt=1500, cached=800, ttft_ms=30.0),
    result(turn=3, prompt=1600, cached=1000, ttft_ms=20.0),
]


def test_a_summary_counts_what_exceeds_the_threshold() -> None:
    summary = summarise("stock lru", ROWS, threshold=600)
    assert summary.requests == 4
    assert summary.errors == 0
    assert summary.violations == 2  # exactly 600 still meets the objective
    assert summary.violation_share == 0.5
    assert summary.tel == 400 + 100
    assert (summary.later_violations, summary.later_tel) == (1, 100)
    assert summary.hit_ratio == pytest.approx(2800 / 5300)
    assert summary.uncached.p50 == 650  # between 600 and 700
    assert summary.ttft_ms.p50 == 25


def test_percentiles_are_interpolated() -> None:
    percentiles = Percentiles.of(range(101))
    assert (percentiles.p50, percentiles.p90, percentiles.p95, percentiles.p99) == (50, 90, 95, 99)


def test_failed_requests_are_counted_and_left_out_of_every_figure() -> None:
    failed = result(turn=4, prompt=9000, cached=0, ttft_ms=None, error="HTTP 500")
    with_failure = summarise("stock lru", [*ROWS, failed], threshold=600)
    assert with_failure.errors == 1
    assert with_failure.tel == summarise("stock lru", ROWS, threshold=600).tel
    with pytest.raises(NoResultError, match="ours: all 1 requests failed; the first error: HTTP 500"):
        summarise("ours", [failed], threshold=600)


def test_the_table_fits_100_columns_and_shows_every_figure() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(comparison_table([summarise("stock lru", ROWS, threshold=600)], threshold=600))
    text = captured.get()
    assert "…" not in text, "a cell was cut off"
    for figure in ("stock lru", "650", "25", "2 (50%)", "500", "52.8%", "violations", "TTFT (ms)"):
        assert figure in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_sentence_says_what_the_median_paid() -> None:
    baseline = summarise("stock lru", ROWS, threshold=600)
    ours = summarise("ours", [result(turn=1, prompt=2000, cached=700, ttft_ms=50.0)], threshold=600)
    sentence = median_sentence(ours, baseline)
    assert sentence.startswith("The median paid for it: p50 is 1,300 uncached tokens against 650 (+100%)")
    assert "50 ms against 25 ms (+100%)" in sentence
    assert "gained too" in median_sentence(baseline, ours)
    assert "is unchanged" in median_sentence(ours, ours)


def test_the_sentence_about_the_tail_sets_first_turns_apart() -> None:
    baseline = summarise("stock lru", ROWS, threshold=600)
    ours = summarise("ours", [ROWS[0], *[result(turn=2, prompt=1500, cached=875)] * 2], threshold=600)
    # 400 of TEL is the first turn in both; the later turns add 100 with stock lru, 2 x 25 with ours.
    sentence = tail_sentence(ours, baseline)
    assert "TEL of ours against stock lru is -10%" in sentence  # 450 against 500
    assert "it is 50 against 100 tokens (-50%), in 2 against 1 violations" in sentence


def test_a_change_from_nothing_has_no_percentage() -> None:
    assert relative_change(15, 10) == "+50%"
    assert relative_change(999, 1000) == "+0%"
    assert relative_change(5, 0) == "+5 from 0"


def test_every_request_becomes_a_row_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "demo" / "arm.jsonl"
    write_rows(path, ROWS)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["uncached_tokens"] for row in rows] == [1000, 200, 700, 600]
    assert rows[0]["output_ids"] == [1, 2]
