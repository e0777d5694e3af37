"""Sessions with shorter contexts, so that a small machine can play them."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from eval.live.replay.load import load_from
from eval.live.replay.shrink import shrunk
from eval.traces import open_trace

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
