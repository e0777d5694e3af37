"""`python -m eval target`: a threshold that follows a percentile, simulated."""

from __future__ import annotations

import numpy as np
import pytest

from eval.__main__ import main
from eval.studies.target import serve
from eval.traces import open_trace
from radix_tlru import Config
from radix_tlru.objective.threshold import EVERY, UncachedQuantile

SYNTHETIC = "synthetic:conversations=300"


def test_a_target_ends_where_its_own_requests_put_it() -> None:
    requests = open_trace(source=SYNTHETIC).requests
    served = serve(requests, Config(target="p95"), capacity=20_000, page_size=16)
    assert served.thresholds[:1] == [2_048]
    assert len(requests) < UncachedQuantile.WINDOW  # so that nothing is forgotten, and all requests are the percentile
    last_look = len(requests) // EVERY * EVERY
    percentile = np.percentile(served.uncached[:last_look], 95, method="inverted_cdf")
    assert served.thresholds[-1] == pytest.approx(UncachedQuantile.SHARE * percentile, rel=0.12)  # tenths, whole pages
    assert served.thresholds == serve(requests, Config(target="p95"), 20_000, 16).thresholds


def test_a_pinned_threshold_is_what_simulate_finds() -> None:
    requests = open_trace(source=SYNTHETIC).requests
    served = serve(requests, Config(threshold=600), capacity=20_000, page_size=16)
    assert set(served.thresholds) == {600}
    lru = serve(requests, Config(policy="lru"), capacity=20_000, page_size=16)
    assert np.maximum(served.uncached - 600, 0).sum() < np.maximum(lru.uncached - 600, 0).sum()


def test_the_command_prints_a_table_for_each_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", SYNTHETIC, "--capacity", "20k", "40k", "--threshold", "500", "--target", "p95", "p99"]
    assert main(["target", *arguments]) == 0
    printed = capsys.readouterr().out
    assert printed.count("tokens of cache, page 1") == 2
    assert printed.count("follows p99") == 2


def test_of_a_short_trace_the_first_threshold_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["target", "--trace", "figure1", "--capacity", "100"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2:4] for line in lines if line[:1] == ["follows"]] == [["2,048", "0"]] * 3


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--target", "p42"], "--tlru-target p42: must be a percentile"),
        (["--threshold", "100"], "--tlru-threshold 100: must be more than"),
        (["--page-size", "30k"], "--page-size 30000: must be 1 to the 20000 tokens"),
    ],
)
def test_what_cannot_be_done_is_one_line(wrong: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["target", "--trace", SYNTHETIC, "--capacity", "20k", *wrong]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eval target: ")
    assert named in said
