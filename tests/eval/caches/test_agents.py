"""Rules that look at what a request is: workload-aware, Continuum's pins, SAECache's kinds of token."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from eval.caches.baselines import RULES
from eval.caches.published.token_kinds import TokenKindCache
from eval.caches.published.tool_ttl import best_ttl_s
from eval.caches.published.turns import Turns
from eval.caches.published.workload_aware import WorkloadAwareCache
from eval.caches.simulator import simulate
from eval.traces.request import Path, Request
from tests.helpers.random_traces import branching, random_tree


def asked(said: list[tuple[str, dict[str, Any]]]) -> list[Request]:
    """Requests a second apart, a letter a token, without answers, each with what else is known of it."""
    requests = branching([text for text, _ in said], [len(text) for text, _ in said], whole_messages=False)
    return [replace(request, **known) for request, (_, known) in zip(requests, said, strict=True)]


# ---- which turn a request is ----


def turns_of(requests: list[Request]) -> list[tuple[int, float | None]]:
    turns = Turns()
    served = [turns.serve(request, request.context.ids, len(request.prompt.ids)) for request in requests]
    return [(turn.number, turn.wait_s) for turn in served]


def test_a_named_conversation_counts_its_turns_and_the_wait_since_the_answer() -> None:
    a, b = {"conversation": "a", "answer_s": 0.25}, {"conversation": "b", "answer_s": 5.0}
    # Of "a" the second turn comes 2 s after the first, whose answer took 0.25 s; of "b" before the answer has ended.
    requests = asked([("a", a), ("b", b), ("ax", a), ("by", b)])
    assert turns_of(requests) == [(1, None), (1, None), (2, 1.75), (2, 0.0)]


def test_without_names_a_prompt_goes_on_with_the_longest_context_that_it_begins_with() -> None:
    requests = asked([("s", {}), ("sab", {}), ("sabc", {}), ("sad", {}), ("sx", {})])
    # "s" is gone on with by "sab", and "sab" by "sabc"; "sad" and "sx" then have nothing left to go on with.
    assert [number for number, _ in turns_of(requests)] == [1, 2, 3, 1, 1]


def test_the_answer_that_was_not_cached_is_the_first_that_is_new_in_the_next_prompt() -> None:
    turns, path = Turns(), Path((1,), (100,))
    first = Request(0.0, "a", path, path, 110, 30)
    turns.serve(first, (1,), 1)
    second = turns.serve(replace(first, arrival_s=9.0), (1,), 1)
    assert (second.answer_before.start, second.answer_before.stop) == (100, 140)


# ---- workload-aware ----

KINDS = [{"category": "again"}, {"category": "once"}]


def test_pages_go_by_the_chance_that_their_kind_of_request_is_followed_by_a_use() -> None:
    # "again" comes back each time, "once" never. When "z" comes, "q" (again) is older than "v" (once).
    again, once = KINDS
    said = [(letter, again) for letter in "pppp"] + [(letter, once) for letter in "rstu"]
    requests = asked([*said, ("q", again), ("v", once), ("z", once), ("q", again)])
    assert simulate(RULES["vllm"](2, 1), requests)[-1] == 0
    assert simulate(RULES["workload-aware"](2, 1), requests)[-1] == 1


def test_a_page_that_comes_back_after_its_eviction_still_says_that_its_kind_does() -> None:
    # In a cache of 2 no page of "again" is ever found, yet each comes back 3 s later: so "g" outlives "m", which is
    # newer.
    again, once = KINDS
    said = [(letter, kind) for letter in "abab" for kind in (again,)]
    for number in range(12):
        said += [("ab"[number % 2], again), ("cdefghijklmnopq"[number], once)]
    requests = asked([*said, ("G", again), ("M", once), ("Z", once), ("G", again)])
    assert simulate(RULES["workload-aware"](2, 1), requests)[-1] == 1
    assert simulate(RULES["vllm"](2, 1), requests)[-1] == 0


def test_of_one_kind_the_least_recently_used_goes() -> None:
    for seed in range(60):
        random = Random(seed)
        # All are of one kind: the first turn of a conversation of its own.
        requests = [replace(request, conversation=str(n)) for n, request in enumerate(random_tree(random, longest=40))]
        capacity = random.randint(1, 30)
        found = simulate(RULES["workload-aware"](capacity, 1), requests)
        assert found == simulate(RULES["vllm"](capacity, 1), requests), f"{seed = }"


# ---- rules with groups of pages ----


class _WorkloadAware(WorkloadAwareCache):
    victims = 0

    def _victim(self) -> Any:
        return _least_of_all_leaves(self, super()._victim())


class _TokenKinds(TokenKindCache):
    victims = 0

    def _victim(self) -> Any:
        return _least_of_all_leaves(self, super()._victim())


def _least_of_all_leaves(cache: Any, victim: Any) -> Any:
    leaves = [block for block in cache._blocks.values() if cache.may_go(block)]
    assert cache._score(victim) == min(map(cache._score, leaves))
    cache.victims += 1
    return victim


@pytest.mark.parametrize("kind", [_WorkloadAware, _TokenKinds])
def test_the_leaf_that_goes_is_worth_least_of_all_leaves(kind: type[_WorkloadAware | _TokenKinds]) -> None:
    victims = 0
    for seed in range(60):
        random = Random(seed)
        stops: list[Any] = [None, "stop", "tool_calls"]
        requests = [
            replace(
                request,
                conversation=random.choice([None, "a", "b", "c"]),
                category=random.choice([None, "text", "file"]),
                input=random.choice(["user", "tool"]),
                stop=random.choice(stops),
            )
            for request in random_tree(random, longest=60, answers="abx")
        ]
        cache = kind(random.randint(2, 30), 1)
        simulate(cache, requests)
        victims += cache.victims
    assert victims > 1000


# ---- Continuum ----


@pytest.mark.parametrize(
    ("waits_s", "reload_s", "ttl_s"),
    [
        ([1.0, 2.0, 3.0, 40.0], 20.0, 3.0),  # 0.25 · 20 − 1 = 4, 8, 12, −20
        ([1.0, 2.0, 3.0, 40.0], 200.0, 40.0),  # 49, 98, 147, 160
        ([30.0, 40.0], 20.0, 0.0),  # −20, −20
    ],
)
def test_a_pin_lasts_for_the_wait_that_is_worth_most(waits_s: list[float], reload_s: float, ttl_s: float) -> None:
    assert best_ttl_s(waits_s, reload_s) == ttl_s


def test_a_context_whose_answer_calls_a_tool_stays_for_its_time_to_live() -> None:
    # Capacity 4. "ab" calls a tool at 0 s; nothing is known of tools, so it is pinned for 2 s. "ef" at 2 s ...
    tool, plain = {"conversation": "t", "stop": "tool_calls", "answer_s": 0.5}, {"conversation": "u"}
    requests = asked([("ab", tool), ("cd", plain), ("ef", plain), ("ab", tool)])
    assert simulate(RULES["vllm"](4, 1), requests) == [0, 0, 0, 0]
    # ... takes "cd": the pin of "ab" ends at 0.5 + 2 = 2.5 s.
    assert simulate(RULES["continuum"](4, 1), requests) == [0, 0, 0, 2]


def test_when_its_time_has_passed_a_context_is_as_if_just_used() -> None:
    # The pin of "ab" ends at 2 s, before "ef": "ab" is then younger than "cd", which goes; and then "gh" takes "ab".
    tool, plain = {"conversation": "t", "stop": "tool_calls", "answer_s": 0.0}, {"conversation": "u"}
    requests = asked([("ab", tool), ("cd", plain), ("ef", plain), ("gh", plain), ("ab", tool)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 0
    requests = asked([("ab", tool), ("cd", plain), ("ef", plain), ("ab", tool)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 2


def test_if_all_is_pinned_the_conversation_goes_that_began_last() -> None:
    first, last = ({"conversation": name, "stop": "tool_calls", "answer_s": 60.0} for name in ("first", "last"))
    requests = asked([("ab", first), ("cd", last), ("ef", {}), ("ab", first), ("cd", last)])
    assert simulate(RULES["continuum"](4, 1), requests) == [0, 0, 0, 2, 0]


def test_shared_pages_stay_pinned_until_the_last_pin_has_ended() -> None:
    # "S" is pinned by both until 2 s and 61 s. At 3 s "xy" finds no room but in "b", and the rest of what "a" had.
    a = {"conversation": "a", "stop": "tool_calls", "answer_s": 0.0}
    b = {"conversation": "b", "stop": "tool_calls", "answer_s": 60.0}
    requests = asked([("Sa", a), ("Sb", b), ("u", {}), ("x", {}), ("v", {}), ("Sb", b)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 2
    assert simulate(RULES["vllm"](4, 1), requests)[-1] < 2


def test_the_times_of_tools_are_learned_from_a_hundred_on() -> None:
    # 100 tools took 3 s. A context of 40,000 tokens costs 3.9 s: 3.9 − 3 > 0, so it is pinned for 3 s. One of 20,000
    # tokens costs 1.95 s, less than the wait: it is not pinned. The 60,000 tokens that come then have 50,000 beside it.
    pinned = {"stop": "tool_calls", "input": "tool", "answer_s": 0.0, "wait_s": 3.0}
    learned = [one_page(number, 0.0, 1_000, conversation="t", **pinned) for number in range(101)]
    for tokens, found in ((40_000, 40_000), (20_000, 10_000)):
        context = [one_page(1000, 10.0, tokens, conversation="u", stop="tool_calls", answer_s=0.0)]
        others = [one_page(2000, 12.0, 20_000), one_page(3000, 12.5, 40_000)]
        again = [one_page(1000, 12.9, tokens, conversation="u")]
        cache = RULES["continuum"](tokens + 50_000, 1_000)
        assert simulate(cache, [*learned, *context, *others, *again])[-1] == found


def one_page(unit: int, arrival_s: float, tokens: int, conversation: str | None = None, **known: Any) -> Request:
    """A request whose context is one unit of so many tokens."""
    path = Path((unit,), (tokens,))
    return Request(arrival_s, conversation, path, path, tokens, 0, **known)


@pytest.mark.parametrize("stop", [None, "stop"])
def test_without_tools_continuum_is_lru(stop: Any) -> None:
    for seed in range(60):
        random = Random(seed)
        requests = [
            replace(request, conversation=str(random.randrange(4)), stop=stop)
            for request in random_tree(random, longest=40, answers="abx")
        ]
        capacity = random.randint(1, 30)
        assert simulate(RULES["continuum"](capacity, 1), requests) == simulate(RULES["vllm"](capacity, 1), requests)


# ---- SAECache ----


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
