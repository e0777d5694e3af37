"""Rules that look at what a request is: workload-aware, Continuum's pins."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import Any

import pytest

from eval.caches.baselines import RULES
from eval.caches.published.token_kinds import TokenKindCache
from eval.caches.published.tool_ttl import ToolTtlCache, best_ttl_s
from eval.caches.published.turns import Turns
from eval.caches.published.workload_aware import WorkloadAwareCache
from eval.caches.simulator import simulate
from eval.traces.request import Path, Request
from tests.helpers.random_traces import asked, branching, random_tree

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


def test_of_two_contexts_a_prompt_goes_on_with_the_longer_though_the_other_is_newer() -> None:
    assert turns_of(asked([("sab", {}), ("s", {}), ("sabc", {})]))[-1] == (2, 2.0)


def test_an_answer_is_nothing_that_a_prompt_begins_with() -> None:
    assert turns_of(branching(["sab", "sab"], [3, 1], whole_messages=False)) == [(1, None), (1, None)]


def test_an_answer_whose_end_is_not_known_took_20_ms_a_token() -> None:
    c = {"conversation": "c"}
    assert turns_of(asked([("c", {**c, "output_tokens": 50}), ("d", {}), ("cx", c)]))[-1] == (2, 1.0)


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


def test_a_use_long_after_an_eviction_still_says_that_its_kind_comes_back() -> None:
    # In a cache of 2 each page of "again" is used once more, 21 pages later. "G" then outlives "M", which is newer.
    again, once = KINDS
    said = [(letter, kind) for _ in range(2) for letter in "abcdefghijk" for kind in (again,)]
    said = [pair for n, one in enumerate(said) for pair in (one, (chr(1000 + n), once))]
    requests = asked([*said, ("G", again), ("M", once), ("Z", once), ("G", again)])
    assert simulate(RULES["workload-aware"](2, 1), requests)[-1] == 1
    assert simulate(RULES["vllm"](2, 1), requests)[-1] == 0


@pytest.mark.parametrize(("every_s", "found"), [(0.25, 0), (0.35, 1)])
def test_a_use_within_300_ms_says_nothing_of_its_kind(every_s: float, found: int) -> None:
    # 20 conversations say "p" (again). When "z" comes, "q" (again) is older than "v" (once): it stays if they said so.
    again, once = KINDS
    said = [("p", {**again, "conversation": str(number), "arrival_s": every_s * number}) for number in range(20)]
    later = [("r", once), ("s", once), ("t", once), ("q", again), ("v", once), ("z", once), ("q", again)]
    said += [(letter, {**kind, "arrival_s": 10.0 + number}) for number, (letter, kind) in enumerate(later)]
    assert simulate(RULES["workload-aware"](2, 1), asked(said))[-1] == found


class LookAtEveryPage:
    """The rule as the paper has it, at pages of a token: what a look at every page would evict."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.pages: dict[int, tuple[Any, float, int]] = {}  # kind, last use in s, and in which order they were used
        self.parents: dict[int, int | None] = {}
        self.ghosts: dict[int, tuple[Any, float, int]] = {}
        self.uses: Counter[Any] = Counter()
        self.waits_s: dict[Any, list[float]] = defaultdict(list)
        self.turns: Counter[str | None] = Counter()
        self.order = 0

    def request(self, request: Request) -> int:
        now, path = request.arrival_s, request.context.ids[: self.capacity]
        found = list(takewhile(self.pages.__contains__, path))
        for name in found:
            self._see_again(self.pages[name], now)
        returned = []
        for name, parent in list(zip(path, (None, *path), strict=False))[len(found) :]:
            returned += [self.ghosts.pop(name)] if name in self.ghosts else []
            if len(self.pages) == self.capacity:
                inner = {self.parents[each] for each in self.pages}
                leaves = [each for each in self.pages if each not in inner and each not in path]
                victim = min(leaves, key=lambda each: self._worth(self.pages[each], now))
                self.ghosts[victim] = self.pages.pop(victim)
            self.pages[name], self.parents[name] = (None, now, 0), parent
        self.turns[request.conversation] += 1
        kind = request.category or request.input, min(self.turns[request.conversation], 10)
        self.uses[kind] += len(path)
        for page in returned:
            self._see_again(page, now)
        for name in reversed(path):
            self.order += 1
            self.pages[name] = kind, now, self.order
        return min(len(found), len(request.prompt))

    def _see_again(self, page: tuple[Any, float, int], now: float) -> None:
        if now - page[1] > 0.3:
            self.waits_s[page[0]].append(now - page[1])

    def _worth(self, page: tuple[Any, float, int], now: float) -> tuple[float, int]:
        kind, last_s, order = page
        reuses = 1 + len(self.waits_s[kind])
        mean_s, age_s = (60.0 + sum(self.waits_s[kind])) / reuses, now - last_s
        until = math.exp(-age_s / mean_s) - math.exp(-(age_s + 5.0) / mean_s)
        return reuses / (2 + self.uses[kind]) * until, order


