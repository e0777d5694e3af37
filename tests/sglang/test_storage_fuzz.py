"""Random requests on a cache of three tiers: nothing is lost between them, and nothing comes back as something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from radix_tlru.config import Config
from radix_tlru.sglang.offline import WritePolicy
from radix_tlru.sglang.releases import host_tier_refusal
from tests.helpers.tiers import TieredDriver, Waiting

pytestmark = pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))

DEVICE, HOST = 64, 80  # size of the two, in pages; or in this many tokens, if a page has fewer:
LEAST_PAGE = 16
LEAST_LOADED = 10  # tokens: SGLang computes fewer anew rather than load them back from the host

PREFETCH_POLICIES = ("best_effort", "timeout", "wait_complete")  # how long a request waits for storage

LETTERS = range(3)  # few, so that contexts share prefixes of any length
REMEMBERED = 12  # contexts that a new one may go on from


def driver_of(page_size: int, write_policy: WritePolicy, storage: Path, ours: bool = True) -> TieredDriver:
    """Our order, under which a path of more than 6 pages has something beyond its budget; or stock's."""
    page = max(page_size, LEAST_PAGE)
    config = Config(threshold=8 * page, next_prompt_estimate=2 * page) if ours else None
    return TieredDriver(DEVICE * page, HOST * page, write_policy, config, page_size, storage)


class Requests:
    """What happens to a cache at random; contexts go on from earlier ones, or from within them."""

    def __init__(self, driver: TieredDriver) -> None:
        self.driver, self.rng = driver, Random(driver.page_size)
        self.page = max(driver.page_size, LEAST_PAGE)
        self._earlier: list[tuple[int, ...]] = [()]

    def context(self) -> tuple[int, ...]:
        rng, before = self.rng, self.rng.choice(self._earlier[-REMEMBERED:])
        kept = rng.choice([len(before), rng.randrange(len(before) + 1)])
        context = before[:kept] + tuple(rng.choices(LETTERS, k=rng.randrange(1, 6 * self.page)))
        self._earlier.append(context[: 24 * self.page])
        return self._earlier[-1]

    def evict(self) -> None:
        self.driver.evict(self.rng.randrange(16) * self.page + self.rng.randrange(self.page))

    def drop(self) -> None:
        self.driver.cache.evict_host(self.rng.randrange(32) * self.page + self.rng.randrange(self.page))


class Steps(Requests):
    """Steps of a scheduler in any order, each followed by an audit of the tiers; some requests wait for storage."""

    def __init__(self, driver: TieredDriver) -> None:
        super().__init__(driver)
        self.waiting: list[Waiting] = []
        self.taken: Counter[str] = Counter()

    def take(self) -> None:
        """One more of them."""
        often = {self.ask: 8, self.admit: 8, self.abort: 1, self.evict: 4, self.drop: 4, self.lose: 1, self.flush: 1}
        (step,) = self.rng.choices([*often], [*often.values()])
        step()
        self.taken[step.__name__] += 1
        self.driver.audit()

    def ask(self) -> None:
        if len(self.waiting) < 3:
            waiting = self.driver.ask_storage(self.context())
            self.waiting += [waiting] if waiting else []

    def admit(self) -> None:
        if self.waiting:
            waiting = self.waiting.pop(0)
            self.driver.cache.prefetch_stop_policy = self.rng.choice(PREFETCH_POLICIES)
            self.driver.wait_until(lambda: self.driver.answered(waiting))
            self.driver.wait_until(self.driver.knows_its_host_slots)
            self.taken["stored tokens"] += self.driver.cache.pop_prefetch_loaded_tokens(waiting.handle)
            self.driver.load_back(waiting.tokens)
            self.driver.request(waiting.tokens)

    def abort(self) -> None:
        if self.waiting:
            self.driver.abort(self.waiting.pop())

    def lose(self) -> None:
        """Storage makes room for others."""
        for file in sorted(self.driver.storage.glob("*.bin"))[:: self.rng.randrange(2, 9)]:
            file.unlink()

    def flush(self) -> None:
        if not self.waiting:
            self.driver.settle()
            self.driver.cache.reset()
            self.driver.allocator.clear()


@pytest.fixture(params=[1, pytest.param(16, marks=pytest.mark.long), 64])
def page_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize(
    "write_policy", ["write_through", pytest.param("write_through_selective", marks=pytest.mark.long), "write_back"]
)
def test_no_order_of_steps_loses_anything(tmp_path: Path, write_policy: WritePolicy, page_size: int) -> None:
    driver = driver_of(page_size, write_policy, tmp_path)
    steps = Steps(driver)
    for _ in range(400):
        steps.take()
    while steps.waiting:
        steps.abort()
    driver.settle()
    driver.evict(driver.allocator.size)
    driver.settle()
    driver.cache.evict_host(driver.host_size)
    assert (driver.allocator.available_size(), driver.host_free) == (driver.allocator.size, driver.host_size)
    counts = driver.cache.tail.counts
    assert min(steps.taken["stored tokens"], counts["tel_safe"], counts["lru"], counts["splits"]) > 0
    driver.cache.shutdown()


class Found(NamedTuple):
    known: int  # tokens of a request that were ever computed
    cached: int  # of them those that were found, on any tier
    stored: int  # of these those in storage


def serve(driver: TieredDriver, requests: int) -> Iterator[Found]:
    """One request after another, each followed by some pressure on both tiers of memory, and an audit."""
    asked, page, computed = Requests(driver), driver.page_size, set[tuple[int, ...]]()
    for _ in range(requests):
        context = asked.context()
        prefixes = [context[:end] for end in range(page, len(context) + 1, page)]
        known = page * sum(prefix in computed for prefix in prefixes)
        yield Found(known, *driver.serve(context))
        computed.update(prefixes)
        asked.evict()
        driver.settle()
        asked.drop()
        driver.audit()
    driver.cache.shutdown()


@pytest.mark.parametrize("write_policy", [pytest.param("write_through", marks=pytest.mark.long), "write_back"])
def test_nothing_is_computed_twice(tmp_path: Path, write_policy: WritePolicy, page_size: int) -> None:
    """Storage that loses nothing: whatever was ever computed is found, on one tier or another."""
    stored = 0
    for found in serve(driver_of(page_size, write_policy, tmp_path), requests=120):
        assert found.known - LEAST_LOADED < found.cached <= found.known
        stored += found.stored
    assert stored > 0
