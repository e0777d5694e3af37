"""Two traces in one server: which requests are in a mix, when they come, and that they have nothing in common."""

from __future__ import annotations

import pytest

from eval.traces.mixes import MIXES, SYMMETRIC, mix_of
from eval.traces.request import Request
from eval.traces.trace import Trace
from eval.traces.variants import sessions_of

Shape = tuple[int, int, int, int]


def times(requests: list[Request], begin_s: float = 0.0) -> list[float]:
    """When each comes if the first one does at ``begin_s``."""
    return [begin_s + each.arrival_s - requests[0].arrival_s for each in requests]


def shape(request: Request) -> Shape:
    """What of a request no mix changes."""
    return len(request.prompt), len(request.context), request.prompt_tokens, request.output_tokens


def units(requests: list[Request]) -> set[int]:
    return {unit for request in requests for path in (request.prompt, request.context) for unit in path.ids}


def parted(first: Trace, second: Trace, how: str) -> tuple[list[Request], list[Request]]:
    """The requests of a mix that are of the first trace, and those of the second, whose units are above."""
    above = 1 + max(units(first.requests))
    mixed = mix_of(first, second, how).requests
    assert [each.arrival_s for each in mixed] == sorted(each.arrival_s for each in mixed)
    return [each for each in mixed if not is_above(each, above)], [each for each in mixed if is_above(each, above)]


def is_above(request: Request, unit: int) -> bool:
    found = {each >= unit for each in request.context.ids}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("how", MIXES)
def test_all_requests_of_both_are_there_in_their_order_and_share_nothing(agents: Trace, chats: Trace, how: str) -> None:
    assert units(agents.requests) & units(chats.requests)
    for first, second in ((agents, chats), (chats, agents), (agents, agents)):
        parts = parted(first, second, how)
        assert not units(parts[0]) & units(parts[1])
        for part, trace in zip(parts, (first, second), strict=True):
            assert [*map(shape, part)] == [*map(shape, trace.requests)]
            assert sessions_of(part) == sessions_of(trace.requests)
        together = sessions_of(mix_of(first, second, how).requests)
        assert len({*together}) == sum(len({*sessions_of(each.requests)}) for each in (first, second))


def test_then_the_second_begins_a_minute_after_the_first_has_ended(agents: Trace, chats: Trace) -> None:
    assert agents.requests[0].arrival_s > 0  # a mix begins at 0
    for own, other in ((agents, chats), (chats, agents)):
        first, second = parted(own, other, "then")
        assert [each.arrival_s for each in first] == times(own.requests)
        began_s = first[-1].arrival_s + 60
        assert [each.arrival_s for each in second] == pytest.approx(times(other.requests, began_s))


def test_amid_the_first_begins_when_half_of_the_other_has_come(agents: Trace, chats: Trace) -> None:
    for own, other in ((agents, chats), (chats, agents)):
        first, second = parted(own, other, "amid")
        assert [each.arrival_s for each in second] == times(other.requests)
        began_s = second[len(second) // 2].arrival_s
        assert [each.arrival_s for each in first] == pytest.approx(times(own.requests, began_s))


def test_with_the_one_that_takes_less_time_is_stretched_to_the_time_of_the_other(agents: Trace, chats: Trace) -> None:
    whole, shorter = times(agents.requests), times(chats.requests)
    assert shorter[-1] < whole[-1]
    for first, second in ((agents, chats), (chats, agents)):
        parts = parted(first, second, SYMMETRIC)
        kept, stretched = parts if first is agents else parts[::-1]
        assert [each.arrival_s for each in kept] == whole
        assert [each.arrival_s for each in stretched] == pytest.approx([whole[-1] / shorter[-1] * at for at in shorter])


def test_a_trace_of_one_moment_can_be_mixed_in(agents: Trace, chats: Trace) -> None:
    moment = Trace("moment", "mooncake", chats.requests[:1])
    _, second = parted(agents, moment, SYMMETRIC)
    assert [each.arrival_s for each in second] == [0]


def test_a_mix_is_named_as_it_is_read(agents: Trace, chats: Trace) -> None:
    assert mix_of(chats, agents, "then").name == "chats then subagents:sessions=9,seed=2"
