"""What the real cache keeps and gives up, in numbers a reader can check."""

from __future__ import annotations

import logging
import random

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from radix_tlru import Config, ConfigError
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.journal import JOURNAL_VARIABLE
from radix_tlru.sglang.offline import Lock, cache_params, stock_cache
from tests.helpers.caches import Driver, our_cache

pytestmark = pytest.mark.usefixtures("tree_core")

THRESHOLD, NEXT_PROMPT = 600, 100


def tlru(capacity: int, page_size: int = 1, threshold: int = THRESHOLD, next_prompt: int = NEXT_PROMPT) -> Driver:
    return Driver(our_cache(capacity, page_size, threshold=threshold, next_prompt_estimate=next_prompt))


def test_figure_1_of_the_paper() -> None:
    """Two conversations of 100 blocks, next prompt 100, room for 100 blocks, threshold 150; a block is a token here."""

    def uncached_at_the_next_turn(driver: Driver) -> list[int]:
        for name in ("first", "second"):
            driver.turn(name, 100)
        driver.cache.evict(EvictParams(num_tokens=100))  # of the pool's 200, 100 are left for the two
        return sorted(100 - driver.cached(name) + 100 for name in ("first", "second"))

    assert uncached_at_the_next_turn(Driver(stock_cache(200))) == [100, 200]
    assert uncached_at_the_next_turn(tlru(200, threshold=150, next_prompt=100)) == [150, 150]


def test_figure_1_turn_by_turn_stops_at_half_of_the_first_conversation() -> None:
    driver = tlru(100, threshold=150, next_prompt=100)
    driver.turn("first", 100)
    for _ in range(10):
        driver.turn("second", 5)
    assert driver.cached("first") == 50
    assert driver.cache.tail.counts["tel_safe"] == 50


