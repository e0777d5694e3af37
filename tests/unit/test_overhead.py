"""What a first token waits for other than prefill, as uncontended requests tell."""

from __future__ import annotations

import math

import pytest

from radix_tlru.objective.overhead import FirstToken, Overhead


def uncontended(overhead: Overhead, name: str, prefill_ms: float, other_ms: float) -> None:
    overhead.count_prefill([name], prefill_ms)
    overhead.count_first_token(FirstToken(name, prefill_ms + other_ms))


def test_the_overhead_is_the_median_wait_of_uncontended_requests_without_prefills() -> None:
    overhead = Overhead()
    for number in range(Overhead.ENOUGH):
        assert overhead.ms() is None
        uncontended(overhead, f"{number}", 50.0 * number, 10.0 + number)
    assert overhead.ms() == pytest.approx(13.5)  # of 10, 11, … 17
    for number in range(Overhead.WINDOW):  # what was before is forgotten
        uncontended(overhead, f"later {number}", 50.0, 30.0)
    assert overhead.ms() == pytest.approx(30.0)
    assert len(overhead) == Overhead.WINDOW


def test_of_a_prompt_in_chunks_all_are_prefills() -> None:
    overhead = Overhead()
    for number in range(Overhead.ENOUGH):
        overhead.count_prefill([f"{number}"], 40.0, unfinished=f"{number}")
        overhead.count_prefill([f"{number}"], 30.0)
        overhead.count_first_token(FirstToken(f"{number}", 78.0))
    assert overhead.ms() == pytest.approx(8.0)


def test_a_prompt_that_goes_on_is_remembered_though_many_came_since_it_began() -> None:
    overhead = Overhead()
    overhead.count_prefill(["long"], 40.0, unfinished="long")
    for name in (*map(str, range(Overhead._UNREPORTED - 1)), "long", "one more"):
        overhead.count_prefill([name], 40.0)
    overhead.count_first_token(FirstToken("long", 85.0))
    overhead.count_first_token(FirstToken("0", 47.0))  # the least recent
    assert list(overhead._recent) == [5.0]


def test_what_cannot_be_told_from_prefills_is_no_overhead() -> None:
    overhead = Overhead()
    overhead.count_prefill(["a"], 40.0, unfinished="a")
    overhead.count_prefill(["a", "b"], 30.0)  # a shared batch: who waited for whom?
    overhead.count_prefill(["c"], math.nan)  # of unknown time
    overhead.count_prefill(["d"], 40.0)
    for name, ms in (("a", 100.0), ("b", 100.0), ("c", 100.0), ("d", 39.0), ("never prefilled here", 50.0)):
        overhead.count_first_token(FirstToken(name, ms))
    assert len(overhead) == 0
    uncontended(overhead, "e", 40.0, 5.0)
    overhead.count_first_token(FirstToken("e", 45.0))  # reported again
    assert len(overhead) == 1
    uncontended(overhead, "f", 40.0, 0.0)
    assert len(overhead) == 2


def test_a_prompt_of_an_id_that_was_used_before_has_its_own_prefills_alone() -> None:
    """A client gives all requests of a conversation one id. Of the first none told, as others waited beside it."""
    overhead = Overhead()
    overhead.count_prefill(["chat"], 30.0)
    overhead.count_prefill(["chat"], 40.0, unfinished="chat")
    overhead.count_prefill(["other"], 10.0)
    overhead.count_prefill(["chat"], 20.0)
    overhead.count_first_token(FirstToken("chat", 95.0))
    assert list(overhead._recent) == [35.0]


def test_prompts_that_nobody_tells_of_are_forgotten() -> None:
    overhead = Overhead()
    for number in range(10_000):
        overhead.count_prefill([f"{number}"], 40.0)
    assert len(overhead._prefill_ms) == Overhead._UNREPORTED
    overhead.count_first_token(FirstToken("9999", 45.0))
    overhead.count_first_token(FirstToken("0", 45.0))
    assert len(overhead) == 1
