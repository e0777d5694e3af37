"""A dry run: what is evicted is what stock evicts, victim by victim, and the learner sees what it would see."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import cast

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from radix_tlru import Config, ConfigError
from radix_tlru.hints.schema import Hints
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.dry_run import DryRunCache
from radix_tlru.sglang.cache.learning_cache import LearningCache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params, stock_cache_of
from radix_tlru.sglang.releases import host_tier_refusal, rust_core_refusal
from tests.helpers.tiers import TieredDriver
from tests.helpers.turns import told

if refusal := rust_core_refusal():
    pytest.skip(refusal, allow_module_level=True)

CAPACITY, PAGE, THRESHOLD = 20_000, 16, 600
CONVERSATIONS, LONGEST = 40, 3_000  # of as many tokens; then it begins anew
ETLRU = Config("etlru", threshold=THRESHOLD, dry_run=True)


def cache_of(core: Core, config: Config | None) -> OfflineCache:
    """Stock, or ours; in chunks of 512 tokens, each of which is a node that stock evicts whole."""
    params = replace(cache_params(CAPACITY, PAGE, core), enable_kv_cache_events=True)
    cache = stock_cache_of(params) if config is None else build_cache(params, config)
    return OfflineCache(cast(UnifiedRadixCache, cache), chunk=512)


class Talk:
    """Conversations that take turns on several caches at once, by chance."""

    def __init__(self, *caches: OfflineCache) -> None:
        self.caches = caches  # stock is told of no turn
        self._random, self._now, self._token = random.Random(7), 0.0, 0
        self._histories: dict[int, list[int]] = {}

    def turn(self) -> list[int]:
        """One turn, while sometimes another is looked up, that waits. Returns the cached tokens on each cache."""
        history = self._histories.setdefault(self._random.randrange(CONVERSATIONS), list(range(200)))
        if len(history) > LONGEST:
            del history[200:]
        if self._random.random() < 0.2:
            waits = self._histories[self._random.choice([*self._histories])]
            for cache in self.caches:
                cache.touch(waits)
        prompt = len(history) + self._add(history, self._random.randrange(50, 600))
        self._add(history, 20)
        self._now += self._random.expovariate(1 / 3)
        return [
            cache.request(history, prompt, self._now if isinstance(cache.cache, LearningCache) else None)
            for cache in self.caches
        ]

    def _add(self, history: list[int], tokens: int) -> int:
        self._token += tokens
        history += range(1_000 + self._token - tokens, 1_000 + self._token)
        return tokens


@pytest.mark.parametrize("core", ["rust", "python"])
def test_a_dry_run_evicts_what_stock_evicts(core: Core) -> None:
    """The events name each block that is evicted, in order; slots that are free are given out in the same order."""
    stock, dry = cache_of(core, None), cache_of(core, ETLRU)
    assert isinstance(dry.cache, DryRunCache)
    assert type(dry.cache.tree_core) is (RustUnifiedTreeCore if core == "rust" else UnifiedTreeCore)
    talk, evictions = Talk(stock, dry), 0
    for number in range(500):
        cached, watched = talk.turn()
        assert cached == watched, number
        if number % 50 == 49:  # beside those of allocations
            results = [cache.cache.evict(EvictParams(num_tokens=300)) for cache in talk.caches]
            assert results[0] == results[1]
        events, seen = (cache.cache.take_events() for cache in talk.caches)
        assert [str(each) for each in events] == [str(each) for each in seen], number
        evictions += sum(type(each).__name__ == "BlockRemoved" for each in events)
        slots = [cache.allocator.alloc(PAGE) for cache in talk.caches]
        assert (slots[0] is None) == (slots[1] is None)
        if slots[0] is not None:
            assert slots[0].tolist() == slots[1].tolist(), number
            for cache, taken in zip(talk.caches, slots, strict=True):
                cache.allocator.free(taken)
    assert evictions > 100
    dry.cache.sanity_check()


@pytest.mark.parametrize("core", ["rust", pytest.param("python", marks=pytest.mark.long)])
def test_its_shadows_say_what_those_of_a_server_that_evicts_would(core: Core) -> None:
    """Within 2 %: whose request waits, a cache knows only of what it still has of a conversation."""
    dry, ours = cache_of(core, ETLRU), cache_of(core, replace(ETLRU, dry_run=False))
    talk = Talk(dry, ours)
    for _ in range(600):
        talk.turn()
    watched, evicting = (cache.cache.tail.learner for cache in talk.caches)
    for name, tally in watched.selector.served.items():
        assert asdict(tally) == pytest.approx(asdict(evicting.selector.served[name]), rel=0.02), name
    assert watched.selector.sampled > 500


def test_a_fault_leaves_stock_which_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, dry = cache_of("python", None), cache_of("python", ETLRU)
    talk = Talk(stock, dry)
    for _ in range(60):
        talk.turn()
    dry.cache.tail.breaker.is_armed = True

    def broken(*_args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(dry.cache.tail, "has_children", broken)
    for number in range(100):
        cached, watched = talk.turn()
        assert cached == watched, number
    assert dry.cache.tail.breaker.has_tripped
    assert dry.cache.tail.learner is None


@pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))
def test_with_a_host_tier_it_is_stock_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    stock, dry = (TieredDriver(CAPACITY, 2 * CAPACITY, ours=ours, page_size=PAGE) for ours in (None, ETLRU))
    talk = Talk(stock, dry)
    for number in range(150):
        cached, watched = talk.turn()
        assert cached == watched, number
        for tiered in (stock, dry):
            tiered.cache.check_hicache_events()
        assert (stock.allocator.available_size(), stock.host_free) == (dry.allocator.available_size(), dry.host_free)
    assert dry.cache.tail.learner.selector.sampled > 50
    dry.audit()


def test_a_flush_leaves_nothing_of_the_conversations_behind() -> None:
    dry = cache_of("python", ETLRU)
    talk = Talk(dry)
    for _ in range(20):
        talk.turn()
    tail, words = dry.cache.tail, range(10**6, 10**6 + PAGE)
    dry.request(words)
    tail.record_turn(dry.match(words).last_device_node, told(1e3, words, hints=Hints(returns_in_s=60.0)))
    claims = tail.learner._quota
    assert tail._written
    assert claims._held
    dry.cache.reset()
    assert not tail._written
    assert not claims._held


@pytest.mark.parametrize("core", ["rust", "python"])
def test_a_look_up_that_ends_where_others_go_on_makes_nobody_queued(core: Core) -> None:
    dry, words = cache_of(core, ETLRU), range(2 * PAGE)
    learner = dry.cache.tail.learner
    dry.request(words[:PAGE], PAGE, 1.0)
    dry.request(words, 2 * PAGE, 2.0)
    queued = []
    for end in (PAGE, 2 * PAGE):
        dry.match(words[:end])
        queued.append(learner._queued)
    assert queued == [0, 1]


def test_conversations_are_written_on_the_newest_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radix_tlru.sglang.cache.dry_run._MOST_WRITTEN", 61)  # in as many shards
    dry = cache_of("python", ETLRU)
    for number in range(100):
        words = range(1_000 * number, 1_000 * number + PAGE)
        dry.request(words, PAGE, float(number))
    tail, newest = dry.cache.tail, dry.match(words).last_device_node
    assert tail.conversation_at(newest).number == 100
    assert len(tail._written) <= 61


def test_what_makes_no_sense_in_a_dry_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--tlru-host-threshold 900: not together with --tlru-dry-run: stock lru"):
        Config(host_threshold=900, dry_run=True)
    with pytest.raises(ConfigError, match=r"^--tlru-dry-run: not together with lru, which would save nothing$"):
        Config("lru", dry_run=True)


def test_a_dry_run_compares_what_is_pinned_with_lru_even_where_no_metrics_are_kept() -> None:
    """To say that is what it is for. A server that evicts by it would compare nothing, as nothing is chosen."""
    for dry_run in (True, False):
        driver = cache_of("python", Config("tlru", THRESHOLD, next_prompt_estimate=20, dry_run=dry_run))
        talk = Talk(driver)
        for _ in range(60):
            talk.turn()
        learner = driver.cache.tail.learner
        assert learner is not None
        assert (learner.selector is not None) is dry_run
