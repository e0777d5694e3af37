"""Sessions with shorter contexts, and closer together, so that a small machine can play them in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from eval.live.replay.load import gathered, load_from, until
from eval.live.replay.shrink import shrunk
from eval.traces import open_trace
from eval.traces.request import Request

KINDS = ["subagents:sessions=3", "agents:runs=20", "synthetic:conversations=8"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [1, 7, 64])
def test_who_shares_what_stays_and_lengths_are_divided(kind: str, by: int) -> None:
    before = open_trace(f"{kind},seed=2").requests[:60]
    after = shrunk(before, by)
    for old, new in zip(before, after, strict=True):
        assert (new.arrival_s, new.conversation, new.parent) == (old.arrival_s, old.conversation, old.parent)
        assert new.prompt_tokens == -(-old.prompt_tokens // by)
        assert len(new.context) == -(-len(old.context) // by)
        assert all(left < right for left, right in pairwise((0, *new.context.ends)))
    for (first, one), (second, other) in combinations(zip(before, after, strict=True), 2):
        assert one.context.common(other.prompt) == -(-first.context.common(second.prompt) // by)


def test_a_session_is_played_with_the_same_calls_and_waits() -> None:
    requests = open_trace("subagents:sessions=3,seed=2").requests
    whole, short = load_from(requests), load_from(shrunk(requests, 64))
    assert [len(one.turns) for one in short.conversations] == [len(one.turns) for one in whole.conversations]
    assert short.requests == len(requests)
    for left, right in zip(short.conversations, whole.conversations, strict=True):
        assert left.start_s == right.start_s
        assert [turn.after for turn in left.turns] == [turn.after for turn in right.turns]


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_closer_together_have_the_same_calls_and_keep_their_own_times(kind: str) -> None:
    requests = open_trace(f"{kind},seed=2").requests
    closer = gathered(requests, 30.0, seed=1)
    assert closer == gathered(requests, 30.0, seed=1) != gathered(requests, 30.0, seed=2)
    assert [each.arrival_s for each in closer] == sorted(each.arrival_s for each in closer)

    def by_session(played: Sequence[Request]) -> dict[str | None, list[Request]]:
        found: dict[str | None, list[Request]] = {}
        for each in played:
            found.setdefault(each.session or each.conversation, []).append(each)
        return found

    before, after = by_session(requests), by_session(closer)
    assert before.keys() == after.keys()
    for session, calls in after.items():
        assert 0.0 <= calls[0].arrival_s <= 30.0
        for old, new in zip(before[session], calls, strict=True):
            assert new.context is old.context
            assert new.arrival_s - calls[0].arrival_s == pytest.approx(old.arrival_s - before[session][0].arrival_s)


def test_the_first_seconds_are_those_from_the_first_request_on() -> None:
    requests = open_trace("synthetic:conversations=8,seed=2").requests
    first = until(requests, 100.0)
    assert 0 < len(first) < len(requests)
    assert first[-1].arrival_s - requests[0].arrival_s < 100.0 <= requests[len(first)].arrival_s - requests[0].arrival_s
