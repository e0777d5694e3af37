"""The simulator's tree caches what a trie of single pages caches, which looks at every page for every eviction."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.caches.knowledge import TraceKnowledge
from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache
from eval.traces.request import Path, Request
from tests.helpers.examples import examples
from tests.helpers.random_traces import branching
from tests.helpers.reference import Page, PageTrie
from tests.helpers.scripts import CAPACITY_PAGES, PAGE_SIZES, Step, contexts, steps

# Of single ones only one in five is long enough for anything to be evicted.
scripts = st.lists(steps, min_size=3, max_size=4).map(lambda parts: [step for part in parts for step in part])

ANSWERED = [0.0, 0.3, 0.0, 0.8]
"""Shares of what a request may have of answer, in turn."""


def requests_of(script: list[Step], page_size: int, whole_messages: bool) -> list[tuple[list[int], Request]]:
    """PrefixIndex in tokens, for the reference, and as requests; some end in an answer of up to two pages."""
    made = contexts(script, page_size)
    prompts = [
        max(1, len(context) - round(ANSWERED[number % 4] * 2 * page_size)) for number, context in enumerate(made)
    ]
    return list(zip(made, branching(made, prompts, whole_messages), strict=True))


def tokens_in(cache: SimulatedCache) -> int:
    """Tokens in the tree, counted node by node; every node must be where its parent ends, and look itself up."""
    total, nodes = 0, [cache._tree.root]
    while nodes:
        node = nodes.pop()
        for key, child in node.children.items():
            assert child.parent is node
            assert key == cache._tree._child_key(child)
            assert node.end == child.start < child.end <= child.history
            assert child.end % cache.page_size == 0
            assert bool(child.leaf_id) == (not child.children)
            total += child.end - child.start
            nodes.append(child)
    return total


def check_books(cache: SimulatedCache) -> None:
    assert cache.resident == tokens_in(cache)
    assert cache.resident <= cache.capacity
    assert len(cache.order) == len(cache._leaves)


@pytest.mark.parametrize("whole_messages", [False, True], ids=["tokens", "messages"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(script=scripts, threshold_pages=st.floats(0.2, 50), next_prompt_pages=st.floats(0, 4))
@settings(max_examples=examples(100))
def test_cached_tokens_equal_algorithm_1_request_by_request(
    page_size: int, whole_messages: bool, script: list[Step], threshold_pages: float, next_prompt_pages: float
) -> None:
    next_prompt = round(next_prompt_pages * page_size)
    threshold = next_prompt + max(1, round(threshold_pages * page_size))
    capacity = CAPACITY_PAGES * page_size
    tlru = simulated_cache("tlru", capacity, threshold=threshold, next_prompt_estimate=next_prompt, page_size=page_size)
    lru = simulated_cache("lru", capacity, threshold=threshold, next_prompt_estimate=next_prompt, page_size=page_size)
    sides = [
        (tlru, PageTrie(capacity, page_size, threshold, next_prompt)),
        (lru, PageTrie(capacity, page_size, None, 0)),
    ]
    for context, request in requests_of(script, page_size, whole_messages):
        for cache, trie in sides:
            assert cache.request(request) == prompt_share(trie.request(context), request, page_size)
            assert cache.resident == len(trie.pages) * page_size
            check_books(cache)


class HindsightTrie(PageTrie):
    """Tail-Optimized Belady on single pages: what is not looked up again, what is not missed, what is missed last."""

    def __init__(self, capacity: int, page_size: int, threshold: int, trace: list[tuple[list[int], Request]]) -> None:
        super().__init__(capacity, page_size, threshold, 0)
        self.prompts = [context[: request.prompt_tokens] for context, request in trace]

    def _evict_one(self, in_use: set[int]) -> None:
        leaves = [page for page in self.pages if not page.children and id(page) not in in_use]
        victim = min(leaves, key=self._price)
        del victim.parent.children[victim.tokens]  # type: ignore[union-attr]
        self.pages.remove(victim)

    def _price(self, page: Page) -> tuple[bool, bool, float]:
        later = range(self.requests, len(self.prompts))  # the first request is number 1
        next_use = next((number for number in later if self._looks_up(self.prompts[number], page)), None)
        if next_use is None:
            return False, False, -math.inf
        would_miss = len(self.prompts[next_use]) - (page.depth - self.page_size)
        return True, would_miss > self.threshold, -next_use  # type: ignore[operator]

    @staticmethod
    def _looks_up(prompt: list[int], page: Page) -> bool:
        # Tokens of these scripts are never said twice: a last one says what comes before it.
        return len(prompt) >= page.depth and prompt[page.depth - 1] == page.tokens[-1]


@pytest.mark.parametrize("whole_messages", [False, True], ids=["tokens", "messages"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(script=scripts, threshold_pages=st.floats(0, 50))
@settings(max_examples=examples(60))
def test_oracles_evict_what_a_look_at_all_pages_and_the_whole_future_would(
    page_size: int, whole_messages: bool, script: list[Step], threshold_pages: float
) -> None:
    trace = requests_of(script, page_size, whole_messages)
    knowledge = TraceKnowledge([request for _, request in trace])
    threshold, capacity = round(threshold_pages * page_size), CAPACITY_PAGES * page_size
    arguments = {"next_prompt_estimate": 0, "page_size": page_size, "knowledge": knowledge}
    sides = [
        (
            simulated_cache("tail-belady", capacity, threshold=threshold, **arguments),
            HindsightTrie(capacity, page_size, threshold, trace),
        ),
        (
            simulated_cache("belady", capacity, threshold=threshold, **arguments),
            HindsightTrie(capacity, page_size, 0, trace),
        ),
    ]
    for context, request in trace:
        for cache, trie in sides:
            assert cache.request(request) == prompt_share(trie.request(context), request, page_size)
            assert cache.resident == len(trie.pages) * page_size
            check_books(cache)


@pytest.mark.parametrize("forced", [True, False])
@given(script=scripts, capacity_pages=st.integers(1, CAPACITY_PAGES))
@settings(max_examples=examples(80))
def test_no_more_is_resident_than_fits_even_of_contexts_that_do_not(
    forced: bool, script: list[Step], capacity_pages: int
) -> None:
    page_size = 16
    capacity = capacity_pages * page_size + 7  # the rest of a page is no use
    cache = simulated_cache(
        "tlru", capacity, threshold=5 * page_size, next_prompt_estimate=page_size, page_size=page_size, forced=forced
    )
    for _, request in requests_of(script, page_size, whole_messages=True):
        found = cache.request(request)
        assert found <= min(len(request.prompt), capacity)
        check_books(cache)


def prompt_share(found: int, request: Request, page_size: int) -> int:
    """Of the tokens found of a context, those that are pages of its prompt."""
    return min(found, len(request.prompt) // page_size * page_size)


def test_what_a_running_request_holds_is_given_back_though_another_context_has_split_it() -> None:
    first, other, large = branching(["aabb", "aac", "dddddddddd"], [4, 3, 10], whole_messages=False)
    cache = simulated_cache("lru", 10, threshold=1, next_prompt_estimate=0)
    cache.request(first)
    held = cache.hold(first)
    cache.request(other)  # "aa" and "bb" are nodes of their own from here on
    assert cache.held == 4
    assert not cache.fits(large)
    cache.release(held)
    assert cache.held == 0
    cache.request(large)
    assert (cache.held_of(large.context), cache.held_of(first.context)) == (10, 0)
    check_books(cache)


def test_a_context_fits_beside_what_is_held_and_what_it_shares_with_that_counts_once() -> None:
    # Capacity 10, "aabb" is held. "ee" is cached and held by nobody.
    said = ["aabb", "aac", "ee", "eeffff", "eefffff", "aadddddd", "aaddddddd"]
    first, *served, six, seven, eight, nine = branching(said, [len(text) for text in said], whole_messages=False)
    cache = simulated_cache("lru", 10, threshold=1, next_prompt_estimate=0)
    cache.request(first)
    cache.hold(first)
    for request in served:
        cache.request(request)
    assert [cache.fits(each) for each in (six, seven)] == [True, False]  # 4 + 6, 4 + 7
    assert [cache.fits(each) for each in (eight, nine)] == [True, False]  # 4 + 8 - 2, 4 + 9 - 2


def test_what_waits_is_used_in_the_order_in_which_it_is_looked_up() -> None:
    said = ["aa", "bb", "cc", "dd", "ee"]
    a, b, c, d, e = branching(said, [2] * 5, whole_messages=False)
    cache = simulated_cache("lru", 6, threshold=1, next_prompt_estimate=0)
    for request in (a, b, c):
        cache.request(request)
    cache.touch(b)
    cache.touch(a)
    for request, gone in ((d, c), (e, b)):
        cache.request(request)
        assert cache.held_of(gone.context) == 0
    assert cache.held_of(a.context) == 2


@pytest.mark.parametrize(("chunk", "resident"), [(1, 100), (30, 80)])
def test_at_least_a_trim_chunk_is_evicted_at_a_time(chunk: int, resident: int) -> None:
    # For 50 tokens in a cache of 100, 10 of 60 must go, or 30: of one context, or of twelve.
    for said in (["a" * 60, "z" * 50], [*(letter * 5 for letter in "abcdefghijkl"), "z" * 50]):
        cache = simulated_cache("lru", 100, threshold=1, next_prompt_estimate=0, trim_chunk=chunk)
        for request in branching(said, [len(text) for text in said], whole_messages=True):
            cache.request(request)
        assert cache.resident == resident


def test_a_learner_is_told_of_a_turn_what_a_server_would_tell_it() -> None:
    said = ["s" * 600 + "a" * 100, "s" * 600 + "b" * 200]
    first, second = branching(said, [700, 750], whole_messages=True)
    cache = simulated_cache("etlru", 10_000, threshold=2_048)
    cache.request(first)
    assert cache.request(replace(second, thought_tokens=30, session="task")) == 600
    known = cache.known_of(second.context)
    assert (known.shared_len, known.prompt_len, known.answer_len, known.thought_len) == (600, 750, 50, 30)
    assert known.session is not None


def test_a_context_larger_than_the_pool_keeps_its_whole_history() -> None:
    """A's 2,500 tokens do not fit into 1,000, and its budget is still 2,500 + 200 - 2,048 = 652 of them."""

    def turn(number: int, name: int, tokens: int) -> Request:
        path = Path((name,), (tokens,))
        return Request(float(number), str(name), path, path, tokens, 0)

    cache = simulated_cache("tlru", 1000, threshold=2048, next_prompt_estimate=200, forced=False)
    for number, (name, tokens) in enumerate([(1, 2500), (2, 900)]):
        cache.request(turn(number, name, tokens))
    assert cache.request(turn(2, 1, 2500)) == 652
