"""SAECache: the kinds of token and queues that pages are in, what these are worth, and which page goes for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from eval.caches.baselines import RULES
from eval.caches.pages import page_ids
from eval.caches.published.token_kinds import TokenKindCache
from eval.caches.simulator import simulate
from eval.traces.request import Path, Request
from tests.helpers.random_traces import asked, branching


def test_what_is_new_in_single_requests_goes_before_turns_of_chats() -> None:
    # "ab", "abcd" is a chat: its second turn is in the queue of chats. "xy" is newer, but a single request's: it goes.
    chat = {"conversation": "a"}
    requests = asked([("ab", chat), ("abcd", chat), ("xy", {}), ("z", {}), ("abcd", chat)])
    assert simulate(RULES["vllm"](6, 1), requests)[-1] == 3
    assert simulate(RULES["saecache"](6, 1), requests)[-1] == 4


def test_a_request_that_calls_a_tool_is_no_single_request() -> None:
    agent = {"conversation": "a", "stop": "tool_calls"}
    requests = asked([("ab", agent), ("xy", {}), ("z", {}), ("ab", agent)])
    assert simulate(RULES["vllm"](4, 1), requests)[-1] == 1
    assert simulate(RULES["saecache"](4, 1), requests)[-1] == 2


def test_answers_go_first_until_a_prompt_repeats_them() -> None:
    # "abcd" of an agent has the answer "cd". For "x" the answer gives up d, though "yz" of another agent is older.
    other, agent = ({"conversation": name, "stop": "tool_calls"} for name in ("b", "a"))
    requests = asked([("yz", other), ("abcd", agent), ("x", agent), ("yz", other)])
    with_answer = replace(requests[1], prompt=Path(requests[1].prompt.ids[:2], range(1, 3)), prompt_tokens=2)
    assert simulate(RULES["saecache"](6, 1), [requests[0], with_answer, *requests[2:]])[-1] == 2
    assert simulate(RULES["saecache"](6, 1), requests)[-1] == 1


def test_kinds_of_token_that_come_back_are_worth_more() -> None:
    # What tools say is read again by up to nine turns, what users say by one.
    requests, clock = [], 0.0
    for number in range(600):
        # Two agents in turn. One is fed by a tool and goes on for ten turns, the other by a user and ends after two.
        for name, turns, said in (("tool", 10, "tool"), ("user", 2, "user")):
            run, turn = divmod(number, turns)
            ids = tuple(range((2 * run + (said == "tool")) * 100, (2 * run + (said == "tool")) * 100 + turn + 1))
            path = Path(ids, range(1, turn + 2))
            clock += 1.0
            known: dict[str, Any] = {"input": said, "stop": "tool_calls", "answer_s": 0.0}
            requests.append(Request(clock, f"{name} {run}", path, path, turn + 1, 0, **known))
    cache: Any = RULES["saecache"](12, 1)
    simulate(cache, requests)
    assert cache.weights["tool"] > cache.weights["user"] > 1.0


def kinds(cache: TokenKindCache, request: Request) -> list[tuple[str, str]]:
    """(kind, queue) of each page of a context."""
    blocks = [cache._blocks[name] for name in page_ids(request.context, 1, cache._units)]
    return [(block.kind, block.queue) for block in blocks]


def test_tokens_of_an_agent_are_of_the_user_thought_answered_and_of_its_tool() -> None:
    first, second = branching(["uUta", "uUtao"], [2, 5], whole_messages=False)
    first = replace(first, conversation="a", stop="tool_calls", thought_tokens=1)
    second = replace(second, conversation="a", input="tool")
    cache = TokenKindCache(10, 1)
    cache.request(first)
    user, before = ("user", "agentic"), "evict-first"
    assert kinds(cache, first) == [user, user, ("thought", before), ("answer", before)]
    cache.request(second)  # what it repeats of the answer is a part of its prompt now
    agentic = [(kind, "agentic") for kind in ("user", "user", "thought", "answer", "tool")]
    assert kinds(cache, second) == agentic


def test_what_a_prompt_has_of_an_answer_that_was_not_cached_is_an_answer() -> None:
    first, second = asked([("u", {"conversation": "a", "output_tokens": 2}), ("uaao", {"conversation": "a"})])
    cache = TokenKindCache(10, 1)
    simulate(cache, [first, second])
    assert kinds(cache, second) == [(kind, "chat") for kind in ("user", "answer", "answer", "user")]


def test_what_a_first_turn_finds_is_a_system_prompt_and_the_rest_goes_first() -> None:
    first, second = asked([("sx", {}), ("sy", {"input": "tool"})])
    cache = TokenKindCache(10, 1)
    simulate(cache, [first, second])
    assert kinds(cache, second) == [("system", "structural"), ("tool", "evict-first")]


def test_what_comes_back_after_its_eviction_is_of_the_kind_that_it_was() -> None:
    requests = asked([("ab", {}), ("cd", {}), ("ab", {"input": "tool"})])
    cache = TokenKindCache(2, 1)
    simulate(cache, requests)
    assert [kind for kind, _ in kinds(cache, requests[-1])] == ["user", "user"]
    counts = cache._kinds["user"]
    assert (counts.found, counts.missed, counts.evicted, counts.regretted) == (0, 6, 4, 2)
    assert counts.weight == 1.0, "it is learned every 256 evictions"


def test_an_answer_that_is_cached_was_not_looked_up_and_is_no_miss() -> None:
    # "cd" is the answer to "ab": no miss. The next prompt has all four and finds them: hits of 2 answers and 2 users'.
    first, second = branching(["abcd", "abcde"], [2, 5], whole_messages=False)
    cache = TokenKindCache(10, 1)
    simulate(cache, [replace(first, conversation="a"), replace(second, conversation="a")])
    answers, users = cache._kinds["answer"], cache._kinds["user"]
    assert (answers.found, answers.missed) == (2, 0)
    assert (users.found, users.missed) == (2, 3), "a, b and e were looked up and not cached"


@pytest.mark.parametrize(
    ("regretted", "weight"),
    [
        (2, 1.4),  # 1 + 5 · 2 / 4 + 2 · 3 / 4 = 5: a tenth of the way
        (8, 1.65),  # 1 + 5 + 1.5 = 7.5: no share is more than 1
    ],
)
def test_a_weight_moves_a_tenth_of_the_way_to_what_was_seen(regretted: float, weight: float) -> None:
    counts, _ = TokenKindCache(1)._counts("user", "chat")
    counts.found, counts.missed, counts.evicted, counts.regretted = 3, 1, 4, regretted
    counts.learn()
    assert counts.weight == pytest.approx(weight)
    left = (counts.found, counts.missed, counts.evicted, counts.regretted)
    assert left == pytest.approx((2.97, 0.99, 3.96, 0.99 * regretted))


def test_waits_are_log_normal_and_learned() -> None:
    timing = TokenKindCache(1)._timings["chat"]
    assert timing.survival(math.exp(2.28)) == pytest.approx(0.5)
    assert timing.survival(math.exp(2.28 + 1.34)) == pytest.approx(0.1587, abs=1e-4)  # a deviation above the mean
    timing.learn(math.exp(3.28))
    assert timing.mean == pytest.approx(2.28 + 0.05)
    assert timing.variance == pytest.approx(1.34**2 + 0.05 * (1.0 - 1.34**2))


@pytest.mark.parametrize(("at_s", "is_learned"), [(0.05, False), (5.0, True), (4_000.0, False)])
def test_waits_of_less_than_a_tenth_of_a_second_or_more_than_an_hour_are_none(at_s: float, is_learned: bool) -> None:
    chat = {"conversation": "a"}
    cache = TokenKindCache(10, 1)
    before = cache._timings["chat"].mean
    simulate(cache, asked([("a", chat), ("ab", {**chat, "arrival_s": at_s})]))
    assert (cache._timings["chat"].mean != before) == is_learned


def test_a_page_is_worth_its_queue_times_its_kind_times_its_chance_by_its_age() -> None:
    chat = {"conversation": "a"}
    requests = asked([("ab", chat), ("abcd", chat), ("12345678x", {}), ("12345678y", {})])
    cache = TokenKindCache(40, 1)
    simulate(cache, requests)
    for kind, queue, weights in (("user", "chat", (3.0, 2.0)), ("system", "structural", (5.0, 7.0))):
        for counts, weight in zip(cache._counts(kind, queue), weights, strict=True):  # type: ignore[arg-type]
            counts.weight = weight
    cache._now_s = 11.0
    chat_page, *_ = (cache._blocks[name] for name in page_ids(requests[1].context, 1, cache._units))
    assert cache._score(chat_page) == pytest.approx(2 * 3 * cache._timings["chat"].survival(10.0) / 10.0)
    single = [cache._blocks[name] for name in page_ids(requests[3].context, 1, cache._units)]
    # Page n of 9 is in stretch n · 8 / 9 of 8, rounded down; its chance falls by an eighth each. It is 8 s old.
    bands = [0, 0, 1, 2, 3, 4, 5, 6]
    assert [cache._score(page) for page in single[:8]] == pytest.approx([7 * 5 * (1 - band / 8) / 8 for band in bands])
    assert cache._score(single[8]) == -8.0, "before all of these, the oldest first"
