"""PrefixIndex known by fingerprints: those that go on with one find it, and nobody else does."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from radix_tlru.learning.hazards import Hazards

from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import Checkpoint, Fingerprint, PrefixIndex
from radix_tlru.learning.records import Turn

STEP = 16  # the shortest


def fingerprint_of(tokens: Sequence[int]) -> Fingerprint:
    """Exact: no two beginnings that differ have one number."""
    return lambda start, end, above: hash((above, tuple(tokens[start:end])))


def rungs_of(rung: Checkpoint | None) -> list[int]:
    depths = []
    while rung is not None:
        depths.append(rung.depth)
        rung = rung.above
    return depths[::-1]


@given(st.integers(0, 10**8))
def test_the_last_rung_is_less_than_a_step_from_the_end_and_few_lead_there(tokens: int) -> None:
    depths = rungs_of(PrefixIndex().last_checkpoint(lambda start, end, above: end, tokens))
    assert 0 <= tokens - max(depths, default=0) < STEP
    assert len(depths) <= 12 + tokens // 10**6


# PrefixIndex that begin alike: each goes on with an earlier one from somewhere.
contexts = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 300)), min_size=1, max_size=12
)


def grown(steps: list[tuple[int, int, int]]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for number, (of, at, more) in enumerate(steps):
        parent = found[of % len(found)]
        found.append([*parent[: at % (len(parent) + 1)], *[number] * more])
    return found[1:]


@given(contexts, contexts)
def test_a_context_meets_the_rungs_of_others_that_it_goes_through_the_deepest_first(
    known: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    tree = PrefixIndex()
    others = grown([*known, *asked])
    placed = others[: len(known)]
    rungs = {
        rung
        for rung in (tree.last_checkpoint(fingerprint_of(tokens), len(tokens)) for tokens in placed)
        if rung is not None
    }
    beginnings = {
        tuple(tokens[:depth])
        for tokens in placed
        for depth in rungs_of(tree.last_checkpoint(fingerprint_of(tokens), len(tokens)))
    }
    for tokens in others:
        met = [rung.depth for rung in tree.known_checkpoints(fingerprint_of(tokens), len(tokens))]
        assert met == sorted(met, reverse=True)
        assert met == [depth for depth in range(len(tokens), 0, -1) if tuple(tokens[:depth]) in beginnings]
    for rung in sorted(rungs, key=lambda rung: rung.depth):
        tree.drop_unused(rung)
    assert len(tree) == 0, "nothing is known of any"


def turn(tokens: Sequence[int], prompt: int, stamp: float, cached: int = 0) -> Turn:
    return Turn(stamp, prompt, len(tokens) - prompt, len(tokens), cached, fingerprint_of(tokens))


def test_conversations_behind_one_system_prompt_are_told_apart_by_what_is_said() -> None:
    system = list(range(10_000))
    conversations = Conversations(Hazards())
    contexts = {name: [*system, *[10_000 + name] * 100] for name in range(50)}
    first = {
        name: conversations.record_turn(turn(context, 10_020, float(name)), is_leaf=True)
        for name, context in contexts.items()
    }
    assert [each.turn for each in first.values()] == [0] * 50, "nobody takes anybody else for what it was"
    for name in (49, 0, 7):
        longer = [*contexts[name], *range(200)]
        again = conversations.record_turn(turn(longer, len(longer) - 50, 100.0 + name), is_leaf=True)
        assert (again.number, again.turn) == (first[name].number, 1)


def test_contexts_longer_than_any_step_are_met_too() -> None:
    tree = PrefixIndex()
    fingerprint: Fingerprint = lambda start, end, above: end  # noqa: E731
    longest = tree.last_checkpoint(fingerprint, 50_000_000)
    assert longest is not None
    assert [rung.depth for rung in tree.known_checkpoints(fingerprint, 60_000_000)] == rungs_of(longest)[::-1]


def test_rungs_are_kept_for_what_is_known_alone() -> None:
    """What a first turn finds cached is a prefix, or within less than a step of one that is known."""
    conversations = Conversations(Hazards())
    tokens = list(range(3_000))
    for number, cached in enumerate((1_000, 1_001, 1_009, 500, 2_000, 1_990)):
        told = turn([*tokens[:2_500], *[10**6 + number] * 100], 2_550, float(number), cached)
        conversations.record_turn(told, is_leaf=True)
    known = [prefix.checkpoint for prefix in conversations._prefixes._known.values()]
    for conversation in conversations._known:
        known += [conversation.checkpoint, *(prompt.checkpoint for prompt in conversation.prompts)]
    held = {depth_number for rung in known for depth_number in chain(rung)}
    assert held == set(conversations._index._checkpoints)


def chain(rung: Checkpoint | None) -> list[tuple[int, int]]:
    found = []
    while rung is not None:
        found.append((rung.depth, rung.number))
        rung = rung.above
    return found
