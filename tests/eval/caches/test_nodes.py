"""The tree of nodes evicts what SGLang's does; and hits per token on it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from eval.caches.baselines import RULES
from eval.caches.nodes import Node, NodeCache
from eval.caches.published.hits_per_token import hits_per_token
from eval.caches.real import RealCache
from eval.caches.simulator import simulate
from tests.helpers.random_traces import branching, random_tree

RANKS: dict[str, Callable[[Node], float]] = {
    "lru": lambda node: 0,
    "lfu": lambda node: node.hits,
    "slru": lambda node: node.hits >= 2,
}


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("policy", RANKS)
def test_under_sglangs_rules_it_finds_what_sglang_finds(policy: str, page_size: int) -> None:
    unlike_pages = 0
    for seed in range(25):
        random = Random(seed)
        requests = random_tree(random, longest=50, page=page_size, whole_messages=True, answers="abx")
        capacity, chunk = random.randint(3, 40) * page_size, random.choice([1, 2, 3, 100]) * page_size
        found = simulate(NodeCache(capacity, page_size, RANKS[policy], chunk), requests)
        stock = RealCache(policy, capacity, stock=True, page_size=page_size, chunk=chunk)
        assert found == simulate(stock, requests), f"{seed = }"
        by_page = "vllm" if policy == "lru" else policy
        unlike_pages += found != simulate(RULES[by_page](capacity, page_size), requests)
    assert unlike_pages > 5


def test_of_nodes_used_as_often_the_largest_goes_though_it_is_newer() -> None:
    # Capacity 6. "ef" ranks (1 + 1) / 2 = 1, "abcd" (1 + 1) / 4 = 0.5: "g" takes all of "abcd", where lru takes "ef".
    requests = branching(["ef", "abcd", "g", "ef"], [2, 4, 1, 2], whole_messages=False)
    assert simulate(RULES["hpt"](6, 1), requests) == [0, 0, 0, 2]
    assert simulate(RealCache("lru", 6, stock=True), requests) == [0, 0, 0, 0]


def test_hits_make_up_for_size() -> None:
    # "abcd" is used three times more: (4 + 1) / 4 = 1.25 against 1 of "ef", which goes.
    said = ["abcd", "abcd", "abcd", "abcd", "ef", "g", "abcd"]
    requests = branching(said, [len(context) for context in said], whole_messages=False)
    assert simulate(RULES["hpt"](6, 1), requests) == [0, 4, 4, 4, 0, 0, 4]


def test_the_rank_is_hits_and_one_over_pages() -> None:
    assert hits_per_token(Node(range(8), None, hits=3)) == 0.5
