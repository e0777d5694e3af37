"""Contexts known by hashes: those that continue one find it, and no others do."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import STEPS, HashedContext, PrefixIndex, depth_of
from tests.helpers.turns import Words, branches, fingerprint_of, grown, hashed, new_conversations, told

SHORTEST = 16
ASKED = (
    *("anew", "with the result of a tool", "without the last answer", "without any answer"),
    *("the same", "the same, and is answered alike"),
)


def path_to(index: PrefixIndex, checkpoint: int) -> list[int]:
    """The keys of the depths on the way to a checkpoint, its own first."""
    path = [checkpoint]
    while above := index._above[path[-1]]:
        path.append(above)
    return path


def of_length(tokens: int) -> HashedContext:
    return HashedContext(lambda start, end, above: end, tokens)


@given(st.integers(0, 10**8))
def test_the_last_checkpoint_is_less_than_a_step_from_the_end_and_few_lead_there(tokens: int) -> None:
    path = of_length(tokens).path_to(tokens)
    assert 0 <= tokens - (depth_of(path[-1]) if path else 0) < SHORTEST
    assert len(path) <= 12 + tokens // 10**6


@given(st.integers(0, 5_000), st.integers(0, 10**6))
def test_a_context_is_hashed_at_each_step_from_its_beginning(tokens: int, name: int) -> None:
    ids = [name + token for token in range(tokens)]
    context, fingerprint = hashed(ids), fingerprint_of(ids)
    fitting = [step for step in STEPS if step <= tokens]
    assert len(context.numbers) == len(fitting)
    for step, number in enumerate(context.numbers):
        longer = hashed([*ids[: STEPS[step]], *range(9)])
        assert number == longer.numbers[step] == longer.hash_to(0, step, 0), "whatever follows"
    if tokens >= 2 * SHORTEST:
        assert context.hash_to(SHORTEST, 0, 7) == fingerprint(SHORTEST, 2 * SHORTEST, 7)


@given(branches, branches)
def test_a_context_finds_the_last_checkpoints_of_others_on_its_path_the_deepest_first(
    known: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    index: PrefixIndex = PrefixIndex()
    contexts = grown([*known, *asked])
    placed = contexts[: len(known)]
    beginnings = set()
    for number, tokens in enumerate(placed):
        path = hashed(tokens).path_to(len(tokens))
        if path:
            index.put((index.contexts, index.prompts, index.prefixes)[number % 3], path, number)
            beginnings.add(tuple(tokens[: depth_of(path[-1])]))
    for tokens in contexts:
        found = [*map(depth_of, index.on_path(hashed(tokens)))]
        assert found == [depth for depth in range(len(tokens), 0, -1) if tuple(tokens[:depth]) in beginnings]
    for known in (index.contexts, index.prompts, index.prefixes):
        for checkpoint in [*known]:
            index.remove(known, checkpoint)
    assert len(index) == 0, "nothing is known of any"


@given(branches, st.integers(0, 10**6))
def test_a_part_of_a_context_has_the_last_checkpoint_of_a_context_that_ends_there(
    steps: list[tuple[int, int, int]], at: int
) -> None:
    for tokens in grown(steps):
        end = at % (len(tokens) + 1)
        assert hashed(tokens).path_to(end) == hashed(tokens[:end]).path_to(end)


def test_conversations_behind_one_system_prompt_are_told_apart_by_what_follows_it() -> None:
    system = list(range(10_000))
    conversations = new_conversations()
    contexts = {name: [*system, *[10_000 + name] * 100] for name in range(50)}
    first = {
        name: conversations.record_turn(told(float(name), context[:10_020], context[10_020:]), is_leaf=True)
        for name, context in contexts.items()
    }
    assert [each.turn for each in first.values()] == [0] * 50
    assert [each.number for each in first.values()] == list(range(1, 51))
    for name in (49, 0, 7):
        longer = [*contexts[name], *range(150)]
        again = conversations.record_turn(told(100.0 + name, longer, range(50)), is_leaf=True)
        assert (again.number, again.turn) == (first[name].number, 1)


def test_contexts_longer_than_any_step_are_found_too() -> None:
    index: PrefixIndex = PrefixIndex()
    path = of_length(50_000_000).path_to(50_000_000)
    index.put(index.contexts, path, "known")
    assert [*index.on_path(of_length(60_000_000))] == [path[-1]]


def test_checkpoints_are_kept_for_what_is_known_alone() -> None:
    """Of conversations their contexts and prompts, and what they have in common with others."""
    conversations = new_conversations()
    tokens = list(range(3_000))
    for number, cached in enumerate((1_000, 1_001, 1_009, 500, 2_000, 1_990)):
        context = [*tokens[:2_500], *[10**6 + number] * 100]
        conversations.record_turn(
            told(float(number), context[:2_550], context[2_550:], cached_len=cached), is_leaf=True
        )
    assert len(conversations._prefixes._known) > 1
    assert_kept_for_what_is_known(conversations)


def assert_kept_for_what_is_known(conversations: Conversations) -> None:
    index, known = conversations._known.index, [*conversations._known._by_number.values()]
    prefixes = {prefix.checkpoint for prefix in conversations._prefixes._known.values()}
    assert index.prefixes.keys() == prefixes
    assert index.contexts == {conversation.checkpoint: conversation for conversation in known}
    prompts = [(at, each) for each in known for at in (each.last_prompt, each.chain_start) if at]
    assert sorted(index.prompts) == sorted(at for at, _ in prompts), "each is one conversation's"
    assert index.prompts == dict(prompts)
    checkpoints = {*index.contexts, *index.prompts, *index.prefixes}
    assert index._leading == Counter(key for checkpoint in checkpoints for key in path_to(index, checkpoint))
    assert index._above.keys() == index._leading.keys()


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(ASKED), st.integers(1, 60)), max_size=25))
def test_checkpoints_follow_whoever_goes_on_asks_again_or_leaves_answers_out(steps: list[tuple[int, str, int]]) -> None:
    """Answers hold reasoning: so each chain of calls is known by its first prompt, too."""
    conversations, words = new_conversations(), Words()
    chats = [
        (words.fresh(200), words.fresh(200), words.fresh(30))
    ]  # of each: first prompt of the chain, prompt, answer
    for at, (number, how, tokens) in enumerate(steps):
        first, prompt, answer = chats[number % len(chats)]
        added, other = words.fresh(tokens), words.fresh(16 + tokens)
        chat = {
            "anew": (added, added, other),
            "with the result of a tool": (first, prompt + answer + added, other),
            "without the last answer": (prompt + added, prompt + added, other),
            "without any answer": (first + added, first + added, other),
            "the same": (first, prompt, other),
            "the same, and is answered alike": (first, prompt, answer),
        }[how]
        chats.append(chat)
        _, prompt, answer = chat
        conversations.record_turn(told(float(at), prompt, answer, thought_len=len(answer)), is_leaf=True)
        assert_kept_for_what_is_known(conversations)


def test_of_two_with_the_same_context_the_last_goes_on_and_nobody_watches_for_the_other() -> None:
    conversations, words = new_conversations(), Words()
    prompt, answer = words.fresh(500), words.fresh(100)
    first = conversations.record_turn(told(0.0, prompt, answer), is_leaf=True)
    conversations.record_turn(told(9.0, words.fresh(500)), is_leaf=True)
    again = conversations.record_turn(told(10.0, prompt, answer), is_leaf=True)
    assert (first.number, again.number) == (1, 3), "who asks the same again has not returned"
    later = conversations.record_turn(told(30.0, prompt + answer + words.fresh(50)), is_leaf=True)
    assert (later.number, later.turn) == (3, 1)
    intervals = conversations._log.intervals()
    ages = dict(zip(intervals.stamp.tolist(), intervals.end.tolist(), strict=True))
    returned = dict(zip(intervals.stamp.tolist(), intervals.returned.tolist(), strict=True))
    assert (ages[0.0], returned[0.0]) == (9.0, False), "until the last turn before it was asked again"
    assert (ages[10.0], returned[10.0]) == (20.0, True)


def test_a_prompt_that_began_a_chain_is_that_of_whoever_was_asked_it_last() -> None:
    """Whoever goes on with it, without the answers, is the last one, wherever the chain has got to."""
    conversations, words = new_conversations(), Words()
    prompt, called = words.fresh(500), words.fresh(100)
    chain = prompt + called + words.fresh(50)
    asked = [(prompt, called), (chain, words.fresh(100)), (prompt, words.fresh(100))]
    said = [told(float(at), *each, thought_len=len(each[1])) for at, each in enumerate(asked)]
    assert [conversations.record_turn(each, is_leaf=True).number for each in said] == [1, 1, 2]
    goes_on = conversations.record_turn(told(8.0, [*chain, *asked[1][1], *words.fresh(50)]), is_leaf=True)
    assert (goes_on.number, goes_on.turn) == (1, 2), "known by its context"
    spoken = conversations.record_turn(told(9.0, prompt + words.fresh(50)), is_leaf=True)
    assert (spoken.number, spoken.new_len) == (2, 50)


def test_the_deepest_of_many_forks_is_found_with_a_bounded_number_of_hashes() -> None:
    index: PrefixIndex = PrefixIndex()
    ids, forks = list(range(64_000)), 1_000
    whole = hashed(ids)
    for fork in range(1, forks + 1):
        path = whole.path_to(64 * fork)
        index.put(index.prefixes, path, fork)
    asked: list[int] = []
    fingerprint = fingerprint_of(ids)

    def counted(start: int, end: int, above: int) -> int:
        asked.append(end - start)
        return fingerprint(start, end, above)

    found = [index.prefixes[checkpoint] for checkpoint in index.on_path(HashedContext(counted, len(ids)))]
    assert found[0] == forks
    assert 10 < len(found) < forks
    assert len(asked) <= 256 + len(STEPS)
