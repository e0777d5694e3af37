"""Storage behind the host tier: what our order has cut, demoted and dropped comes back from there as it was computed.

The storage is SGLang's own file backend in a directory of the test, with the controller and the threads that it has in
a server; see `radix_tlru/sglang/torch_cpu_host.py` for what is not SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radix_tlru.sglang.compat import host_tier_refusal
from radix_tlru.sglang.offline import WritePolicy
from tests.tiers import TieredDriver

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
