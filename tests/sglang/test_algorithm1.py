"""The real SGLang cache with our order caches, after every request, what the paper's Algorithm 1 says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru import Config
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, cache_params, stock_cache
from tests.helpers.caches import Driver, our_cache
from tests.helpers.examples import examples
from tests.helpers.reference import PageTrie
from tests.helpers.scripts import CAPACITY_PAGES, PAGE_SIZES, Step, contexts, lines, steps

pytestmark = pytest.mark.usefixtures("tree_core")


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(script=steps, threshold_pages=st.floats(0.2, 50), next_prompt_pages=st.floats(0, 4))
@settings(max_examples=examples(60))
def test_cached_tokens_equal_algorithm_1_after_every_request(
    page_size: int, script: list[Step], threshold_pages: float, next_prompt_pages: float
) -> None:
    next_prompt = round(next_prompt_pages * page_size)
    threshold = next_prompt + max(1, round(threshold_pages * page_size))
    capacity = CAPACITY_PAGES * page_size
    config = {"threshold": threshold, "next_prompt_estimate": next_prompt}
    real, model = (
        Driver(our_cache(capacity, page_size, **config)),
        PageTrie(capacity, page_size, threshold, next_prompt),
    )
    seen: list[list[int]] = []
    for context in contexts(script, page_size):
        assert real.request(context) == model.request(context)
        seen.append(context)
        assert [real.resident(past) for past in seen[-12:]] == [resident(model, past) for past in seen[-12:]]
    assert real.cache.full_evictable_size() == len(model.pages) * page_size
    real.cache.sanity_check()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(script=steps)
@settings(max_examples=examples(40))
def test_a_threshold_that_makes_everything_or_nothing_safe_gives_lru(page_size: int, script: list[Step]) -> None:
    capacity = CAPACITY_PAGES * page_size
    everything = Driver(our_cache(capacity, page_size, threshold=10**9, next_prompt_estimate=0))
    # One token above the estimate: L - 1 tokens must stay, which at pages of more than one token is all of them.
    nothing = Driver(our_cache(capacity, page_size, threshold=10**6 + 1, next_prompt_estimate=10**6))
    lru = PageTrie(capacity, page_size, None, 0)
    for context in contexts(script, page_size):
        cached = lru.request(context)
        assert everything.request(context) == cached
        if page_size > 1:
            assert nothing.request(context) == cached


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("core", ["python", "rust"])
@given(script=lines)
@settings(max_examples=examples(25))
def test_lru_caches_what_stock_caches_but_for_the_tail_of_its_last_victim(
    page_size: int, core: str, script: list[Step]
) -> None:
    """On conversations in line. A request that branches off what only ours still has of a victim uses it, after which
    the two caches have seen different things and may well differ.
    """
    capacity = CAPACITY_PAGES * page_size
    ours, stock = (
        Driver(our_cache(capacity, page_size, policy="lru")),
        Driver(stock_cache(capacity, page_size, core=core)),
    )
    seen: list[list[int]] = []
    for context in contexts(script, page_size):
        ours.request(context)
        stock.request(context)
        if context not in seen:
            seen.append(context)
        kept = [(ours.resident(past), stock.resident(past)) for past in seen]
        assert all(mine >= theirs for mine, theirs in kept)
        # Stock took all of the victim it ended with. Ours left the front of that one node, which every path that
        # ran through the node still shows, and nothing else.
        left = {mine - theirs for mine, theirs in kept if mine > theirs}
        assert ours.cache.full_evictable_size() - stock.cache.full_evictable_size() == (max(left) if left else 0)


@pytest.mark.parametrize(("policy", "left"), [("stock", (100, 0)), ("lru", (100, 50)), ("tlru", (50, 100))])
def test_to_leave_a_path_within_a_node_is_a_use_of_what_is_behind_it_under_lru_alone(
    policy: str, left: tuple[int, int], tree_core: Core
) -> None:
    """A and B of 100 tokens, then 50 of A and 50 others: 250 are held. Another 100 are 50 too many for a pool of 300.

    By that use B is the oldest under lru, as in stock, which drops it whole. Without it the second half of A is.
    """
    if policy == "stock":
        driver = Driver(stock_cache(300, core=tree_core))
    else:
        driver = Driver(our_cache(300, policy=policy, threshold=10**9, next_prompt_estimate=0))
    a, b, fork, last = (list(range(1_000 * name, 1_000 * name + 100)) for name in range(4))
    for context in (a, b, a[:50] + fork[:50], last):
        driver.request(context)
    assert (driver.resident(a), driver.resident(b)) == left


def test_two_caches_fed_the_same_evict_the_same() -> None:
    def run() -> list[int]:
        driver = Driver(build_cache(cache_params(640, 16), Config(threshold=100, next_prompt_estimate=20)))
        found = []
        for request in range(400):
            found.append(driver.turn(f"{request * 7919 % 23}", 3 + request * 31 % 90))
            if len(driver.histories[f"{request * 7919 % 23}"]) > 400:
                driver.histories[f"{request * 7919 % 23}"].clear()
            found += [driver.cached(name) for name in driver.histories]
        return found

    assert run() == run()


def resident(model: PageTrie, tokens: list[int]) -> int:
    page, size = model.root, model.page_size
    for start in range(0, len(tokens) - size + 1, size):
        child = page.children.get(tuple(tokens[start : start + size]))
        if child is None:
            break
        page = child
    return page.depth
