"""`python -m eval features`: what the gap closed is without each feature of a turn."""

from __future__ import annotations

import pytest

from eval.__main__ import main
from radix_tlru.learning import conversations
from radix_tlru.learning.turn_features import Feature, features_of


def test_each_feature_is_left_out_once_and_it_makes_a_difference_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = "parallel-tools:sessions=12,span_s=1200"
    sizes = ["--capacity", "200k", "--threshold", "2048", "--page-size", "64", "--jobs", "2"]
    assert main(["features", "--trace", trace, *sizes]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.rpartition("  ")[0].strip(): line.split()[-2] for line in lines if "%" in line}
    assert [name.upper().replace(" ", "_") for name in rows][1:] == [feature.name for feature in Feature]
    assert len(set(rows.values())) > 2, "it makes a difference what is left out"
    assert vars(conversations)["features_of"] is features_of


def test_a_trace_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", "--capacity", "1M"]) == 2
    assert "--trace" in capsys.readouterr().err
