"""A shadow takes itself to hold what it holds: prefixes once, lines as often as the conversations they stand for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from radix_tlru.learning.prefix_index import STEPS
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Recency
from radix_tlru.policy.policy import Policy
from tests.helpers.turns import PAGE, THRESHOLD, Words, new_conversations, told

LRU = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)


def held(shadow: ShadowCache) -> int:
    """Tokens of its prefixes, and of its lines, each of which stands for several."""
    lines = sum(leaf.end - leaf.start for number, leaf in shadow._leaves.items() if number not in shadow._childless)
    return sum((node.end - node.start) * node.weight for node in shadow._nodes.values()) + lines * shadow._one_in


def test_a_conversation_that_forks_within_a_shared_prefix_leaves_it_to_the_others() -> None:
    shadow, conversations, words = ShadowCache(LRU, 100_000, 1, one_in=4), new_conversations(), Words()
    prompt, answer, question = words.fresh(700), words.fresh(324), words.fresh(100)
    resident = []
    for at, (asked, answered) in enumerate(
        [
            (prompt, answer),  # a line of 1,024
            (prompt + question, words.fresh(400)),  # goes on without its answer: 1,200
            (prompt + answer + words.fresh(100), words.fresh(76)),  # another has 1,024 in common with it, and 176 more
            (prompt + question + words.fresh(50), words.fresh(50)),  # the first leaves its answer of 400 out: 900
        ]
    ):
        served = told(float(at), asked, answered, thought_len=len(answered))
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
        resident.append(shadow._resident)
        assert shadow._resident == held(shadow)
    assert resident == [4 * 1_024, 4 * 1_200, 4 * (1_024 + 176 + 176), 4 * (1_024 + 176)]


def test_who_returns_finds_what_a_shadow_holds_for_one_that_left_its_path() -> None:
    """Its own 600 tokens had to go for 800 others. The 1,024 that it shares are held, as the other is still there."""
    shadow, conversations, words = ShadowCache(LRU, 2_000, 1), new_conversations(), Words()
    shared, own, branch = words.fresh(1_024), words.fresh(600), words.fresh(76)
    found = []
    for at, prompt in enumerate(
        [
            shared + own,
            shared + branch,
            shared + branch + words.fresh(100),
            words.fresh(800),
            shared + own + words.fresh(50),
        ]
    ):
        served = told(float(at), prompt)
        found.append(shadow.serve(conversations.record_turn(served, is_leaf=True), served))
        assert shadow._resident == held(shadow)
    assert found == [0, 1_024, 1_100, 0, 1_024]


def test_a_long_context_gets_its_room_in_steps_of_eight_leaves() -> None:
    """Of 1,000 leaves of 64 tokens 500 have to go for a context of 32,000, before which as many tokens were served."""
    shadow, conversations, words = ShadowCache(LRU, 64_000, 1), new_conversations(), Words()
    for at in range(1_000):
        served = told(float(at), words.fresh(60), words.fresh(4))
        assert shadow.serve(conversations.record_turn(served, is_leaf=True), served) == 0
    long = told(1_000.0, words.fresh(31_000), words.fresh(1_000))
    leaves = [len(shadow.order)]
    leaves += [len(shadow.order) for _ in shadow.serve_in_steps(conversations.record_turn(long, is_leaf=True), long)]
    assert leaves == [1_000 - 8 * step for step in range(500 // 8 + 1)]
    assert len(shadow.order) == 1_000 - 500 + 1
    assert shadow._resident == held(shadow) == 64_000


def test_a_trim_chunk_larger_than_what_is_held_empties_a_shadow() -> None:
    shadow, conversations, words = ShadowCache(replace(LRU, trim_chunk=5_000), 1_000, 1), new_conversations(), Words()
    for at in range(4):
        served = told(float(at), words.fresh(400))
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
        assert shadow._resident == held(shadow) == (400, 800, 400, 800)[at]


@pytest.mark.parametrize("one_in", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_a_shadow_knows_what_it_holds_whoever_goes_on_from_where(seed: int, one_in: int) -> None:
    random, words = Random(seed), Words()
    shadow, conversations = ShadowCache(LRU, 60_000 * one_in, 1, one_in), new_conversations()
    chats: list[tuple[list[int], list[int]]] = []  # of each: the first prompt of a chain of calls; all of its context
    for at in range(400):
        first, context = random.choice(chats) if chats else ([], [])
        question = words.fresh(random.randrange(1, 300))
        asked = random.choice(
            [
                question,  # somebody new
                context + question,  # a result of a tool, with all of the context
                first + question,  # a user speaks next: the answers of the chain are left out
                context[: random.randrange(len(context) + 1)] + question,  # a fork, or somebody tries again
            ]
        )
        answer = words.fresh(random.randrange(1, 600))
        is_chain = bool(context) and asked == context + question
        chats = [*chats[-40:], (first if is_chain else asked, asked + answer)]
        served = told(float(at), asked, answer, thought_len=len(answer) * 3 // 4)
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
        assert shadow._resident == held(shadow)
    assert shadow._resident > 59_000 * one_in


@pytest.mark.parametrize("order", [(1_024, 1_448, 2_048), (2_048, 1_448, 1_024), (1_448, 2_048, 1_024)])
def test_of_prefixes_on_one_path_each_is_held_once_whichever_was_found_first(order: tuple[int, ...]) -> None:
    """A conversation of 2,896 tokens, and three that leave its path, each with 500 tokens of its own."""
    shadow, conversations, words = ShadowCache(LRU, 100_000, 1), new_conversations(), Words()
    path = words.fresh(2_896)
    found = []
    for at, shared in enumerate((len(path), *order)):
        served = told(float(at), path[:shared] + (words.fresh(500) if at else []))
        found.append(shadow.serve(conversations.record_turn(served, is_leaf=True), served))
        assert shadow._resident == held(shadow) == 2_896 + 500 * at
    assert found == [0, *order]


@pytest.mark.parametrize(
    ("sampled", "expected"), [((2, 3, 4), [0, 0, 2_048]), ((2, 4), [0, 2_048]), ((3, 4), [0, 1_024]), ((4,), [0])]
)
def test_a_prefix_that_is_found_on_the_path_of_a_longer_one_takes_what_that_held(
    sampled: tuple[int, ...], expected: list[int]
) -> None:
    """Whose path they leave is not in the shadow, which samples: the prefixes alone say what is shared.

    The second conversation leaves the path after 2,048 tokens, the third after 1,024, the fourth after 2,048: only that
    one is known to go on behind both.
    """
    shadow, conversations, words = ShadowCache(LRU, 100_000, 1), new_conversations(), Words()
    path = words.fresh(4_096)
    found = []
    for at, shared in enumerate((4_096, 2_048, 4_096, 1_024, 2_048)):
        served = told(float(at), path[:shared] + words.fresh(500 if at else 0))
        conversation = conversations.record_turn(served, is_leaf=True)
        if conversation.number in sampled:
            found.append(shadow.serve(conversation, served))
    assert found == expected
    assert shadow._resident == held(shadow) == 2_048 + len(sampled) * 500


def test_branches_of_a_conversation_are_sampled_together_until_many_share_its_prefix() -> None:
    conversations, words = new_conversations(), Words()
    path = words.fresh(2_000)
    families = []
    for at in range(12):
        served = told(float(at), path + words.fresh(500))
        families.append(conversations.record_turn(served, is_leaf=True).family)
    assert families == [*[1] * 9, 10, 11, 12], "eight have used the path after another one: the next stands for himself"
    more = conversations.record_turn(told(12.0, path[:1_000] + words.fresh(500)), is_leaf=True)
    assert more.family == 12, "a branch of the last one, as nobody left its path so early before"


def test_what_only_branches_share_counts_for_as_many_as_a_line_until_it_is_common() -> None:
    shadow, conversations, words = ShadowCache(LRU, 1_000_000, 1, one_in=4), new_conversations(), Words()
    path = words.fresh(2_000)
    resident = []
    for at in range(10):
        served = told(float(at), path + words.fresh(500))
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
        assert shadow._resident == held(shadow)
        resident.append(shadow._resident)
    shared = 1_898  # of 2,000 tokens, as they are found by hashes at some depths
    assert resident[:2] == [4 * 2_500, 4 * (shared + 2 * (2_500 - shared))]
    assert resident[-1] == shared + 4 * 10 * (2_500 - shared)


def shared_len(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def assert_sound(shadow: ShadowCache) -> None:
    """Nodes know how many lines and nodes begin below them; those with none, and tokens, are in the order."""
    below = Counter(id(node) for node in shadow._node_above.values())
    below.update(id(node.parent) for node in shadow._nodes.values() if node.parent is not None)
    for node in shadow._nodes.values():
        assert node.children == below[id(node)]
        assert node.parent is None or shadow._nodes[node.parent.number] is node.parent
        assert (node.leaf_id in shadow._childless) == (not node.children) == (node.leaf_id != 0)
        assert node.start <= node.end
        assert node.end > node.start or node.children
    assert set(shadow._leaves) == {*shadow._ids.values(), *shadow._childless}
    assert shadow._resident == held(shadow)


@pytest.mark.parametrize("capacity", [6_000, 20_000, 1_000_000])
@pytest.mark.parametrize("seed", range(8))
def test_a_shadow_that_samples_is_sound_whoever_leaves_which_path_where(seed: int, capacity: int) -> None:
    """Half of the conversations are not sampled; those that are find what they share with one of them, to a step."""
    random, words = Random(seed), Words()
    shadow, conversations = ShadowCache(LRU, capacity, PAGE), new_conversations()
    contexts: list[list[int]] = [words.fresh(4_000)]
    sampled: dict[int, bool] = {}
    seen: list[list[int]] = []  # contexts of those that are
    for at in range(200):
        left = random.choice(contexts[-12:])
        context = [
            *left[: random.choice((len(left), random.randrange(len(left))))],
            *words.fresh(random.randrange(600)),
        ]
        contexts.append(context)
        served = told(float(at), context)
        known = conversations.record_turn(served, is_leaf=True)
        if sampled.setdefault(known.number, random.random() < 0.5):
            found = shadow.serve(known, served)
            assert found - STEPS[0] < max((shared_len(context, other) for other in seen), default=0)
            seen.append(context)
            assert_sound(shadow)


def lengths_of(words: Words, shadow: ShadowCache, lengths: list[int]) -> list[int]:
    """What a shadow holds after each of as many conversations of such lengths."""
    conversations, resident = new_conversations(), []
    for at, length in enumerate(lengths):
        served = told(float(at), words.fresh(length))
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
        assert shadow._resident == held(shadow)
        resident.append(shadow._resident)
    return resident


def test_of_a_context_that_does_not_fit_in_the_beginning_is_held_and_all_of_it_is_the_history() -> None:
    shadow, conversations, words = ShadowCache(LRU, 4_000, 1, one_in=4), new_conversations(), Words()
    context = words.fresh(5_000)
    first, again = told(0.0, context), told(9.0, [*context, *words.fresh(100)])
    assert shadow.serve(conversations.record_turn(first, is_leaf=True), first) == 0
    (leaf,) = shadow._leaves.values()
    assert (leaf.end, leaf.history, shadow._resident) == (1_000, 5_000, 4_000)
    assert shadow.serve(conversations.record_turn(again, is_leaf=True), again) == 1_000


def test_a_full_shadow_makes_room_for_a_trim_chunk_of_each_conversation_that_a_line_stands_for() -> None:
    """Lines of 50 tokens stand for 200. Five fit in; for the sixth a chunk of 100 tokens has to go, which is two."""
    shadow = ShadowCache(replace(LRU, trim_chunk=100), 1_000, 1, one_in=4)
    assert lengths_of(Words(), shadow, [50] * 6) == [200, 400, 600, 800, 1_000, 800]


def test_what_is_shared_is_held_in_whole_pages() -> None:
    shadow, conversations, words = ShadowCache(LRU, 100_007, PAGE), new_conversations(), Words()
    assert shadow.capacity == 100_000
    path, found = words.fresh(2_000), []
    for at in range(2):
        served = told(float(at), [*path, *words.fresh(400)])
        found.append(shadow.serve(conversations.record_turn(served, is_leaf=True), served))
    assert found == [0, 1_888], "1,898 tokens are known to be shared, more than half a page beyond 118"
    assert shadow._resident == held(shadow) == 1_888 + 2 * 512


def test_a_shared_prefix_is_worth_the_longest_history_behind_it() -> None:
    shadow, conversations, words = ShadowCache(LRU, 100_000, 1), new_conversations(), Words()
    path = words.fresh(2_000)
    for at, own in enumerate((900, 400)):
        served = told(float(at), [*path, *words.fresh(own)])
        shadow.serve(conversations.record_turn(served, is_leaf=True), served)
    for number in (1, 2):
        shadow._evict(shadow._ids[number], 1_898)
    (leaf,) = shadow._leaves.values()
    assert (leaf.start, leaf.end, leaf.history) == (0, 1_898, 2_900)
    (shared,) = shadow._childless
    shadow._evict(shared, 1_000)
    (leaf,) = shadow._leaves.values()
    assert (leaf.start, leaf.end, leaf.history) == (0, 1_000, 2_900)
    assert shadow._resident == held(shadow) == 1_000


def test_leaves_get_the_prices_of_another_policy_turn_by_turn() -> None:
    policy = Policy(Recency(), FixedPrompt(100), THRESHOLD, median_weight=0.5)
    shadow, words = ShadowCache(policy, 1_000_000, 1), Words()
    lengths_of(words, shadow, [1_000] * 100)
    shadow.order.switch_policy(replace(policy, threshold=2 * THRESHOLD))
    assert len(shadow.order._pricings) == 2
    lengths_of(words, shadow, [1_000] * 10)
    assert len(shadow.order._pricings) == 1