def test_workload_aware_evicts_what_a_look_at_every_page_would() -> None:
    unlike_lru = 0
    for seed in range(10):
        random, at = Random(seed), 0.0
        requests = []
        for request in random_tree(random, longest=80, answers="abx"):
            at += random.expovariate(0.2)
            known: dict[str, Any] = {
                "category": random.choice([None, "text"]),
                "input": random.choice(["user", "tool"]),
            }
            requests.append(replace(request, arrival_s=at, conversation=random.choice("abc"), **known))
        capacity = random.randint(2, 20)
        found = simulate(RULES["workload-aware"](capacity, 1), requests)
        assert found == simulate(LookAtEveryPage(capacity), requests), f"{seed = }"
        unlike_lru += found != simulate(RULES["vllm"](capacity, 1), requests)
    assert unlike_lru > 5


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
        ([1.0, 60.0], 2.5, 1.0),  # 0.25, −57.5
        ([10.0], 10.0, 0.0),  # 0: nothing is gained
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


def test_the_time_to_live_begins_when_the_answer_ends() -> None:
    # The answer of "ab" ends at 10 s. When "ef" comes at 5 s "ab" is pinned, and "cd" goes, though it came at 4 s.
    tool = {"conversation": "t", "stop": "tool_calls", "answer_s": 10.0}
    requests = asked([("ab", tool), *((said, {"arrival_s": at_s}) for at_s, said in ((4.0, "cd"), (5.0, "ef")))])
    again = replace(requests[0], arrival_s=6.0)
    assert simulate(RULES["continuum"](4, 1), [*requests, again])[-1] == 2


def test_when_its_time_has_passed_a_context_is_as_if_just_used() -> None:
    # The pin of "ab" ends at 2 s, before "ef": "ab" is then younger than "cd", which goes; and then "gh" takes "ab".
    tool, plain = {"conversation": "t", "stop": "tool_calls", "answer_s": 0.0}, {"conversation": "u"}
    requests = asked([("ab", tool), ("cd", plain), ("ef", plain), ("gh", plain), ("ab", tool)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 0
    requests = asked([("ab", tool), ("cd", plain), ("ef", plain), ("ab", tool)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 2


def test_a_second_pin_holds_though_the_time_of_the_first_has_passed() -> None:
    # "ab" is pinned at 0 s until 2 s, "abc" at 1 s until 3 s. At 2.5 s "zw" takes "xy", which came at 2 s.
    tool = {"conversation": "t", "stop": "tool_calls", "answer_s": 0.0}
    requests = asked([("ab", tool), ("abc", tool), ("xy", {}), ("zw", {"arrival_s": 2.5}), ("abc", tool)])
    assert simulate(RULES["continuum"](5, 1), requests)[-1] == 3


def test_if_all_is_pinned_the_conversation_goes_that_began_last() -> None:
    first, last = ({"conversation": name, "stop": "tool_calls", "answer_s": 60.0} for name in ("first", "last"))
    requests = asked([("ab", first), ("cd", last), ("ab", first), ("ef", {}), ("ab", first), ("cd", last)])
    requests[3:] = [replace(request, arrival_s=request.arrival_s + 30.0) for request in requests[3:]]  # answers go on
    assert simulate(RULES["continuum"](4, 1), requests) == [0, 0, 2, 0, 2, 0]


def test_the_last_thousand_times_of_tools_are_known() -> None:
    cache = ToolTtlCache(4, 1)
    for wait_s in [50.0] * 500 + [3.0] * 1_000:
        cache._learn(wait_s)
    assert cache._sorted == [3.0] * 1_000


def test_shared_pages_stay_pinned_until_the_last_pin_has_ended() -> None:
    # "S" is pinned by both until 2 s and 61 s. At 3 s "xy" finds no room but in "b", and the rest of what "a" had.
    a = {"conversation": "a", "stop": "tool_calls", "answer_s": 0.0}
    b = {"conversation": "b", "stop": "tool_calls", "answer_s": 60.0}
    requests = asked([("Sa", a), ("Sb", b), ("u", {}), ("x", {}), ("v", {}), ("Sb", b)])
    assert simulate(RULES["continuum"](4, 1), requests)[-1] == 2
    assert simulate(RULES["vllm"](4, 1), requests)[-1] < 2


@pytest.mark.parametrize(
    ("said", "tokens", "found"), [("tool", 30_000, 30_000), ("tool", 20_000, 10_000), ("user", 30_000, 20_000)]
)
def test_the_times_of_tools_are_learned_from_a_hundred_on(said: str, tokens: int, found: int) -> None:
    # 100 tools took 3 s. A context of 30,000 tokens costs 2.9 s and its attention 1.7: 4.6 − 3 > 0, so it is pinned for
    # 3 s. One of 20,000 costs 2.0 + 0.8 s, less than the wait: not pinned. The 60,000 tokens that come then have 50,000
    # beside it.
    # What users take is not learned: then the pin lasts for 2 s, and the first that is taken is of this context.
    pinned = {"stop": "tool_calls", "input": said, "answer_s": 0.0, "wait_s": 3.0}
    learned = [one_page(number, 0.0, 1_000, conversation="t", **pinned) for number in range(101)]
    context = [one_page(1000, 10.0, tokens, conversation="u", stop="tool_calls", answer_s=0.0)]
    context = [replace(request, prompt_tokens=100, output_tokens=tokens - 100) for request in context]
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
