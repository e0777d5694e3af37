"""A shadow takes itself to hold what it holds: prefixes once, lines as often as the conversations they stand for."""

from __future__ import annotations

from random import Random

import pytest

from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.policy.models import AnyPrompt, Recency
from radix_tlru.policy.policy import Policy
from tests.helpers.turns import THRESHOLD, Words, new_conversations, told

LRU = Policy(Recency(), AnyPrompt(), THRESHOLD, median_weight=1.0)


def held(shadow: ShadowCache) -> int:
    """Tokens of its prefixes, and of its lines, each of which stands for several."""
    lines = sum(leaf.end - leaf.start for number, leaf in shadow._leaves.items() if number not in shadow._fronts_alone)
    return sum(front.end for front in shadow._fronts.values()) + lines * shadow._one_in


def test_a_conversation_that_goes_on_from_within_what_it_shares_leaves_that_to_the_others() -> None:
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
    assert resident == [4 * 1_024, 4 * 1_200, 1_024 + 4 * (176 + 176), 1_024 + 4 * 176]


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
