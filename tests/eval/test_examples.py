"""The example that readers start from runs, and evicts what it says."""

from __future__ import annotations

import runpy

import pytest


def test_the_first_example_evicts_what_is_free_before_what_is_old(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("eval.examples.eviction", run_name="__main__")
    # 2,000 + 100 - 600 = 1,500 tokens must stay of each; when nothing is free any more, the older leaf goes.
    assert capsys.readouterr().out.splitlines() == [
        "of leaf 1, tokens 1,500 to 2,000: tel_safe",
        "of leaf 2, tokens 1,500 to 2,000: tel_safe",
        "of leaf 3, tokens 1,000 to 1,500: lru",
    ]
