"""ARC, S3-FIFO, SIEVE, LFU and SLRU: what their references evict where there are no prefixes, and what they do on a
tree of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import libcachesim
import pytest

from eval.caches.baselines import RULES
from eval.caches.blocks import TreeCache
from eval.caches.pages import page_ids
from eval.caches.published.arc import ArcCache
from eval.caches.real import RealCache
from eval.caches.simulator import Cache, known_prefix, simulate
from eval.traces.request import Request
from tests.helpers.libcachesims import libcachesim_hits
from tests.helpers.random_traces import branching, random_tree, single_blocks

REFERENCES = {"arc": libcachesim.ARC, "s3-fifo": libcachesim.S3FIFO, "sieve": libcachesim.Sieve}


def blocks(random: Random) -> list[int]:
    """1,500 blocks, in turn such that are asked for much more often than others, scans, some again, and a few."""
    ids: list[int] = []
    scanned = 1_000
    while len(ids) < 1_500:
        what = random.random()
        if what < 0.4:
            ids += [int(random.paretovariate(0.6)) % 200 + 1 for _ in range(100)]
        elif what < 0.7:
            ids += range(scanned, scanned + 60)
            scanned += random.choice([0, 0, 30, 60])
        else:
            first = random.randrange(200)
            ids += [first + random.randrange(40) for _ in range(100)]
    return ids


@pytest.mark.parametrize("name", REFERENCES)
def test_without_prefixes_a_rule_hits_what_its_reference_does(name: str) -> None:
    for seed in range(25):
        random = Random(seed)
        ids = blocks(random)
        capacity = random.randint(20, 100)  # libCacheSim has no S3-FIFO for less
        found = simulate(RULES[name](capacity, 1), single_blocks(ids))
        assert found == libcachesim_hits(REFERENCES[name], ids, capacity), f"{seed = }"


@pytest.mark.parametrize("name", ["lfu", "slru"])
def test_by_the_page_a_rule_of_sglang_is_sglangs_where_each_page_is_a_node(name: str) -> None:
    unlike_lru = 0
    for seed in range(30):
        random = Random(seed)
        requests = random_tree(random, longest=50, answers="abx")
        capacity = random.randint(1, 40)
        found = simulate(RULES[name](capacity, 1), requests)
        assert found == simulate(RealCache(name, capacity, stock=True, chunk=1), requests), f"{seed = }"
        unlike_lru += found != simulate(RULES["vllm"](capacity, 1), requests)
    assert unlike_lru > 10


def turns_of(said: Sequence[str]) -> list[Request]:
    """Requests a second apart, a letter a token, without answers."""
    return branching(said, [len(context) for context in said], whole_messages=False)


@pytest.mark.parametrize(
    ("build", "found"),
    [
        # Capacity 6. "ab" is used twice, then "cdef" and "gh" come once each. LRU has lost "ab" by then.
        ("vllm", 0),
        # slru and lfu take d, c and what is behind them: pages that one request has used.
        ("slru", 2),
        ("lfu", 2),
        # arc: "ab" is in T2; the target of T1 is 0, so T1 gives up f and e.
        ("arc", 2),
        # The hand of sieve passes b, which was used, and takes f, the oldest leaf behind it, and e.
        ("sieve", 2),
    ],
)
def test_a_prefix_that_was_used_twice_outlives_what_was_used_once(build: str, found: int) -> None:
    requests = turns_of(["ab", "ab", "cdef", "gh", "ab"])
    assert simulate(RULES[build](6, 1), requests) == [0, 2, 0, 0, found]


def test_s3_fifo_keeps_in_the_main_queue_what_was_used_twice_more() -> None:
    # Capacity 20: 2 pages are the share of the small queue, and a to r filled the main queue, not full, as they came.
    # "A" and "B" are in the small queue. "A" is used twice, so it moves on when "s" needs room, and "B" is evicted.
    requests = turns_of(["A", "B", "A", "A", "abcdefghijklmnopqr", "s", "A", "B"])
    assert simulate(RULES["s3-fifo"](20, 1), requests) == [0, 0, 1, 1, 0, 0, 1, 0]


def test_s3_fifo_moves_pages_that_are_no_leaves_into_the_main_queue() -> None:
    # Capacity 20. "ab" fills the share of the small queue, c and d to t enter the main queue. "x" finds a and b used
    # twice: they move on, so that x is alone in the small queue. For "y" the main queue gives up s, and x stays.
    requests = turns_of(["ab", "abc", "abc", "defghijklmnopqrst", "x", "y", "x"])
    assert simulate(RULES["s3-fifo"](20, 1), requests) == [0, 2, 3, 0, 0, 0, 1]


def test_s3_fifo_caches_in_the_main_queue_what_is_used_after_it_was_to_go() -> None:
    # Capacity 20. For "x" b, used once, is to go from the small queue, and c from the main queue, which is a leaf and
    # frees b. "ab" finds b still there: it is now in the main queue, behind t to d, and outlives "u", "v" and "w".
    requests = turns_of(["ab", "abc", "defghijklmnopqrst", "x", "ab", "u", "v", "w", "ab"])
    assert simulate(RULES["s3-fifo"](20, 1), requests) == [0, 2, 0, 0, 2, 0, 0, 0, 2]


def test_the_hand_of_sieve_passes_pages_that_are_no_leaves() -> None:
    # Capacity 4. For "e" the hand passes b and a, which "abc" used, and takes c. For "f" it passes d and e, which were
    # used twice, and comes to b: not used since it passed.
    requests = turns_of(["ab", "abc", "d", "d", "e", "e", "f", "d"])
    assert simulate(RULES["sieve"](4, 1), requests) == [0, 2, 0, 1, 0, 1, 0, 1]


def test_a_page_that_the_hand_of_sieve_chose_goes_once_nothing_continues_it() -> None:
    # Capacity 3. For "y" the hand passes a, x and b, and then chooses a, which "ab" continues, and x. For "z" it takes
    # b. Now a is a leaf: "w" takes it before the hand comes to y.
    requests = turns_of(["a", "x", "ab", "x", "ab", "y", "z", "w", "y"])
    assert simulate(RULES["sieve"](3, 1), requests) == [0, 0, 1, 1, 2, 0, 0, 0, 1]


def test_what_the_hand_of_sieve_chose_is_as_new_once_it_is_used() -> None:
    # As before, but "ab" comes before "z": a enters behind y. For "z" the hand passes b and takes y.
    requests = turns_of(["a", "x", "ab", "x", "ab", "y", "ab", "z", "ab"])
    assert simulate(RULES["sieve"](3, 1), requests) == [0, 0, 1, 1, 2, 0, 2, 0, 2]


def test_arc_gives_room_to_what_it_should_not_have_evicted() -> None:
    # Capacity 4, single blocks. 1 and 2 are used twice (T2), 3 and 4 once (T1). 5 and 6 evict 3 and 4 from T1 into B1.
    # 3 comes back: the target of T1 rises to 1, T1 has 5 and 6, and 5 goes. 3 is now in T2.
    # Then 7 comes: T1 (6) is not above its target 1, so T2 gives up 1, which was used least recently.
    requests = single_blocks([1, 1, 2, 2, 3, 4, 5, 6, 3, 7, 6, 2, 1])
    assert simulate(RULES["arc"](4, 1), requests) == [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]


def test_what_arc_gave_up_goes_once_nothing_continues_it() -> None:
    # Capacity 3. "abc" evicts y, which comes back: the target of T1 is 1, T1 has b, T2 a and y. For d T2 gives up a,
    # which b continues, and y; for e T1 gives up b. Now a is a leaf: "y" takes it, and T1, above its target, keeps e.
    requests = turns_of(["y", "a", "abc", "y", "de", "y", "de"])
    assert simulate(RULES["arc"](3, 1), requests) == [0, 0, 1, 0, 0, 0, 2]


def test_what_arc_gave_up_comes_back_from_its_ghosts_if_it_is_used_before_it_is_gone() -> None:
    # As before, but "a" is used: it comes back from B2, so the target of T1 is 0. "d" leaves e alone in T1, which "z"
    # takes, and not a, the oldest of T2.
    requests = turns_of(["y", "a", "abc", "y", "de", "a", "d", "z", "a"])
    assert simulate(RULES["arc"](3, 1), requests) == [0, 0, 1, 0, 0, 1, 1, 0, 1]


def test_arc_has_each_page_in_one_list_and_remembers_no_more_than_the_cache_holds() -> None:
    due = 0
    for seed in range(60):
        random = Random(seed)
        cache = ArcCache(random.randint(2, 20))
        for request in random_tree(random, longest=60, answers="abx"):
            cache.request(request)
            once, often = cache._once.keys(), cache._often.keys()
            gone = {name for name, block in cache._blocks.items() if block.is_due}
            assert len(once) + len(often) + len(gone) == cache.resident, f"{seed = }"
            assert once | often | gone == set(cache.cached), f"{seed = }"
            ghosts = cache._once_ghosts.keys(), cache._often_ghosts.keys()
            assert not (once | often) & (ghosts[0] | ghosts[1]), f"{seed = }"
            assert not ghosts[0] & ghosts[1], f"{seed = }"
            assert len(once) + len(ghosts[0]) <= cache._pages, f"{seed = }"
            assert sum(map(len, (once, often, *ghosts))) <= 2 * cache._pages, f"{seed = }"
            due += len(gone)
    assert due > 100


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", RULES)
def test_a_cache_never_holds_more_than_fits_nor_a_page_without_those_before_it(name: str, page_size: int) -> None:
    evicting = 0
    for seed in range(40):
        random = Random(seed)
        requests = random_tree(random, longest=60, page=page_size, whole_messages=True, answers="abx")
        capacity = random.randint(1, 40) * page_size + random.randrange(page_size)
        cache: Any = RULES[name](capacity, page_size)
        for request in requests:
            cache.request(request)
            assert cache.resident <= capacity, f"{seed = }"
            check_tree(cache)
            assert cached_prefix(cache, request) == min(len(request.context), capacity) // page_size * page_size
        evicting += cache.resident > capacity - 2 * page_size
    assert evicting > 20


def check_tree(cache: Cache) -> None:
    if not isinstance(cache, TreeCache):
        return
    children: dict[int, int] = {}
    for block in cache._blocks.values():
        if block.parent is not None:
            assert cache._blocks[block.parent.name] is block.parent
            assert block.depth == block.parent.depth + 1
            children[block.parent.name] = children.get(block.parent.name, 0) + 1
    for name, block in cache._blocks.items():
        assert block.children == children.get(name, 0)


def cached_prefix(cache: Any, request: Request) -> int:
    """Tokens of a context that are cached, without using them."""
    names = page_ids(request.context, cache.page_size, cache._units)
    return known_prefix(names, cache.cached) * int(cache.page_size)
