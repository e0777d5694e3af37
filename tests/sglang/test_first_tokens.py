"""What is told of first tokens, from SGLang's own records of requests in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import ReqState
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats

from radix_tlru.sglang.requests.first_tokens import FirstToken, FirstTokens, dump_first_tokens, load_first_tokens


class InFlight(dict[str, ReqState]):
    """A TokenizerManager's ``rid_to_state``, which counts how often a request is looked up."""

    looks = 0

    def get(self, *name: Any) -> Any:
        self.looks += 1
        return super().get(*name)


class Requests:
    """Records as a TokenizerManager keeps them, on a clock of our own (s)."""

    def __init__(self, replicas: int = 1) -> None:
        self.in_flight = InFlight()
        self.watch = FirstTokens(self.in_flight, replicas)

    def come(self, name: str, at: float, *, streams: bool = True) -> tuple[FirstToken, ...]:
        times = APIServerReqTimeStats()
        times.set_created_time(at)
        self.in_flight[name] = ReqState([], False, asyncio.Event(), GenerateReqInput(rid=name), times)
        return self.watch.count_arrival(name, streams=streams)

    def answer(self, name: str, at: float, *, sent_after: float = 0.0, finished: bool = True) -> None:
        times = self.in_flight[name].time_stats
        times.set_first_token_time(at)
        times.set_response_sent_to_client_time(at + sent_after)
        if finished:
            del self.in_flight[name]


@pytest.mark.parametrize("finished", [True, False])
def test_an_uncontended_request_is_reported_with_the_next_one_from_arrival_to_first_token(
    finished: bool,
) -> None:
    requests = Requests()
    assert requests.come("a", 10.0) == ()
    requests.answer("a", 10.080, sent_after=0.002, finished=finished)
    assert requests.come("b", 11.0) == (FirstToken("a", pytest.approx(82.0)),)


def test_nothing_is_told_of_those_that_waited_beside_others() -> None:
    requests = Requests()
    requests.come("a", 10.0)
    assert requests.come("b", 10.01) == ()
    requests.answer("a", 10.08)
    assert requests.come("c", 10.09) == ()  # b still waits
    requests.answer("b", 10.2)
    requests.answer("c", 10.3)
    assert requests.come("d", 11.0) == ()
    requests.answer("d", 11.05)
    assert requests.come("e", 12.0) == (FirstToken("d", pytest.approx(50.0)),)


def test_those_that_are_decoding_do_not_make_a_crowd() -> None:
    requests = Requests()
    requests.come("long answer", 1.0)
    requests.answer("long answer", 1.1, finished=False)
    requests.come("a", 10.0)
    requests.answer("a", 10.06)
    assert requests.come("b", 11.0)[-1] == FirstToken("a", pytest.approx(60.0))


def test_each_of_many_that_wait_looks_at_one_other_when_it_comes() -> None:
    requests = Requests()
    for number in range(1_000):
        requests.come(f"{number}", float(number))
    assert requests.in_flight.looks == 999


def test_a_request_that_waits_long_delays_reports_and_answered_ones_are_forgotten() -> None:
    """100 others come and are answered before the first one is."""
    requests = Requests()
    requests.come("first", 0.0)
    for number in range(100):
        assert requests.come(f"{number}", 1.0 + number) == ()
        requests.answer(f"{number}", 1.5 + number)
    assert requests.in_flight.looks <= 2 * 100
    assert len(requests.watch._waiting) == 3, "the first one, and the last two of the others"
    requests.answer("first", 200.0)
    assert requests.come("alone", 300.0) == ()
    requests.answer("alone", 300.25)
    assert requests.come("next", 400.0) == (FirstToken("alone", pytest.approx(250.0)),)


def test_nothing_is_told_of_what_was_not_streamed_or_given_up() -> None:
    requests = Requests()
    requests.come("whole", 1.0, streams=False)
    requests.answer("whole", 3.0)
    assert requests.come("given up", 4.0) == ()
    del requests.in_flight["given up"]
    requests.come("given up", 4.5)  # and asked again
    requests.answer("given up", 4.7)
    assert requests.come("a", 5.0) == (FirstToken("given up", pytest.approx(200.0)),)
    requests.answer("a", 5.1)
    assert requests.come("b", 6.0) == (FirstToken("a", pytest.approx(100.0)),)


def test_who_was_refused_does_not_wait_though_nobody_has_fetched_the_answer_yet() -> None:
    requests = Requests()
    requests.come("refused", 1.0)
    requests.in_flight["refused"].time_stats.set_finished_time(1.1)
    assert requests.come("a", 2.0) == ()
    requests.answer("a", 2.1)
    assert requests.come("b", 3.0) == (FirstToken("a", pytest.approx(100.0)),)


def test_each_replica_has_a_chance_to_be_told() -> None:
    requests = Requests(replicas=2)
    told = []
    for number in range(4):
        told.append([first.request for first in requests.come(f"{number}", float(number))])
        requests.answer(f"{number}", number + 0.1)
    assert told == [[], ["0"], ["0", "1"], ["1", "2"]]


def test_what_is_told_travels_as_one_string() -> None:
    told = (FirstToken("a", 82.125), FirstToken('"odd" name', 7.0))
    text = dump_first_tokens(told)
    assert isinstance(text, str)
    assert load_first_tokens(text) == told
    assert dump_first_tokens(()) is None
    assert load_first_tokens(None) == ()
