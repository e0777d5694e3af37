"""Other traffic made of one trace: which requests are in it, and when they come."""

from __future__ import annotations

import pytest

from eval.traces import Path, Request, TraceError
from eval.traces.trace import Trace
from eval.traces.variants import VARIANTS, sessions_of, variant_of

NOTHING = Path((), ())


def request(at_s: float, conversation: str, parent: str | None = None, **more: object) -> Request:
    return Request(at_s, conversation, NOTHING, NOTHING, 5, 10, parent=parent, **more)  # type: ignore[arg-type]


def parts(trace: Trace, name: str) -> list[tuple[float, str | None]]:
    return [(each.arrival_s, each.conversation) for each in variant_of(trace, name).requests]


def test_a_session_is_a_conversation_with_its_subagents_and_theirs_or_what_the_trace_names() -> None:
    turns = [request(0, "m"), request(1, "n"), request(2, "x", "m"), request(3, "y", "x"), request(4, "m")]
    assert sessions_of(turns) == [0, 1, 0, 0, 0]
    assert sessions_of([*turns, request(5, "x"), request(6, "n")]) == [0, 1, 0, 0, 0, 0, 1]
    named = [request(0, "m", session="s"), request(1, "n", session="s"), request(2, "x", "m"), request(3, "o")]
    assert sessions_of(named) == [0, 0, 0, 1]


@pytest.mark.parametrize("kind", ["agents", "chats"])
def test_the_two_halves_are_the_trace_and_share_no_session(kind: str, request: pytest.FixtureRequest) -> None:
    trace: Trace = request.getfixturevalue(kind)
    halves = [variant_of(trace, name).requests for name in ("half-1", "half-2")]
    whole = [tuple(each.context.ids) for each in trace.requests]
    contexts = [[tuple(each.context.ids) for each in half] for half in halves]
    assert sorted([*contexts[0], *contexts[1]]) == sorted(whole)
    sessions = dict(zip(whole, sessions_of(trace.requests), strict=True))
    first, second = ({sessions[ids] for ids in half} for half in contexts)
    assert not first & second
    assert len(second) - len(first) in (0, 1)
    assert all(half[0].arrival_s == 0 for half in halves)


@pytest.mark.parametrize("name", ["moved-1", "moved-2"])
def test_a_moved_session_begins_when_another_did_and_goes_on_as_it_did(agents: Trace, name: str) -> None:
    moved = variant_of(agents, name).requests

    def times(requests: list[Request]) -> dict[int, list[float]]:
        # By the first context of a session, which no other session has; the same before and after.
        found: dict[int, list[float]] = {}
        keys: dict[int, int] = {}
        for each, session in zip(requests, sessions_of(requests), strict=True):
            found.setdefault(keys.setdefault(session, each.context.ids[-1]), []).append(each.arrival_s)
        return found

    before, after = times(agents.requests), times(moved)
    assert before.keys() == after.keys()
    starts = sorted(each[0] for each in before.values())
    assert sorted(each[0] for each in after.values()) == pytest.approx([start - starts[0] for start in starts])
    assert [each[0] for each in before.values()] != [after[key][0] for key in before]
    for key, stamps in before.items():
        assert [at_s - after[key][0] for at_s in after[key]] == pytest.approx([at_s - stamps[0] for at_s in stamps])
    assert [each.arrival_s for each in moved] == sorted(each.arrival_s for each in moved)


def test_the_two_that_are_moved_are_different_and_the_same_each_time(agents: Trace) -> None:
    assert parts(agents, "moved-1") == parts(agents, "moved-1")
    assert parts(agents, "moved-1") != parts(agents, "moved-2")


def test_a_nudged_session_begins_up_to_ten_seconds_earlier_or_later_and_goes_on_as_it_did(agents: Trace) -> None:
    def stamps(trace: Trace) -> dict[int, float]:
        return {each.context.ids[-1]: each.arrival_s for each in trace.requests}  # what a context ends with is its own

    session_of = {
        each.context.ids[-1]: session
        for each, session in zip(agents.requests, sessions_of(agents.requests), strict=True)
    }
    before, drawn = stamps(agents), []
    for number in (1, 2):
        after = stamps(variant_of(agents, f"nudged-{number}"))
        assert after.keys() == before.keys()
        later: dict[int, list[float]] = {}
        for key, session in session_of.items():
            later.setdefault(session, []).append(after[key] - before[key])
        assert all(each == pytest.approx([each[0]] * len(each)) for each in later.values())
        moved = [each[0] for each in later.values()]
        assert 1 < max(moved) - min(moved) <= 20
        drawn.append(moved)
    assert drawn[0] != pytest.approx(drawn[1])


def test_slow_has_four_times_the_times_and_a_quarter_of_the_rates() -> None:
    turns = [request(0, "a", return_rate=0.2), request(3, "b"), request(9, "a", answer_s=2.0, wait_s=5.0)]
    slow = variant_of(Trace("t", "mooncake", turns), "slow").requests
    assert [each.arrival_s for each in slow] == [0, 12, 36]
    assert (slow[2].answer_s, slow[2].wait_s, slow[0].return_rate) == (8, 20, 0.05)
    assert (slow[1].answer_s, slow[1].wait_s, slow[1].return_rate) == (None, None, None)


def test_first_turns_are_one_of_each_conversation(chats: Trace) -> None:
    first = variant_of(chats, "first-turns").requests
    begun = {each.context.ids[0] for each in chats.requests}  # a conversation begins with a block of its own
    assert len(first) == len(begun)
    assert {each.context.ids[0] for each in first} == begun


def test_names_are_as_those_of_parameters(agents: Trace, chats: Trace) -> None:
    assert variant_of(agents, "slow").name == "subagents:sessions=9,seed=2,slow"
    assert variant_of(chats, "half-2").name == "chats:half-2"


def test_half_of_one_session_holds_nothing() -> None:
    one = Trace("one", "mooncake", [request(0, "a"), request(1, "a")])
    assert len(variant_of(one, "half-2").requests) == 2
    with pytest.raises(TraceError, match=r"^one:half-1: holds no request$"):
        variant_of(one, "half-1")


def test_no_variant_changes_what_it_is_made_of(agents: Trace) -> None:
    before = list(agents.requests)
    for name in VARIANTS:
        variant_of(agents, name)
    assert agents.requests == before
