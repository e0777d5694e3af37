"""Calls of tools, told by how answers end: nobody says with which tokens."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from eval.caches.policies import simulated_cache
from eval.caches.real import RealCache
from eval.caches.simulator import simulate
from eval.traces import open_trace
from radix_tlru.learning.endings import Endings
from radix_tlru.learning.turn_features import Feature
from tests.helpers.turns import new_conversations, told

END, CALL = 7, 9  # what ends every answer, and a call before that
CALLS = (
    "chat-mix:conversations=250,arrival_span_s=1500,answer_range=60/300,thought_range=200/1200,tool_probability=0.6,"
    "wait_median_s=90,first_prompt_range=50/3000"
)
SIZES = {"threshold": 1_024, "page_size": 16, "next_prompt_estimate": None}


def answers(random: Random, number: int, calls: float) -> list[list[int]]:
    """Answers of twenty words, some of them calls."""
    said = ([random.randrange(100, 5_000) for _ in range(20)] for _ in range(number))
    return [[*words, *([CALL] if random.random() < calls else []), END] for words in said]


def test_an_ending_that_many_answers_have_is_told_from_the_others() -> None:
    endings, random = Endings(), Random(0)
    assert {endings.number_of(each) for each in answers(random, 200, 0.5)[:-1]} == {0}, "it takes 200 to know"
    endings.number_of([1, END])
    found = {each[-2] == CALL: endings.number_of(each) for each in answers(random, 100, 0.5)}
    assert found[True] == 1
    assert found[False] == 0
    assert endings.number_of([]) == 0


def test_rare_endings_are_none_and_there_are_never_many() -> None:
    endings, random = Endings(), Random(0)
    for each in answers(random, 2_000, 0.03):
        assert endings.number_of(each) == 0
    for number in range(40 * 200):
        endings.number_of([number // 200, END])
    assert {endings.number_of([number, END]) for number in range(40)} == set(range(9))
    assert len(endings._counts) <= 200


def numbered(calls: int, ends: int) -> tuple[int, int]:
    """The numbers of a call and of a last token, after 200 answers of which so many are calls and end with it."""
    endings = Endings()
    for number in range(200):
        endings.number_of([100 + number, CALL if number < calls else 300 + number, END if number < ends else 0])
    return endings.number_of([1, CALL, END]), endings.number_of([1, 2, END])


@pytest.mark.parametrize(
    ("calls", "ends", "found"),
    [
        (19, 200, (0, 0)),
        (20, 200, (1, 0)),  # a tenth
        (20, 180, (1, 0)),  # nine tenths have the last token, which tells nothing
        (20, 179, (1, 2)),
        (0, 19, (0, 0)),
    ],
)
def test_an_ending_is_told_if_a_tenth_have_it_and_a_last_token_unless_nine_tenths_do(
    calls: int, ends: int, found: tuple[int, int]
) -> None:
    assert numbered(calls, ends) == found


def test_an_answer_of_one_token_counts_once() -> None:
    endings = Endings()
    for number in range(200):
        endings.number_of([CALL] if number < 19 else [number + 100, number + 400])
    assert endings.number_of([CALL]) == 0


def test_of_a_former_run_eight_endings_are_told_apart() -> None:
    endings = Endings()
    endings.restore([(number, END) for number in range(9)])
    assert [endings.number_of([number, END]) for number in range(9)] == [*range(1, 9), 0]


def test_where_what_is_before_the_last_token_differs_that_alone_tells() -> None:
    """As of formats that stop a call with another token than an answer, whatever the arguments end with."""
    endings, random = Endings(), Random(0)
    said = [
        [random.randrange(100, 5_000) for _ in range(20)] + [CALL if random.random() < 0.6 else END] for _ in range(900)
    ]
    numbers = [endings.number_of(each) for each in said]
    found = {(each[-1] == CALL, number) for each, number in zip(said[200:], numbers[200:], strict=True)}
    assert found == {(True, 1), (False, 2)} or found == {(True, 2), (False, 1)}
    assert {endings.number_of([1, 2, token]) for token in range(10, 50)} == {0}
    assert endings.number_of([CALL]) == endings.number_of([77, CALL])


def test_answers_that_are_cut_do_not_hide_which_of_the_others_are_calls() -> None:
    endings, random = Endings(), Random(0)
    said = [each if random.random() < 0.7 else each[:-2] for each in answers(random, 900, 0.5)]
    kinds: dict[str, set[int]] = {"call": set(), "answer": set(), "cut": set()}
    for number, each in enumerate(said):
        kind = "cut" if each[-1] != END else "call" if each[-2] == CALL else "answer"
        ending = endings.number_of(each)
        if number >= 200:
            kinds[kind].add(ending)
    assert sorted(map(len, kinds.values())) == [1, 1, 1]
    assert len(set.union(*kinds.values())) == 3
    assert kinds["cut"] == {0}


def test_conversations_whose_answers_end_unlike_are_predicted_apart() -> None:
    """By ``finish_reason`` where it says more than "stop", else by the last tokens once they are frequent."""
    conversations, random, found = new_conversations(), Random(0), set()
    for number in range(600):
        finish = random.choice([None, "stop", "tool_calls", "length"])
        calls = random.random() < 0.5
        words = [random.randrange(100, 5_000) for _ in range(20)]
        answer = [*words, *([CALL] if calls else []), END]
        first = told(float(number), range(10_000 * number, 10_000 * number + 100), answer, finish=finish)
        ending = conversations.record_turn(first, is_leaf=True).features[Feature.ENDING]
        if number >= 200:
            found.add((finish, calls, ending))
    frequent = 4  # the first of eight
    assert found == {
        (None, True, frequent),
        (None, False, 0),
        ("stop", True, frequent),
        ("stop", False, 1),
        *(("tool_calls", calls, 2) for calls in (False, True)),
        *(("length", calls, 3) for calls in (False, True)),
    }


@pytest.mark.parametrize("served", [500, pytest.param(None, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("policy", ["etlru", "tlru"])
def test_the_real_cache_finds_what_the_simulated_one_finds(policy: str, served: int | None) -> None:
    requests = open_trace(CALLS).requests[:served]
    real = RealCache(policy, 60_000, **SIZES)
    assert simulate(real, requests) == simulate(simulated_cache(policy, 60_000, **SIZES), requests)


def test_who_sees_how_answers_end_has_a_shorter_tail() -> None:
    with_endings = open_trace(CALLS).requests
    assert {request.ending[0] == 1 for request in with_endings} == {False, True}
    tel = []
    for requests in (with_endings, [replace(request, ending=()) for request in with_endings]):
        found = zip(requests, simulate(simulated_cache("etlru", 60_000, **SIZES), requests), strict=True)
        tel.append(sum(max(request.prompt_tokens - cached - 1_024, 0) for request, cached in found))
    assert tel[0] < 0.9 * tel[1]


def test_runs_of_agents_end_with_another_answer_than_a_call() -> None:
    requests = open_trace("agents:runs=80,calls_told=1").requests
    last = {request.conversation: request for request in requests}
    for request in requests:
        assert (request.ending[0] == 1) is (request is not last[request.conversation])
