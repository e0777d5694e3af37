"""What a live replay waits for: the answer before, the call that started a subagent, the last subagent."""

from __future__ import annotations

import pytest

from eval.traces import Path, Request, open_trace
from eval.traces.sessions import Start, starts

NOTHING = Path((), ())


def request(at_s: float, conversation: str | None, parent: str | None = None, **more: float | int) -> Request:
    told = {"answer_s": 2.0} | more
    output = int(told.pop("output_tokens", 10))
    return Request(at_s, conversation, NOTHING, NOTHING, 5, output, parent=parent, **told)  # type: ignore[arg-type]


def test_a_call_waits_for_the_end_of_the_answer_before() -> None:
    # The answer ends at 2 s; the tool took 5 s.
    assert starts([request(0, "a"), request(1, "b"), request(7, "a")]) == [
        Start(None, 0.0),
        Start(None, 1.0),
        Start(0, 5.0),
    ]


def test_a_recorded_wait_goes_before_the_clock() -> None:
    assert starts([request(0, "a"), request(7, "a", wait_s=4.5)])[1] == Start(0, 4.5)


def test_an_answer_without_an_end_lasts_as_its_tokens_do_and_not_into_the_next_call() -> None:
    turns = [Request(0, "a", NOTHING, NOTHING, 5, 100), Request(7, "a", NOTHING, NOTHING, 5, 1_000), request(9, "a")]
    # 100 tokens of 20 ms are 2 s; 1,000 would be 20, but the next call comes after 2.
    assert starts(turns) == [Start(None, 0.0), Start(0, 5.0), Start(1, 0.0)]
    assert starts(turns, token_s=0.05)[1] == Start(0, 2.0)


def test_subagents_start_after_the_call_that_started_them_and_hold_their_parent_back() -> None:
    session = [
        *(request(0, "m"), request(3, "x", "m"), request(3, "y", "m"), request(8, "x", "m"), request(20, "y", "m")),
        request(23, "m"),
    ]
    assert starts(session) == [
        *(Start(None, 0.0), Start(0, 1.0), Start(0, 1.0), Start(1, 3.0), Start(2, 15.0)),
        Start(4, 1.0, (0, 3)),  # the last subagent's answer ends at 22 s, the other's at 10, its own at 2
    ]


def test_a_call_waits_once_for_a_subagent_it_waited_for_and_never_for_a_running_one() -> None:
    session = [
        *(request(0, "m"), request(3, "x", "m"), request(6, "m"), request(7, "x", "m", answer_s=9.0)),
        *(request(10, "m"), request(20, "m")),
    ]
    assert starts(session)[2] == Start(1, 1.0, (0,))  # x had answered at 5 s
    assert starts(session)[4] == Start(2, 2.0)  # x answers until 16 s
    assert starts(session)[5] == Start(3, 4.0, (4,))


def test_requests_of_no_conversation_come_by_the_clock() -> None:
    assert starts([request(5, None), request(7, None)]) == [Start(None, 0.0), Start(None, 2.0)]
    assert starts([]) == []


@pytest.mark.parametrize("source", ["subagents:sessions=20", "compaction:sessions=5", "agents:runs=50"])
def test_every_request_starts_once_after_one_before_it(source: str) -> None:
    requests = open_trace(source).requests
    found = starts(requests)
    assert len(found) == len(requests)
    for number, start in enumerate(found):
        assert start.wait_s >= 0.0
        assert start.after is None or start.after < number
    # Played on a server as fast as the recorded one, every request comes when it came.
    ends: list[float] = []
    for each, start in zip(requests, found, strict=True):
        at_s = (requests[0].arrival_s if start.after is None else ends[start.after]) + start.wait_s
        if each.answer_s is not None:
            assert at_s == pytest.approx(each.arrival_s, abs=1e-6)
        ends.append(at_s + (each.answer_s or 0.0))
