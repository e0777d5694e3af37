"""`python -m eval gpu`, whole, on the servers that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.__main__ import main
from eval.live.replay.rows import Folder

pytestmark = [pytest.mark.live, pytest.mark.long]  # of `eval replay`, whose servers and arms it starts


def test_the_gpu_command_runs_whole_on_the_cpu_platform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "chat-mix:conversations=8,arrival_span_s=1,wait_median_s=0.1,answer_range=4/8,max_turns=3"
    given = ["--extra=--schedule-policy lpm", "--load=--until 60", "--device", "cpu"]
    words = [*given, "--pool", "6000", "--repeats", "1", "--lengths", "256", "4096", "--users", "4"]
    status = main(["gpu", *words, "--trace", small, "--decode-trace", small, "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert status in (0, 1), printed.err  # 1: eight conversations are too few to hold decoding to one per cent
    results = (tmp_path / "results.md").read_text()
    for text in (
        "TTFT = ",
        "ξ = ",
        "| TTFT p95 (ms) |",
        "decode throughput: ",
        "inter-token latency: ",
        "--radix-eviction",
    ):
        assert text in results
    assert "- gpu: none: --device cpu" in results
    assert list(Folder(tmp_path / "tail").run.arms) == ["stock lru", "stock tlru", "etlru"]
    assert (status == 0) == (": MORE than " not in results)
    facts = Folder(tmp_path / "tail").facts("etlru")
    assert facts is not None
    assert f"ξ = {facts.threshold:,} tokens" in results
