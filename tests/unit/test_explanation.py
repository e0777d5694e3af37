"""The five lines of `radix-tlru explain`, word for word, and the command that prints them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

import pytest

from radix_tlru.cli import main
from radix_tlru.tools.explanation import Eviction, Explanation, lines
from tests.helpers.answering import answering

AT = "01:00:00"


@pytest.fixture(autouse=True)
def greenwich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 3,600 s after the epoch it is one o'clock."""
    monkeypatch.setattr(time, "localtime", time.gmtime)


TAKEN = Eviction(
    first_at=3_600.0,
    last_at=3_600.4,
    cuts=1,
    tokens=500,
    largest=500,
    needed_for="the prefill of 900 tokens of request b",
    cost=0.0125,
    return_rate=0.025,
    exceed_probability=0.5,
    median_weight=0.05,
)
SERVED = Explanation(
    rid="a",
    finished_at=3_600.0,
    prompt=2_000,
    cached=1_300,
    new=200,
    threshold=600,
    policy="etlru",
    silent_s=1_234.0,
    lru_cached=1_800,
    eviction=TAKEN,
)


def test_what_is_told_of_a_request_that_lacked_what_was_evicted_in_one_cut() -> None:
    assert [*lines(SERVED)] == [
        f"request: a prefilled 700 of 2,000 prompt tokens, 100 beyond ξ = 600; done at {AT} under etlru",
        "lacked:  500 tokens that were cached 1,234 s before; 200 were new",
        f"evicted: 500 tokens, {AT} for the prefill of 900 tokens of request b",
        "price:   0.013 a token of them, the lowest of all then: λ 0.025, P(over ξ) 0.50, w 0.05",
        "lru:     would have had 1,800 tokens of it cached, 500 more (by a shadow cache)",
    ]


def test_what_is_told_of_several_cuts_of_what_other_conversations_had() -> None:
    eviction = replace(TAKEN, last_at=3_605.0, cuts=3, largest=300, exceed_probability=None, median_weight=1.0)
    told = replace(SERVED, silent_s=-1.0, threshold=700, lru_cached=1_200, eviction=eviction)
    assert [*lines(told)] == [
        f"request: a prefilled 700 of 2,000 prompt tokens, within ξ = 700; done at {AT} under etlru",
        "lacked:  500 tokens that were cached in other conversations; 200 were new",
        f"evicted: 500 tokens, {AT} to 01:00:05 in 3 cuts, 300 of them for the prefill of 900 tokens of request b",
        "price:   0.013 a token of them, the lowest of all then: λ 0.025, P(over ξ) –, w 1",
        "lru:     would have had 1,200 tokens of it cached, 100 fewer (by a shadow cache)",
    ]
    assert "cached 0 s before" in [*lines(replace(told, silent_s=0.0))][1], "in the same moment, by the same"


@pytest.mark.parametrize("new", [700, 800])
def test_a_request_of_which_all_was_new_lacked_nothing(new: int) -> None:
    """Tokens that no turn had may be cached all the same, as they were asked for no token."""
    told = [*lines(replace(SERVED, new=new, lru_cached=None, eviction=None))]
    assert told[1:] == [
        "lacked:  nothing that was cached before; 700 tokens were new",
        "evicted: nothing",
        "price:   –",
        "lru:     not known yet (its shadow cache is behind)",
    ]


def test_the_command_prints_them_to_whom_the_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"/tlru/explain": (200, json.dumps(asdict(SERVED)))}, key="sesame") as url:
        assert main(["explain", url, "a", "--api-key", "sesame"]) == 0
        assert capsys.readouterr().out.splitlines() == [*lines(SERVED)]
        assert main(["explain", url, "a", "--api-key", "mellon"]) == 2
    assert "the server wants its key" in capsys.readouterr().err
