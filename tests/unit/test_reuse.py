"""Models that think before they answer: chat templates leave old thoughts out of the next prompt, or keep them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.caches.policies import simulated_cache
from eval.caches.real import REAL_CACHES, RealCache
from eval.caches.simulator import simulate
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.prompt_lengths import NextPrompts, PromptLengths
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.reuse import ReusableOnly, reusable_only
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Group, Leaf, Recency, ReturnModel
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.preview import preview
from radix_tlru.sglang.requests.turns import fingerprint_of
from tests.helpers.turns import conversation, new_conversations

THOUGHT, SAID, ASKED = 1_500, 200, 100


class Chat:
    """A conversation whose template keeps thoughts, or does not; ``told``: by a reasoning parser."""

    def __init__(self, seed: int, *, keeps: bool, told: bool = True) -> None:
        self._random, self._keeps, self._told = Random(seed), keeps, told
        self._history: list[int] = []
        self._at = float(seed)

    def _words(self, tokens: int) -> list[int]:
        return [self._random.randrange(1 << 30) for _ in range(tokens)]

    @property
    def known_len(self) -> int:
        """Tokens of the next prompt but for what will be asked."""
        return len(self._history)

    @property
    def known_fingerprint(self) -> Any:
        return fingerprint(self._history)

    def turn(self) -> Turn:
        self._at += 30.0
        prompt = [*self._history, *self._words(ASKED)]
        thought, said = self._words(THOUGHT), self._words(SAID)
        context = [*prompt, *thought, *said]
        self._history = context if self._keeps else [*prompt, *said]
        length, answer = len(context), THOUGHT + SAID
        return Turn(
            self._at, len(prompt), answer, length, 0, fingerprint(context), thought_len=THOUGHT if self._told else 0
        )


def fingerprint(tokens: Sequence[int]) -> object:
    return fingerprint_of(RadixKey(array("q", tokens)))


def lengths(prompts: PromptLengths) -> list[int]:
    return [tokens for tokens, _ in prompts.snapshot()]


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_prefilled_ahead_is_of_its_conversation_and_no_turn_of_it(keeps: bool) -> None:
    conversations, ahead = new_conversations(), new_conversations()
    chats = [(Chat(seed, keeps=keeps), Chat(seed, keeps=keeps)) for seed in range(5)]
    for _ in range(6):
        for one, other in chats:
            plain = conversations.record_turn(one.turn(), is_leaf=True)
            served = ahead.record_turn(other.turn(), is_leaf=True)
            turn = Turn(0.0, other.known_len, 0, other.known_len, 0, other.known_fingerprint)
            found = ahead.prefilled(turn)
            assert found is not None
            assert found.number == served.number
            assert found.reusable_len == found.context_len == other.known_len
            assert found.known_next_tokens == 0, "what is known of the next prompt is cached, and no thoughts are"
            learned = [(each.turn, each.features, each.reusable_len, each.new_len) for each in (plain, served)]
            assert learned[0] == learned[1], "nothing is learned from it"
    nobody = Chat(99, keeps=keeps)
    nobody.turn()
    assert ahead.prefilled(Turn(0.0, nobody.known_len, 0, nobody.known_len, 0, nobody.known_fingerprint)) is None


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_conversation_is_known_again_whether_or_not_its_thoughts_come_back(keeps: bool, told: bool) -> None:
    prompts = PromptLengths()
    conversations = new_conversations(prompts)
    chats = [Chat(seed, keeps=keeps, told=told) for seed in range(20)]
    begun = [conversations.record_turn(chat.turn(), is_leaf=True).number for chat in chats]
    for turn in range(1, 6):
        found = [conversations.record_turn(chat.turn(), is_leaf=True) for chat in chats]
        assert [each.number for each in found] == begun
        # Until it is known that thoughts are kept, a prompt that has them is mostly new.
        assert not told or keeps or {each.turn for each in found} == {turn}
    # Of what is said again nothing is new; how much that is nobody tells without a parser.
    assert lengths(prompts)[-20:] == [ASKED if told or keeps else SAID + ASKED] * 20
    assert {each.reusable_len < each.context_len for each in found} == {not keeps}


def turn_of(prompt: list[int], answer: list[int], at: float) -> Turn:
    context = [*prompt, *answer]
    return Turn(at, len(prompt), len(answer), len(context), 0, fingerprint(context))


@pytest.mark.parametrize("rewritten", [False, True])
def test_an_answer_that_is_written_differently_is_still_a_repeated_answer(rewritten: bool) -> None:
    """As a tool call may be by a chat template, or what was sampled in other tokens than a tokenizer has."""
    prompts, random = PromptLengths(), Random(0)
    conversations = new_conversations(prompts)
    histories: list[list[int]] = [[] for _ in range(30)]
    for number in range(6 * 30):
        history = histories[number % 30]
        history += [random.randrange(1 << 30) for _ in range(ASKED)]
        answer = [random.randrange(1 << 30) for _ in range(SAID)]
        known = conversations.record_turn(turn_of(history, answer, float(number)), is_leaf=True)
        assert (known.number, known.turn) == (number % 30 + 1, number // 30)
        assert known.context_len + known.known_next_tokens == len(history) + SAID
        history += [7, *answer[1:]] if rewritten else answer
    assert lengths(prompts) == [ASKED] * 5 * 30
    # Where most answers come back otherwise, what is cached of the last one is worth nothing.
    assert (known.reusable_len < known.context_len) is rewritten


@pytest.mark.parametrize("told", [False, True])
def test_a_tool_chain_without_its_thoughts_is_matched_by_its_prompt(told: bool) -> None:
    """As chat templates have it: thoughts come back with the results of tools, and go with what a user says next."""
    prompts, random = PromptLengths(), Random(0)
    conversations = new_conversations(prompts)

    def words(tokens: int) -> list[int]:
        return [random.randrange(1 << 30) for _ in range(tokens)]

    at, histories, begun = 0.0, [words(300) for _ in range(20)], {}
    for number in range(6 * 20):
        prompt, said = [*histories[number % 20], *words(ASKED)], []
        asked = list(prompt)
        for _ in range(1 + (number + number // 20) % 3):
            at, answer = at + 1.0, words(SAID)
            thought = words(THOUGHT)
            turn = turn_of(prompt, [*thought, *answer], at)._replace(thought_len=THOUGHT if told else 0)
            known = conversations.record_turn(turn, is_leaf=True)
            # That chains will be left without their thoughts nobody knows of the first, unless they are told of.
            assert (not told and number < 40) or known.number == begun.setdefault(number % 20, known.number)
            result = words(50)
            said += [*answer, *result]
            prompt += [*thought, *answer, *result]
        histories[number % 20] = [*asked, *said]
    assert conversations.answers.returns[False] > 80
    assert told == (known.number <= 20)
    # What a chain leaves behind is not what a prompt adds: that is a result, or what follows a single answer.
    assert set(lengths(prompts)[-50:]) == {50, 50 + ASKED if told else SAID + 50 + ASKED}


@pytest.mark.parametrize(("chains", "told"), [(True, True), (False, True), (False, False)])
def test_a_tool_chain_reuses_all_of_itself_and_the_next_user_turn_what_came_before_it(chains: bool, told: bool) -> None:
    """``chains``: of two calls and an answer, all with thoughts. Otherwise each answer is the only one."""
    random, at = Random(0), 0.0
    conversations = new_conversations()

    def words(tokens: int) -> list[int]:
        return [random.randrange(1 << 30) for _ in range(tokens)]

    histories = [words(300) for _ in range(20)]
    for number in range(6 * 20):
        prompt, said = [*histories[number % 20], *words(ASKED)], []
        asked = list(prompt)
        for left in (2, 1, 0) if chains else (0,):
            at, answer, thought = at + 1.0, words(SAID), words(THOUGHT)
            turn = turn_of(prompt, [*thought, *answer], at)
            finish = "tool_calls" if left else "stop"
            known = conversations.record_turn(
                turn._replace(thought_len=THOUGHT if told else 0, finish=finish), is_leaf=True
            )
            if number >= 80:  # by then it is learned
                of_use = min(known.reusable_len, known.context_len)
                assert of_use == (known.context_len if left else len(asked)), left
            result = words(50) if left else []
            said += [*answer, *result]
            prompt += [*thought, *answer, *result]
        histories[number % 20] = [*asked, *said]


def test_an_equal_prompt_or_an_equal_beginning_continues_no_conversation() -> None:
    template, answer = list(range(500)), list(range(1_000, 1_100))
    conversations = new_conversations()
    for number in range(20):
        told = turn_of([*template, 10_000 + number], [number, *answer], float(number))
        assert conversations.record_turn(told, is_leaf=True).number == number + 1
    again = turn_of([*template, 10_000], [50, *answer], 30.0)
    assert conversations.record_turn(again, is_leaf=True).number == 21
    assert conversations.record_turn(turn_of([*template, 10_000, *answer, 1], answer, 40.0), is_leaf=True).number == 21


def test_who_asks_the_same_again_returns_to_no_answer_that_was_dropped_before() -> None:
    """Two answers to one prompt are sampled, and again two to the next one, which goes on with the first of them."""
    prompt, conversations = list(range(500)), new_conversations()
    kept, dropped = list(range(1_000, 1_100)), list(range(2_000, 2_100))
    assert conversations.record_turn(turn_of(prompt, kept, 0.0), is_leaf=True).number == 1
    assert conversations.record_turn(turn_of(prompt, dropped, 0.1), is_leaf=True).number == 2
    goes_on = [*prompt, *kept, 7]
    assert conversations.record_turn(turn_of(goes_on, dropped, 30.0), is_leaf=True).number == 1
    again = conversations.record_turn(turn_of(goes_on, kept, 30.1), is_leaf=True)
    assert (again.number, again.turn) == (3, 0)
    assert conversations.answers.returns[False] == 0, "no answer was left out"


def test_thoughts_that_are_left_out_cost_nothing() -> None:
    conversations = new_conversations()
    turn = Chat(0, keeps=False).turn()
    known = conversations.record_turn(turn, is_leaf=True)
    assert isinstance(known, Conversation)
    next_prompts = NextPrompts((400, 300, 200, 150, 100, 50, 20))
    leaf = Leaf(0, turn.context_len, turn.context_len, 1.0, known)
    # The next prompt is what was asked, what was said and what is new, whatever was thought.
    assert [turn.context_len + (next_prompts.next_prompt(leaf, step) or 0) for step in range(7)] == [
        ASKED + SAID + new for new in next_prompts.quantiles
    ]


def test_an_answer_that_is_not_cached_at_all_comes_back_without_its_thoughts() -> None:
    """As with ``--strip-thinking-cache``."""
    conversations = new_conversations()
    turn = Chat(0, keeps=False).turn()
    known = conversations.record_turn(turn._replace(context_len=turn.prompt_len), is_leaf=True)
    assert (known.known_next_tokens, known.reusable_len) == (SAID, turn.prompt_len)


THINKS = "chat-mix:conversations=300,arrival_span_s=1800,answer_range=100/600,wait_median_s=60,thought_range=500/3000"


def tel(policy: str, requests: Sequence[Request]) -> int:
    cache = simulated_cache(policy, 60_000, threshold=1_000, page_size=16)
    found = zip(requests, simulate(cache, requests), strict=True)
    return sum(max(request.prompt_tokens - cached - 1_000, 0) for request, cached in found)


@pytest.mark.parametrize("policy", ["tlru", "etlru"])
def test_who_knows_of_thoughts_has_a_shorter_tail_and_who_does_not_learns(policy: str) -> None:
    told = open_trace(THINKS).requests
    assert all(request.thought_tokens for request in told)
    untold = [replace(request, thought_tokens=0) for request in told]
    assert tel(policy, told) < tel(policy, untold) < tel("lru", told) / 2


@pytest.mark.parametrize(
    ("policy", "weight"),
    [
        pytest.param("tlru", 0.0, marks=pytest.mark.long),
        ("etlru", 0.5),
        pytest.param("tlru", 0.5, marks=pytest.mark.long),
        pytest.param("etlru", 0.0, marks=pytest.mark.long),
    ],
)
def test_the_real_cache_finds_what_the_simulated_one_finds(policy: str, weight: float) -> None:
    requests = open_trace(THINKS).requests
    sizes = {"threshold": 1_000, "next_prompt_estimate": None, "page_size": 16, "median_weight": weight}
    real = RealCache(policy, 60_000, **sizes)
    expected = simulate(simulated_cache(policy, 60_000, **sizes), requests)
    assert simulate(real, requests) == expected
    assert real.cache.tail.learner.candidates.evicts_unreusable


def test_stock_may_cache_no_answer_that_was_thought_over() -> None:
    requests = open_trace(THINKS).requests
    silent = [replace(request, context=request.prompt) for request in requests]
    stripped, stock = (REAL_CACHES[name] for name in ("sglang-lru-strip-thinking", "sglang-lru"))
    assert simulate(stripped(60_000, 1_000, 200, 16), requests) == simulate(stock(60_000, 1_000, 200, 16), silent)
    untold = [replace(request, thought_tokens=0) for request in requests]
    assert simulate(stripped(60_000, 1_000, 200, 16), untold) == simulate(stock(60_000, 1_000, 200, 16), requests)


def chat(number: int, length: int, reusable_len: int, start: int = 0, last_access: float = 0.0) -> Leaf:
    known = conversation(last_access, number, context_len=length, reusable_len=reusable_len, turn_index=number)
    return Leaf(start, length, length, last_access, known)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("returns", [RecentTurns, LearnedReturns])
def test_what_no_later_prompt_has_goes_before_what_is_older_and_before_what_is_free(
    weight: float, returns: Callable[[], ReturnModel]
) -> None:
    policy = reusable_only(Policy(returns(), FixedPrompt(100), threshold=600, median_weight=weight))
    leaves = {1: chat(1, 2_000, 2_000), 2: chat(2, 2_000, 800, last_access=9.0), 3: chat(3, 2_000, 2_100)}
    order = EvictionOrder(policy, 1, leaves.get)
    for leaf_id in leaves:
        order.add_leaf(leaf_id)
    foreseen = preview((order,), 2)
    assert foreseen[0].victim.leaf_id == 2
    assert (foreseen[0].price.return_rate, foreseen[0].price.cost) == (0.0, 0.0)
    gone = 2_000
    while (victim := order.choose_victim(500)) is not None and victim.leaf_id == 2 and gone > 800:
        order.remove_leaf(2)
        gone = victim.keep
        leaves[2] = victim.leaf._replace(end=gone)
        order.add_leaf(2)
    assert gone == 800
    following = preview((order,), 9)
    assert all(each.price.return_rate > 0 for each in following)
    assert following[0].victim.leaf_id != 2, "what is left of it is as any other"


def test_a_leaf_that_goes_whole_is_never_said_again_only_if_all_of_it_is_not() -> None:
    model = reusable_only(Policy(RecentTurns(), AnyPrompt(), 600, 1.0)).returns
    half, all_of_it = (chat(1, 2_000, 800, start=start)._replace(usable_without=start) for start in (500, 800))
    assert model.rate(model.group(all_of_it, 5.0).number, 1.0, 5.0) == 0.0
    assert model.rate(model.group(half, 5.0).number, 1.0, 5.0) == RecentTurns().rate(0, 1.0, 5.0)


class BelowZero(Recency):
    """A model of one's own that numbers its groups from -1 down."""

    def group(self, leaf: Leaf, now: float) -> Group:
        return Group(-1, math.inf)

    def rate(self, group: int, key: float, now: float) -> float:
        return {-1: 5.0}[group]


def test_a_group_of_a_number_below_zero_keeps_its_rate() -> None:
    model = ReusableOnly(BelowZero())
    returns, never = chat(1, 2_000, 2_000), chat(2, 2_000, 800)
    assert [model.rate(model.group(leaf, 9.0).number, 1.0, 9.0) for leaf in (returns, never)] == [5.0, 0.0]


def test_what_is_pinned_stays_as_published() -> None:
    for estimate, weight, asks in ((100, 0.0, False), (None, 0.0, True), (None, 0.5, True)):
        learner = Learner(Config("tlru", 1_000, estimate, weight), 100_000, 16)
        learner.record_turn(Chat(0, keeps=False).turn())
        assert isinstance(learner.policy.returns, ReusableOnly) is asks
