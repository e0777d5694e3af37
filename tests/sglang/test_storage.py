"""Storage behind the host tier: what our order has cut, demoted and dropped comes back from there as it was computed.

The storage is SGLang's own file backend in a directory of the test, with the controller and the threads that it has in
a server; see `radix_tlru/sglang/cpu/host.py` for what is not SGLang's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sglang.srt.runtime_context import get_parallel

from radix_tlru import Config
from radix_tlru.learning.records import is_known
from radix_tlru.sglang.offline import WritePolicy
from radix_tlru.sglang.releases import host_tier_refusal
from tests.helpers.tiers import NEXT_PROMPT, THRESHOLD, TieredDriver, page_names

pytestmark = pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))

Build = Callable[..., TieredDriver]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Builds drivers with storage, whose threads end with the test."""
    built: list[TieredDriver] = []

    def build(*arguments: object, **options: object) -> TieredDriver:
        built.append(TieredDriver(*arguments, storage=tmp_path / str(len(built)), **options))
        return built[-1]

    yield build
    for driver in built:
        driver.cache.shutdown()


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_what_storage_gives_back_is_what_was_computed(build: Build, write_policy: WritePolicy, page_size: int) -> None:
    pool, length = 64 * page_size, 40 * page_size
    driver = build(pool, 2 * pool, write_policy, page_size=page_size)
    driver.turn("A", length)
    for pages in (3, 1, 7):  # cut after cut, at pages that no request ended at
        driver.evict(pages * page_size)
    driver.settle()
    assert driver.cached("A") == 29 * page_size
    driver.evict(length)
    driver.settle()
    assert driver.cache.evict_host(5 * page_size) == 5 * page_size
    driver.audit()
    assert driver.cache.evict_host(pool) == 35 * page_size
    assert driver.tiers("A") == (0, 0)
    for memory, free in ((driver.keys, driver.allocator.alloc(pool)), (driver.host_keys, slice(None))):
        memory[free] = -1.0
    driver.allocator.clear()
    driver.histories["A"] += driver.fresh(page_size)  # the next turn
    assert driver.serve(driver.histories["A"]) == (length, length)
    driver.settle()
    driver.audit()
    assert driver.cached("A") == length + page_size


def test_what_is_being_written_to_storage_is_not_dropped(build: Build) -> None:
    """A cut keeps the lock on both parts, and each is free to go when the whole is written."""
    driver = build(2_000, 2_000)
    driver.turn("A", 1_600)  # copied to the host, and on its way to storage until the next events are looked at
    assert driver.cache.ongoing_backup
    driver.evict(333)
    driver.match(driver.histories["A"][:801])
    assert driver.tiers("A") == (1_267, 333)
    driver.evict(1_267)
    assert (driver.cache.evict_host(1_600), len(driver.cache.tail.host.order)) == (0, 0)
    driver.settle()
    assert driver.cache.evict_host(1_600) == 1_600
    driver.audit()


def test_what_storage_is_read_into_stays_where_it_was_asked_for(build: Build) -> None:
    """The end of what was found is kept, though it be demoted, cut and next to go."""
    driver = build(2_000, 2_000)
    driver.turn("A", 1_600)
    driver.settle()
    driver.evict(700)
    assert driver.cache.evict_host(700) == 700
    asked = driver.ask_storage(driver.histories["A"])
    driver.evict(500)
    assert driver.tiers("A") == (400, 500)
    assert driver.cache.evict_host(2_000) == 0
    driver.evict(400)
    driver.wait_until(lambda: driver.answered(asked))
    assert driver.cache.pop_prefetch_loaded_span(asked.handle) == (700, 900)
    assert driver.tiers("A") == (0, 1_600)
    driver.audit()
    assert driver.cache.evict_host(2_000) == 1_600


@pytest.mark.parametrize("stage", ["asked", "found", "read"])
def test_a_request_that_is_aborted_takes_no_host_memory_with_it(build: Build, stage: str) -> None:
    driver = build(2_000, 2_000)
    driver.turn("A", 1_600)
    driver.settle()
    driver.evict(1_600)
    driver.cache.evict_host(1_600)
    waiting = driver.ask_storage(driver.histories["A"])
    under_way, handle = driver.cache.ongoing_prefetch, waiting.handle
    if stage == "found":
        driver.wait_until(lambda: under_way[handle].host_indices is not None)
        driver.audit()
    if stage == "read":
        driver.wait_until(lambda: handle not in under_way)
    driver.abort(waiting)
    assert driver.tiers("A") == (0, 1_600 if stage == "read" else 0)
    driver.audit()
    driver.cache.evict_host(1_600)
    assert driver.serve(driver.histories["A"]) == (1_600, 1_600)


def test_storage_outlives_a_flush(build: Build) -> None:
    driver = build(2_000, 2_000)
    driver.turn("A", 1_600)
    driver.evict(333)
    driver.settle()
    driver.cache.reset()
    driver.allocator.clear()
    assert (driver.tiers("A"), driver.host_free) == ((0, 0), 2_000)
    assert driver.serve(driver.histories["A"]) == (1_600, 1_600)
    driver.settle()
    driver.audit()