@pytest.mark.parametrize(("policy", "core"), [("lru", "python"), ("lru", "rust"), ("tlru", "python"), ("tlru", "rust")])
def test_stock_drops_whole_what_ours_trims(policy: str, core: str) -> None:
    """Pool 4,000: A = 2,000, B = 1,500, then C = 900 is 400 too many."""
    config = {"threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT} if policy == "tlru" else None
    stock, ours = Driver(stock_cache(4000, policy=policy, policy_config=config, core=core)), tlru(4000)
    for driver in (stock, ours):
        for name, tokens in (("A", 2000), ("B", 1500), ("C", 900)):
            driver.turn(name, tokens)
    assert (stock.turn("A", 100), ours.turn("A", 100)) == (0, 1600)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("asked", [1, 15, 16, 17, 63, 64, 65, 700])
def test_an_eviction_call_frees_less_than_a_page_more_than_asked(page_size: int, asked: int) -> None:
    driver = tlru(4096, page_size)
    for name in "ABCD":
        driver.turn(name, 1024)
    before = driver.allocator.available_size()
    result = driver.cache.evict(EvictParams(num_tokens=asked))
    assert asked <= result.num_tokens_evicted < asked + page_size
    assert driver.allocator.available_size() == before + result.num_tokens_evicted
    before = driver.allocator.available_size()
    driver.cache.evict_for_alloc(EvictParams(num_tokens=asked))
    assert asked <= driver.allocator.available_size() - before < asked + page_size


def test_a_trim_chunk_is_taken_in_one_cut_but_not_beyond_what_costs_the_same() -> None:
    driver = Driver(our_cache(2000, threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT, trim_chunk=300))
    driver.turn("A", 2000)  # budget 2,000 + 100 - 600 = 1,500
    evicted = [driver.cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted for _ in range(3)]
    assert evicted == [300, 200, 300]  # 500 are free; from there on each token costs
    assert driver.cache.tail.counts == {"tel_safe": 500, "lru": 300, "splits": 3}


def test_an_allocation_makes_room_for_a_trim_chunk() -> None:
    driver = Driver(our_cache(4_000, threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT, trim_chunk=300))
    driver.turn("A", 2_000)
    driver.turn("B", 2_000)
    running = [driver.allocate(1) for _ in range(300)]  # a request decodes
    assert (driver.cached("A"), driver.cached("B")) == (1_700, 2_000)
    assert driver.allocator.available_size() == 0
    running.append(driver.allocate(400))  # more than a chunk: the last 200 that A can spare, and a chunk of B
    assert driver.allocator.available_size() == 100
    assert driver.cache.evict_for_alloc(EvictParams(num_tokens=0)).num_tokens_evicted == 0, "of another pool alone"
    assert (driver.cached("A"), driver.cached("B")) == (1_500, 1_700)
    driver.allocator.free(torch.cat(running))


@pytest.mark.parametrize(("pool", "chunk"), [(4_000, 1), (131_072, 1_024)])
def test_unless_told_otherwise_a_large_pool_is_trimmed_by_a_share_of_it(pool: int, chunk: int) -> None:
    driver = Driver(our_cache(pool, threshold=2_000, next_prompt_estimate=NEXT_PROMPT))
    driver.turn("A", pool)
    assert driver.evict(1) == chunk
    assert driver.cache.tail.config.trim_chunk == chunk


def test_a_trimmed_conversation_is_not_trimmed_again_while_others_have_more_to_give() -> None:
    driver = tlru(4000)
    driver.turn("A", 2000)  # budget 2,000 + 100 - 600 = 1,500
    driver.turn("B", 2000)
    driver.turn("C", 500)
    assert (driver.cached("A"), driver.cached("B")) == (1500, 2000)
    driver.turn("D", 500)  # A has nothing left to give for free, and B has 500
    assert (driver.cached("A"), driver.cached("B")) == (1500, 1500)


def test_when_nothing_is_safe_the_least_recent_goes_from_its_tail() -> None:
    driver = tlru(3000)
    driver.turn("A", 1500)
    driver.turn("B", 1500)
    driver.turn("C", 1100)  # 500 of A and 500 of B are free; the last 100 come off the older, A
    assert (driver.cached("A"), driver.cached("B"), driver.cached("C")) == (900, 1000, 1100)
    assert driver.cache.tail.counts == {"tel_safe": 1000, "lru": 100, "splits": 3}


def test_a_shared_path_stays_while_either_of_its_conversations_is_resident() -> None:
    driver = tlru(3000, threshold=10**6)  # everything is safe: LRU, tail by tail
    system = driver.fresh(1000)
    driver.histories = {"A": list(system), "B": list(system)}
    driver.turn("A", 800)
    driver.turn("B", 800)
    driver.turn("C", 1000)  # 600 too many: all from A's own 800
    assert (driver.cached("A"), driver.cached("B")) == (1200, 1800)
    driver.turn("D", 900)  # A's other 200 and 700 of B's own: the shared 1,000 are still needed by B
    assert (driver.cached("A"), driver.cached("B")) == (1000, 1100)
    driver.turn("E", 200)
    assert driver.cached("A") == driver.cached("B") == 900


def test_a_branch_point_takes_the_longer_history() -> None:
    driver = tlru(4000)
    shared = driver.fresh(1000)
    driver.histories = {"long": list(shared), "short": list(shared)}
    driver.turn("long", 1400)
    driver.turn("short", 200)
    driver.cache.evict(EvictParams(num_tokens=500 + 200))  # long keeps 2,400 + 100 - 600 = 1,900; short keeps 700
    assert (driver.cached("long"), driver.cached("short")) == (1900, 1000)
    driver.cache.evict(EvictParams(num_tokens=900))  # the rest of long's own tail, which costs
    assert driver.cached("long") == 1000
    # The branch point is a leaf now. Its longest conversation needs 1,900, so not one of its tokens is free.
    assert driver.cache.tail.order.over_budget == 0
    assert driver.cache.tail.counts == {"tel_safe": 700, "lru": 900, "splits": 1}


def test_a_match_that_ends_inside_a_leaf_does_not_refresh_what_lies_behind() -> None:
    driver = tlru(3000, threshold=10**6)
    driver.turn("A", 1000)
    driver.turn("B", 1000)
    driver.resident(driver.histories["A"])
    driver.request(driver.histories["A"][:600])  # splits A at 600 and uses the front only
    driver.turn("C", 1300)  # 300 too many: from the 400 of A that nobody used
    assert (driver.cached("A"), driver.cached("B")) == (700, 1000)


def test_a_locked_leaf_is_passed_over_and_comes_back_when_unlocked() -> None:
    driver = tlru(3000)
    driver.turn("A", 1000)
    driver.turn("B", 1000)
    match = driver.match_conversation("A")
    lock = driver.lock(match.last_device_node)
    assert driver.cache.evict(EvictParams(num_tokens=2000)).num_tokens_evicted == 1000
    assert (driver.cached("A"), driver.cached("B")) == (1000, 0)
    driver.unlock(driver.lock(match.last_device_node))
    assert driver.evict(1000) == 0, "of two locks one is held"
    driver.unlock(lock)
    assert driver.cache.evict(EvictParams(num_tokens=700)).num_tokens_evicted == 700
    assert driver.cached("A") == 300


def test_a_pinned_leaf_is_passed_over_until_it_is_given_back() -> None:
    """By another call of the tree cores, which locks full attention alone."""
    driver = tlru(3000)
    driver.turn("A", 1000)
    core, node = driver.cache.tree_core, driver.match_conversation("A").last_device_node
    core.inc_full_pin(node)
    assert driver.evict(1000) == 0
    core.dec_full_pin(node)
    assert driver.evict(1000) == 1000


def test_a_journal_has_each_victim_and_how_much_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(JOURNAL_VARIABLE, "1")
    with caplog.at_level(logging.INFO):
        for asked in (100, 200):
            driver = tlru(3000)
            driver.turn("A", 2000)
            driver.evict(asked)
    lines = [record.getMessage() for record in caplog.records if "eviction" in record.getMessage()]
    said, digests = zip(*(line.split(", digest ") for line in lines), strict=True)
    assert said == tuple(f"radix_tlru: eviction 1: [0, 2000) keeps {kept}" for kept in (1900, 1800))
    assert digests[0] != digests[1], "by which ranks are compared"


def test_a_flush_forgets_everything() -> None:
    driver = tlru(3000)
    for name in "ABCDE":
        driver.turn(name, 900)
    driver.cache.reset()
    driver.allocator.clear()
    assert len(driver.cache.tail.order) == driver.cache.tail.order.over_budget == 0
    assert driver.cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted == 0
    driver.histories.clear()
    for name in "ABC":
        driver.turn(name, 900)
    assert driver.cache.full_evictable_size() == 2700
    driver.cache.sanity_check()


def test_with_full_weight_the_order_is_lru() -> None:
    weighted, lru = Driver(our_cache(2000, median_weight=1.0, threshold=500)), Driver(our_cache(2000, policy="lru"))
    rng = random.Random(5)
    for _ in range(300):
        name, tokens = f"{rng.randrange(12)}", rng.randrange(1, 120)
        if len(weighted.histories.get(name, ())) > 1200:
            name += "'"
        assert weighted.turn(name, tokens) == lru.turn(name, tokens)


@pytest.mark.parametrize("steps", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_random_walk_keeps_every_invariant(steps: int) -> None:
    """Requests, held and released locks, aborts, evictions and flushes, with the tree checked from the inside."""
    driver = tlru(3000, page_size=4, threshold=150, next_prompt=30)
    cache, rng = driver.cache, random.Random(17)
    held: list[Lock] = []
    for step in range(steps):
        action = rng.random()
        name = f"{rng.randrange(25)}"
        if action < 0.45:
            if len(driver.histories.get(name, ())) > 500:
                driver.histories[name] = driver.histories[name][: rng.randrange(300)]
            driver.turn(name, rng.randrange(1, 90))
        elif action < 0.60 and driver.histories.get(name):
            cut = rng.randrange(1, len(driver.histories[name]) + 1)
            driver.match(driver.histories[name][:cut])
        elif action < 0.75 and driver.histories.get(name) and len(held) < 4:
            held.append(driver.lock(driver.match_conversation(name).last_device_node))
        elif action < 0.88 and held:
            driver.unlock(held.pop(rng.randrange(len(held))))
        elif action < 0.92:
            slots = driver.allocate(rng.randrange(1, 20) * 4)  # a request that was aborted before it was cached
            driver.allocator.free(slots)
        elif action < 0.999:
            cache.evict(EvictParams(num_tokens=rng.randrange(0, 200)))
        elif not held:
            cache.reset()
            driver.allocator.clear()
        cache.sanity_check()
        if step % 100 == 0:
            leaves = list(cache.tail.leaves())
            assert len(cache.tail.order) == len(leaves)
            order = cache.tail.order
            assert order.over_budget == sum(map(order.tel_safe_tokens, leaves))
            resident = cache.full_evictable_size() + cache.full_protected_size()
            assert driver.allocator.available_size() + resident == 3000
    for lock in held:
        driver.unlock(lock)
    cache.evict(EvictParams(num_tokens=10**6))
    assert driver.allocator.available_size() == 3000
    assert cache.tail.order.entries <= 2 * len(cache.tail.order) + 1025


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"disable": True}, "--disable-radix-cache"),
        ({"sliding_window_size": 128}, "sliding-window (SWA)"),
    ],
)
def test_a_shape_that_is_not_supported_is_refused_by_its_name(change: dict[str, object], named: str) -> None:
    params = cache_params(100)
    for name, value in change.items():
        setattr(params, name, value)
    with pytest.raises(ConfigError) as error:
        build_cache(params, Config())
    assert named in str(error.value)
    assert "\n" not in str(error.value)
