"""`python -m eval restart`: requests served by a learner that begins with nothing, and by one that has a state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.traces import open_trace
from tests.helpers.block_traces import block_lists, percentile, write_blocks

TRACE = "agents:runs=100"
SIZES = ["--capacity", "50k", "--threshold", "2048", "--page-size", "16"]


def rows(out: str) -> list[list[str]]:
    """Of each row w, what it begins with, and the last figures: mean, p50, p95, requests over ξ, TEL."""
    lines = [line.split() for line in out.splitlines()]
    return [[line[0], *line[-5:]] for line in lines if line and line[0] in ("1", "own")]


def test_who_begins_with_nothing_is_a_new_server_and_who_has_learned_is_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = open_trace(TRACE).requests
    taught = len(requests) // 2
    assert main(["restart", "--trace", TRACE, "--turns", str(taught), "--requests", "100", *SIZES]) == 0
    out = capsys.readouterr().out
    fresh, again, guarded, _ = rows(out)
    assert re.search(r"nothing +0 requests", out)  # at w = 1 it is not lru that evicts, from the first request on
    cache = simulated_cache("etlru", 50_000, threshold=2048, median_weight=1.0, page_size=16)
    following = requests[taught : taught + 100]
    uncached = [len(request.prompt) - cache.request(request) for request in following]
    over = [tokens - 2048 for tokens in uncached if tokens > 2048]
    figures = sum(uncached) / len(uncached), percentile(uncached, 0.5), percentile(uncached, 0.95), len(over), sum(over)
    assert fresh[1:] == [f"{figure:,.0f}" for figure in figures]
    assert fresh[1:] != again[1:]
    assert fresh[0] != guarded[0]


def test_a_state_of_another_trace_is_learned_from_that(capsys: pytest.CaptureFixture[str]) -> None:
    other = ["--taught-by", "synthetic:conversations=100", "--turns", "200", "--requests", "200"]
    assert main(["restart", "--trace", TRACE, *other, *SIZES]) == 0
    assert len(rows(capsys.readouterr().out)) == 4


def test_the_other_trace_is_read_as_flags_say(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_blocks(tmp_path / "other.jsonl", block_lists(41, requests=60))
    first, rest = file.read_text().split("\n", 1)
    file.write_text(f"{first}\nno record\n{rest}")
    taught = ["--taught-by", str(file), "--turns", "60", "--requests", "20", *SIZES]
    assert main(["restart", "--trace", TRACE, *taught]) == 2
    assert "(--skip-bad leaves such records out)" in capsys.readouterr().err
    assert main(["restart", "--trace", TRACE, *taught, "--skip-bad", "--format", "mooncake"]) == 0
    printed = capsys.readouterr()
    assert len(rows(printed.out)) == 4
    assert "1 records skipped, the first: " in printed.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--turns", "100000"], "--turns 100000: must be at most"),
        (["--turns", "0"], "--turns 0: must be"),
        (["--taught-by", "nowhere"], "nowhere: no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", "--trace", TRACE, *flags, *SIZES]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
