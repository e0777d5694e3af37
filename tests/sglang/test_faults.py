"""What goes wrong around the cache and must cost no more than itself: on both of SGLang's tree cores."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru.sglang.requests.metadata import KEY
from radix_tlru.sglang.requests.turns import is_health_check
from tests.helpers.caches import Driver, our_cache

pytestmark = pytest.mark.usefixtures("tree_core")

POOL, CONTEXTS, LENGTH = 200, 4, 40


def filled(page_size: int = 1, **config: Any) -> Driver:
    """A pool of 200 that holds four contexts of 40 and nothing else; 2 tokens of each are within their budget."""
    config = {"threshold": 8, "next_prompt_estimate": 2, **config}
    driver = Driver(our_cache(POOL, page_size, **config))
    for number in range(CONTEXTS):
        driver.turn(f"{number}", LENGTH)
    return driver


# ---- locks ----


def nested() -> tuple[Driver, Any, Any]:
    """A context of 16 tokens whose first 8 are a context, too; the nodes that they end at."""
    driver = Driver(our_cache(64, threshold=8, next_prompt_estimate=2))
    for length in (8, 16):
        driver.request(range(length))
    return driver, *(driver.match(range(length)).last_device_node for length in (8, 16))


def test_a_lock_that_is_given_back_on_another_node_is_refused_and_still_held() -> None:
    driver, parent, leaf = nested()
    lock = driver.lock(leaf)
    with pytest.raises(AssertionError, match="lock receipt anchored on node"):
        driver.cache.dec_lock_ref(parent, lock.receipt)
    assert driver.cache.full_protected_size() == 16
    assert driver.evict(16) == 0
    driver.unlock(lock)
    assert driver.cache.full_protected_size() == 0
    driver.cache.sanity_check()
    assert driver.evict(16) == 16


@pytest.mark.parametrize("below_is_locked", [False, True])
def test_a_lock_that_is_given_back_twice_is_refused(below_is_locked: bool) -> None:
    driver, parent, leaf = nested()
    lock = driver.lock(parent)
    below = driver.lock(leaf) if below_is_locked else None
    driver.unlock(lock)
    if below is None or "Rust" in type(driver.cache.tree_core).__name__:  # SGLang's own takes that of the lock below
        with pytest.raises(BaseException, match="lock"):
            driver.unlock(lock)
    if below is not None:
        driver.unlock(below)
    assert driver.cache.full_protected_size() == 0
    assert driver.evict(16) == 16


# ---- evictions that raise ----


class BrokenError(RuntimeError):
    """What something below the cache raises."""


class FailsOnce:
    """All that an object has; one of its methods raises the n-th time it is called."""

    def __init__(self, inner: Any, method: str, call: int) -> None:
        self._inner, self._method, self._left = inner, method, call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._call(found) if name == self._method else found

    def _call(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise BrokenError
            return found(*args, **kwargs)

        return called


def break_core(cache: UnifiedRadixCache, method: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core = cache.tree_core
    if hasattr(core, "_binding"):
        monkeypatch.setattr(core, "_binding", FailsOnce(core._binding, method, call))
    else:
        monkeypatch.setattr(core, method, getattr(FailsOnce(core, method, call), method))


def check_nothing_is_lost(driver: Driver) -> None:
    """Every slot is free or evictable, the tree is sound, and all of it can still be evicted and used again."""
    cache = driver.cache
    kept = cache.full_evictable_size()
    assert driver.allocator.available_size() + kept == POOL
    cache.sanity_check()
    assert len(cache.tail.order) == sum(1 for _ in cache.tail.leaves())
    assert cache.evict(EvictParams(num_tokens=1_000)).num_tokens_evicted == kept
    assert driver.allocator.available_size() == POOL
    driver.turn("again", 2 * LENGTH)
    assert driver.cached("again") == 2 * LENGTH


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("way", ["evict", "evict_for_alloc"])
def test_an_eviction_that_raises_midway_loses_no_slot_and_no_leaf(
    way: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled()
    break_core(driver.cache, "evict_device_leaf", call, monkeypatch)
    rest = driver.allocator.alloc(POOL - CONTEXTS * LENGTH)  # so that all of what is asked for has to be evicted
    assert driver.allocator.available_size() == 0
    with pytest.raises(BrokenError):
        getattr(driver.cache, way)(EvictParams(num_tokens=CONTEXTS * LENGTH))
    assert driver.allocator.available_size() > 0 or call == 1, "what went before is free"
    driver.allocator.free(rest)
    check_nothing_is_lost(driver)


RUST_CALLS = (
    "validate_buffer_backup",
    "prefetch_anchor_info",
    "commit_backup",
    "get_component_device_value",
    "build_storage_backup_spec",
    "insert_host",
)
"""What the Rust core is asked while a leaf is cut."""


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("method", RUST_CALLS)
def test_a_cut_that_raises_anywhere_loses_no_slot_and_no_leaf(
    method: str, call: int, tree_core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tree_core != "rust":
        pytest.skip("the Python core splits a node in one step")
    driver = filled()
    break_core(driver.cache, method, call, monkeypatch)
    with pytest.raises(BrokenError):
        driver.evict(CONTEXTS * LENGTH)
    check_nothing_is_lost(driver)


# ---- requests ----


def finish(driver: Driver, rid: Any, tokens: Iterable[int], custom_params: Any = None) -> Req:
    """A request is served, its context is cached, and it is recorded."""
    ids, asked = array("q", tokens), SamplingParams(max_new_tokens=1, custom_params=custom_params)
    req = Req(rid=rid, origin_input_text="", origin_input_ids=ids, sampling_params=asked)
    params = InsertParams(key=RadixKey(ids), value=driver.allocate(len(ids)))
    result = driver.cache.insert(params)
    lock = driver.lock(result.last_device_node)
    driver.cache.tail.cleanup_after_caching_req(req, True, result, params)
    driver.cache.tail.record_served()
    driver.unlock(lock)
    return req


@pytest.mark.parametrize("rid", [0, 7, "a", "HEALTH_CHECK_a", None])
def test_a_request_is_a_turn_whatever_its_id_is(rid: Any) -> None:
    """SGLang leaves the type of an id open; its own test kits use numbers."""
    driver = filled(policy="etlru", next_prompt_estimate=None, threshold=300)
    learner = driver.cache.tail.learner
    before = learner.served.requests
    req = finish(driver, rid, range(5_000, 5_010))
    assert learner.served.requests == before + (not is_health_check(req))
    assert is_health_check(req) == (rid == "HEALTH_CHECK_a")


def test_a_request_without_a_stamp_counts_as_of_the_time_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = filled(policy="etlru", next_prompt_estimate=None, threshold=300)
    tail, stamps = driver.cache.tail, list[float]()
    record = tail.learner.record_turn
    monkeypatch.setattr(
        tail.learner,
        "record_turn",
        lambda turn, *more, **named: (stamps.append(turn.stamp), record(turn, *more, **named))[1],
    )
    finish(driver, "a", range(5_000, 5_010), {KEY: {"stamp": 7.0, "hints": None}})
    finish(driver, "b", range(6_000, 6_010))
    assert stamps == [7.0, 7.0]
