"""A hierarchical cache on the CPU: what is demoted, what is dropped, and that nothing is lost on the way.

The host pool, the queues and the copies are SGLang's own; see `radix_tlru/sglang/cpu/host.py` for the two things
that are not.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix_tlru.sglang.offline import WritePolicy
from radix_tlru.sglang.releases import host_tier_refusal
from radix_tlru.sglang.scheduler.batches import batch_processed
from tests.helpers.tiers import CONFIG, NEXT_PROMPT, THRESHOLD, TieredDriver

pytestmark = pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))

WRITE_POLICIES = ("write_through", "write_back")


@pytest.fixture(params=WRITE_POLICIES)
def write_policy(request: pytest.FixtureRequest) -> WritePolicy:
    return request.param


def test_a_tail_beyond_the_budget_is_demoted_and_not_dropped(write_policy: WritePolicy) -> None:
    driver = TieredDriver(4_000, 8_000, write_policy)
    driver.turn("A", 2_000)
    driver.turn("B", 1_500)
    driver.turn("C", 900)  # 400 too many; A's budget is 2,000 + 100 - 600 = 1,500
    assert driver.tiers("A") == (1_600, 400)
    assert (driver.tiers("B"), driver.tiers("C")) == ((1_500, 0), (900, 0))
    assert driver.cache.tail.counts == {"tel_safe": 400, "splits": 1}


def test_the_host_drops_what_is_beyond_a_budget_before_what_is_not(write_policy: WritePolicy) -> None:
    driver = TieredDriver(4_000, 8_000, write_policy)
    driver.turn("A", 2_000)
    driver.turn("B", 2_000)
    driver.evict(1_400)  # 500 of each are free; 400 more come off A, whose end is now at 1,100
    assert (driver.cached("A"), driver.cached("B")) == (1_100, 1_500)
    assert (driver.tiers("A"), driver.tiers("B")) == ((1_100, 900), (1_500, 500))
    assert driver.cache.evict_host(1_200) == 1_200  # 500 of each again, and 200 more of A, which is older by a match
    assert (driver.tiers("A"), driver.tiers("B")) == ((1_100, 200), (1_500, 0))
    counts = driver.cache.tail.counts
    assert (counts["host_tel_safe"], counts["host_lru"]) == (1_000, 200)


@pytest.mark.parametrize("dropped", [0, 2_000])
def test_a_turn_is_of_the_tail_that_was_demoted_before_it_was_recorded_and_of_what_is_left(
    write_policy: WritePolicy, dropped: int
) -> None:
    driver = TieredDriver(4_000, 8_000, write_policy)
    tail, core = driver.cache.tail, driver.cache.tree_core

    def serve(*_: object) -> None:
        for number in range(4):
            driver.request(driver.fresh(900), prompt=890, stamp=float(number))

    batch_processed(serve, SimpleNamespace(tree_cache=driver.cache, device="cpu"), SimpleNamespace(launch_ts=None))
    driver.settle()
    assert driver.evict(2_000) == 2_000  # 900 + 100 - 600 tokens stay of each
    assert driver.cache.evict_host(dropped) == dropped
    assert tail.learner.served.requests == 2, "a step records two of four"
    while driver.cache.has_work:
        driver.cache.use_idle_time()
    tiers = core.evictable_device_leaves, core.evictable_host_leaves
    stamps = [sorted(tail.leaf(node).conversation.stamp for node in leaves) for leaves in tiers]
    assert stamps == [[0.0, 1.0, 2.0, 3.0], [] if dropped else [0.0, 1.0, 2.0, 3.0]]


def test_the_host_has_a_threshold_of_its_own() -> None:
    driver = TieredDriver(2_000, 4_000, ours=replace(CONFIG, host_threshold=300))
    driver.turn("A", 2_000)
    driver.evict(1_000)
    assert driver.cache.evict_host(1_000) == 1_000
    assert driver.tiers("A") == (1_000, 0)
    # What neither tier may lack: 300 - 100 tokens of the history. What the device may lack: 600 - 100.
    counts = driver.cache.tail.counts
    assert (counts["tel_safe"], counts["lru"]) == (500, 500)
    assert (counts["host_tel_safe"], counts["host_lru"]) == (200, 800)


def test_the_host_follows_a_threshold_that_moves_unless_it_has_its_own() -> None:
    following, own = TieredDriver(2_000, 2_000), TieredDriver(2_000, 2_000, ours=replace(CONFIG, host_threshold=300))
    for driver in (following, own):
        driver.cache.tail.use_threshold(1_000)
    assert (following.cache.tail.host.policy.threshold, own.cache.tail.host.policy.threshold) == (1_000, 300)


def test_after_a_move_of_the_threshold_the_leaves_of_the_host_get_new_prices_with_each_turn() -> None:
    driver = TieredDriver(2_000, 4_000)
    driver.turn("A", 2_000)
    driver.evict(1_000)
    tail = driver.cache.tail
    tail.host.order.choose_victim(1)
    assert tail.host.order.over_budget == 600 - 100
    tail.use_threshold(900)
    tail.renew_prices()
    assert tail.host.order.over_budget == 900 - 100


def test_what_is_dropped_from_the_host_explains_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = TieredDriver(3_000, 6_000, ours=replace(CONFIG, explain=True))
    tail, told = driver.cache.tail, list[int]()
    monkeypatch.setattr(tail.explainer, "count_eviction", lambda victim, _: told.append(victim.leaf.end - victim.keep))
    driver.turn("A", 2_000)
    driver.evict(300)
    assert driver.cache.evict_host(300) == 300
    assert told == [300], "by the device, where it was looked for"


def test_what_is_loaded_back_is_what_was_demoted(write_policy: WritePolicy) -> None:
    driver = TieredDriver(3_000, 6_000, write_policy)
    driver.turn("A", 2_000)
    computed = driver.keys[driver.slots_of("A")]
    driver.cache.evict_for_alloc(EvictParams(num_tokens=700))
    assert driver.tiers("A") == (1_300, 700)
    others = driver.allocator.alloc(driver.allocator.available_size())
    driver.keys[others] = -1.0
    driver.allocator.free(others)
    assert driver.load_back(driver.histories["A"])
    assert driver.tiers("A") == (2_000, 0)
    assert torch.equal(driver.keys[driver.slots_of("A")], computed)
    assert driver.leaf_of("A").history == 2_000
    assert driver.evict(700) == 700, "it can be demoted again"


def test_the_last_that_was_demoted_for_an_allocation_can_be_demoted_again_once_it_is_back() -> None:
    driver = TieredDriver(3_000, 6_000)
    driver.turn("A", 2_000)
    driver.cache.evict_for_alloc(EvictParams(num_tokens=400))
    assert driver.load_back(driver.histories["A"])
    assert driver.evict(400) == 400
    assert driver.tiers("A") == (1_600, 400)


def test_a_path_remembers_how_deep_it_was_when_its_tail_is_dropped_from_both_tiers(write_policy: WritePolicy) -> None:
    driver = TieredDriver(3_000, 6_000, write_policy)
    driver.turn("A", 2_000)
    driver.evict(300)
    driver.cache.evict_host(300)
    assert driver.tiers("A") == (1_700, 0)
    leaf = driver.leaf_of("A")
    assert (leaf.start, leaf.end, leaf.history) == (0, 1_700, 2_000)
    # The budget is still that of 2,000 tokens: 1,500 stay before anything that costs is touched.
    driver.turn("B", 600)
    driver.evict(300)
    assert (driver.cached("A"), driver.cached("B")) == (1_500, 500)


def test_a_front_that_comes_back_alone_has_been_as_deep_as_its_path() -> None:
    driver = TieredDriver(3_000, 6_000)
    driver.turn("A", 2_000)
    driver.evict(1_500)
    assert driver.tiers("A") == (500, 1_500)
    driver.histories["front"] = driver.histories["A"][:900]
    driver.turn("front", 0)  # computed anew: it takes the place of 400 of the tokens that are on the host
    assert driver.tiers("A") == (900, 1_100)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.history) == (900, 2_000)


def test_what_storage_gives_back_deepens_the_paths_above_it() -> None:
    driver = TieredDriver(3_000, 3_000)
    driver.turn("A", 500)
    anchor = driver.match_conversation("A").best_match_node
    found = driver.fresh(300)
    driver.histories["A"] += found
    slots = driver.cache.cache_controller.mem_pool_host.alloc(300)
    driver.cache.tree_core.insert_host(anchor, RadixKey(array("q", found)), slots, [""] * 300)
    assert driver.tiers("A") == (500, 300)
    tail = driver.cache.tail
    (leaf,) = tail.leaves()
    assert (leaf.end, leaf.history) == (500, 800)
    assert tail.order.over_budget == 500 - (800 + NEXT_PROMPT - THRESHOLD)
    driver.evict(500)
    assert tail.order.over_budget == len(tail.order) == 0


def test_what_storage_gives_back_leaves_a_path_that_was_deeper_as_deep_as_it_was() -> None:
    driver = TieredDriver(3_000, 3_000)
    driver.turn("A", 2_000)
    driver.evict(1_500)
    assert driver.cache.evict_host(1_500) == 1_500
    anchor, found = driver.match_conversation("A").best_match_node, driver.histories["A"][500:800]
    slots = driver.cache.cache_controller.mem_pool_host.alloc(300)
    driver.cache.tree_core.insert_host(anchor, RadixKey(array("q", found)), slots, [""] * 300)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.history) == (500, 2_000)


def test_a_leaf_that_can_neither_be_copied_nor_dropped_does_not_hold_up_the_walk() -> None:
    """Write-back, and no room on the host: a leaf is dropped with what is below it, unless a host lock is there."""
    driver = TieredDriver(1_000, 200, "write_back")
    driver.turn("A", 500)
    driver.turn("B", 500)
    anchor = driver.match_conversation("A").best_match_node
    lock = driver.cache.inc_host_lock_ref(anchor).to_dec_params()
    driver.cache.cache_controller.mem_pool_host.alloc(200)  # a prefetch has taken all there is
    assert driver.evict(600) == 500  # all of B; A stays, whole or in two
    assert len(driver.cache.tail.order) == 1, "the next time it is tried again"
    assert (driver.tiers("A"), driver.tiers("B")) == ((500, 0), (0, 0))
    driver.cache.dec_host_lock_ref(anchor, lock)
    assert driver.evict(500) == 500
    assert len(driver.cache.tail.order) == 0


def test_what_was_never_copied_is_dropped_as_ever() -> None:
    driver = TieredDriver(2_000, 4_000, "write_through_selective")  # copies on the second use
    driver.turn("A", 2_000)
    driver.evict(300)
    assert (driver.tiers("A"), driver.host_free) == ((1_700, 0), 4_000)


def test_a_fault_in_the_order_of_the_host_leaves_both_tiers_with_stock_lru(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_tokens: int) -> None:
        raise RuntimeError

    driver = TieredDriver(4_000, 8_000)
    driver.turn("A", 2_000)
    driver.turn("B", 2_000)
    driver.evict(1_400)  # 900 of A and 500 of B are on the host alone
    tail = driver.cache.tail
    tail.breaker.is_armed = True
    monkeypatch.setattr(tail.host.order, "choose_victim", broken)
    assert driver.cache.evict_host(1_200) == 1_200
    assert tail.breaker.has_tripped
    assert (driver.tiers("A"), driver.tiers("B")) == ((1_100, 0), (1_500, 200)), "the older one first"
    assert driver.evict(1_300) == 1_300
    assert driver.cache.evict_host(1_000) == 1_000
    assert (driver.tiers("A"), driver.tiers("B")) == ((0, 100), (1_300, 400))
    driver.cache.sanity_check()