def test_pages_that_storage_has_lost_are_computed_again(build: Build) -> None:
    driver = build(2_048, 2_048, page_size=16)
    driver.turn("A", 1_600)
    driver.settle()
    tenth = driver.cache.tree_core.node_by_id(driver.match_conversation("A").best_match_node).hash_value[10]
    (file,) = driver.storage.glob(f"{tenth}_*")
    file.unlink()
    driver.evict(1_600)
    driver.cache.evict_host(1_600)
    assert driver.serve(driver.histories["A"]) == (160, 160)
    driver.settle()
    driver.audit()
    assert file.exists(), "computed again, and written again"


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_a_tail_comes_back_behind_a_front_that_never_left(build: Build, write_policy: WritePolicy) -> None:
    """Under write-back the front has no copy, and SGLang's scheduler would ask for nothing behind it."""
    driver = build(2_000, 2_000, write_policy)
    driver.turn("A", 1_600)
    driver.evict(700)
    driver.settle()
    assert driver.cache.evict_host(700) == 700
    assert driver.tiers("A") == (900, 0)
    assert driver.serve(driver.histories["A"]) == (1_600, 700)
    driver.settle()
    driver.audit()


def test_a_path_whose_tail_comes_back_and_goes_again_is_known_for_whose_it_was(build: Build) -> None:
    """It may go again before anybody has used it: then the path must not know less than before."""
    driver = build(2_000, 2_000, ours=Config("etlru", THRESHOLD, NEXT_PROMPT))
    driver.histories["A"] = driver.fresh(1_600)
    driver.request(driver.histories["A"], prompt=1_500, stamp=1.0)
    whose = driver.leaf_of("A").conversation
    assert whose.context_len == 1_600
    driver.settle()
    driver.evict(700)
    for _ in range(2):
        assert driver.cache.evict_host(700) == 700
        front = driver.leaf_of("A")
        assert (front.end, front.history, front.conversation) == (900, 1_600, whose)
        asked = driver.ask_storage(driver.histories["A"])
        driver.wait_until(lambda asked=asked: driver.answered(asked))
        (node,) = driver.cache.tree_core.evictable_host_leaves
        tail = driver.cache.tail.leaf(node)
        assert (tail.start, tail.end, tail.history) == (900, 1_600, 1_600)
        assert tail.last_access == driver.cache.tail.clock


@pytest.mark.parametrize("shared", [0, 400])
def test_a_path_that_comes_back_is_not_taken_for_the_last_one_that_went_there(build: Build, shared: int) -> None:
    """Of three paths behind what they share, or behind the root, the node above remembers the last conversation.

    What its client claimed is not for the others, and a request for one of those does not say that it is back.
    """
    driver = build(5_000, 5_000, ours=Config("etlru", THRESHOLD, NEXT_PROMPT))
    tail, template = driver.cache.tail, driver.fresh(shared)
    for number, name in enumerate("ABC"):
        driver.histories[name] = template + driver.fresh(1_600 - shared)
        driver.request(driver.histories[name], prompt=1_500, stamp=1_000.0 + 10 * number)
        driver.settle()
    last = driver.leaf_of("C").conversation
    is_back_until, own = last.queued_until, 3 * (1_600 - shared)
    assert (last.number, driver.evict(own)) == (3, own)
    driver.settle()
    assert driver.cache.evict_host(own) == own
    assert tail.conversation_at(driver.cache.tree_core.root_node.id) is None, "a root is on the path of everybody"
    for name in "AB":
        asked = driver.ask_storage(driver.histories[name])
        driver.wait_until(lambda asked=asked: driver.answered(asked))
        assert driver.cached(name) == shared
        back = driver.leaf_of(name)
        assert (back.end, back.history, back.last_access) == (1_600, 1_600, tail.clock)
        assert (is_known(back.conversation), back.conversation.stamp) == (False, 1_020.0)
    assert last.queued_until == is_back_until


def test_what_was_used_once_is_not_in_storage_where_the_second_use_copies_it(build: Build) -> None:
    driver = build(2_000, 2_000, "write_through_selective")
    driver.turn("A", 1_600)
    driver.evict(700)
    driver.turn("A", 0)  # 900 are used again, and 700 computed again
    driver.settle()
    assert driver.audit_storage() == 900
    driver.evict(1_600)
    driver.cache.evict_host(2_000)
    assert driver.serve(driver.histories["A"]) == (900, 900)
    driver.settle()
    driver.audit()


def test_storage_is_attached_and_detached_while_there_are_cut_paths(build: Build, tmp_path: Path) -> None:
    """What was cached before has no names for its pages until then, and gets those that it would have had."""
    driver = build(3_000, 4_000)
    config = json.dumps({"file_storage_path": str(tmp_path)})
    for length, attached in ((1_000, False), (300, True), (50, False), (300, True)):
        if attached:
            with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):
                done, said = driver.cache.attach_storage_backend("file", config)
        else:
            done, said = driver.cache.detach_storage_backend()
        assert done, said
        driver.turn("A", length)
        driver.evict(111)
        driver.match(driver.histories["A"][:801])
        driver.settle()
        driver.audit()
    written = {file.name.split("_")[0] for file in tmp_path.glob("*.bin")}
    pages = page_names(driver.histories["A"], 1)
    assert written == {*pages[1_000:1_300], *pages[1_350:]}, "the second and the last turn"
