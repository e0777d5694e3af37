"""Models that think before they answer: chat templates leave old thoughts out of the next prompt, or keep them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.policies import simulated_cache
from eval.simulator import simulate
from eval.traces import open_trace
from radix_tlru.hazards import Hazards
from radix_tlru.learned import Conversation, Conversations, Turn
from radix_tlru.models import Leaf
from radix_tlru.prompts import LearnedPrompts, NextPrompts
from radix_tlru.sglang.turns import fingerprint_of

THOUGHT, SAID, ASKED = 1_500, 200, 100


class Chat:
    """A conversation whose template keeps thoughts, or does not."""

    def __init__(self, seed: int, *, keeps: bool) -> None:
        self._random, self._keeps = Random(seed), keeps
        self._history: list[int] = []
        self._at = float(seed)

    def _words(self, tokens: int) -> list[int]:
        return [self._random.randrange(1 << 30) for _ in range(tokens)]

    def turn(self) -> Turn:
        self._at += 30.0
        prompt = [*self._history, *self._words(ASKED)]
        thought, said = self._words(THOUGHT), self._words(SAID)
        context = [*prompt, *thought, *said]
        self._history = context if self._keeps else [*prompt, *said]
        length, answer = len(context), THOUGHT + SAID
        return Turn(self._at, len(prompt), answer, length, 0, fingerprint(context), thought=THOUGHT)


def fingerprint(tokens: Sequence[int]) -> object:
    return fingerprint_of(RadixKey(array("q", tokens)))


def lengths(prompts: LearnedPrompts) -> list[int]:
    return [tokens for tokens, _ in prompts._lengths]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_conversation_is_known_again_whether_or_not_its_thoughts_come_back(keeps: bool) -> None:
    prompts = LearnedPrompts()
    conversations = Conversations(Hazards(), prompts)
    chats = [Chat(seed, keeps=keeps) for seed in range(20)]
    begun = [conversations.turn(chat.turn(), alone=True).number for chat in chats]
    for turn in range(1, 6):
        found = [conversations.turn(chat.turn(), alone=True) for chat in chats]
        assert [each.number for each in found] == begun
        # Until it is known that thoughts are kept, a prompt that has them is mostly new.
        assert keeps or {each.turn for each in found} == {turn}
    # Of what is said again nothing is new.
    assert lengths(prompts)[-20:] == [ASKED] * 20
    assert {each.reach < each.length for each in found} == {not keeps}


def test_thoughts_that_are_left_out_cost_nothing() -> None:
    conversations = Conversations(Hazards(), LearnedPrompts())
    turn = Chat(0, keeps=False).turn()
    known = conversations.turn(turn, alone=True)
    assert isinstance(known, Conversation)
    next_prompts = NextPrompts((400, 300, 200, 150, 100, 50, 20))
    leaf = Leaf(0, turn.context, turn.context, 1.0, known)
    # The next prompt is what was asked, what was said and what is new, whatever was thought.
    assert [turn.context + (next_prompts.next_prompt(leaf, step) or 0) for step in range(7)] == [
        ASKED + SAID + new for new in next_prompts.quantiles
    ]


def test_an_answer_that_is_not_cached_at_all_comes_back_without_its_thoughts() -> None:
    """As with ``--strip-thinking-cache``."""
    conversations = Conversations(Hazards(), LearnedPrompts())
    turn = Chat(0, keeps=False).turn()
    known = conversations.turn(turn._replace(context=turn.prompt), alone=True)
    assert (known.remainder, known.reach) == (SAID, turn.prompt)


def test_who_knows_of_thoughts_has_a_shorter_tail() -> None:
    trace = (
        "chat-mix:conversations=300,arrival_span_s=1800,answer_range=100/600,wait_median_s=60,thought_range=500/3000"
    )
    told = open_trace(trace).requests
    assert all(request.thought_tokens for request in told)
    untold = [replace(request, thought_tokens=0) for request in told]
    tel = [
        sum(
            max(request.prompt_tokens - cached - 1_000, 0)
            for request, cached in zip(
                requests,
                simulate(simulated_cache("etlru", 60_000, threshold=1_000, page_size=16), requests),
                strict=True,
            )
        )
        for requests in (told, untold)
    ]
    assert tel[0] < tel[1] / 2
