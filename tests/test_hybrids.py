"""Models with a sliding window or a Mamba state beside full attention: leaves go whole, in our order.

A prefix of such a model is of use where the KV of a whole window, or a state, is cached at its end, and SGLang keeps
those at the ends of turns. Shown on the pools and requests of SGLang's own fixtures; and any order of a scheduler's
steps, after each of which every page, window and state is accounted for.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

pytest.importorskip("sglang.test.kits.unified_radix_cache", reason="this release ships no such kits")
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix
from sglang.test.kits.unified_radix_cache.mixins import UnifiedRadixCacheFixtures

from eval.audit import Shape
from eval.audit_hybrids import AuditedHybrid
from eval.soak import HYBRIDS, steps_of
from radix_tlru import Config, ConfigError
from radix_tlru.sglang.cache import TailRadixCache, build_cache, check_shape, python_reason
from radix_tlru.sglang.component import component_for
from radix_tlru.sglang.python_core import PythonTailComponent
from tests.test_fuzz import EXAMPLES, STEPS, Scheduler

FULL, SWA, MAMBA, C128 = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA, ComponentType.C128
WINDOW, TURN, CONTEXT = 16, 60, 100
OURS = Config(threshold=60, next_prompt_estimate=20)
BUDGET = CONTEXT + 20 - 60  # of a context of 100 tokens, what has to stay for its next turn to meet the threshold

SLIDING = CacheConfig(components=(FULL, SWA), sliding_window_size=WINDOW, kv_size=1_000, max_context_len=1_000)
STATEFUL = CacheConfig(components=(FULL, MAMBA), kv_size=1_000, max_context_len=1_000, max_num_reqs=50)
BOTH = replace(STATEFUL, components=(FULL, SWA, MAMBA), sliding_window_size=WINDOW)
EACH = pytest.mark.parametrize("config", [SLIDING, STATEFUL, BOTH], ids=lambda config: config.label)


class Conversations(UnifiedRadixCacheFixtures):
    """Conversations that take turns on a hybrid cache, by the number that their tokens begin with."""

    def __init__(self, config: CacheConfig, ours: Config | None = OURS) -> None:
        """None: stock."""
        self.cfg = config
        stock, self.allocator, self.pool = build_fixture(config)
        self.params = stock.cache_init_params
        self.cache: Any = stock if ours is None else build_cache(self.params, ours)

    def turn(self, conversation: int, end: int) -> None:
        """A request whose context is the first ``end`` tokens is cached, as it leaves it when it ends."""
        found = match_prefix(self.cache, self.tokens(conversation, end)).device_prefix_len
        params = InsertParams(
            key=RadixKey(array("q", self.tokens(conversation, end))),
            value=self._alloc(self.allocator, end),
        )
        if self.cfg.has_swa:  # KV of the window alone, for the layers that see no more
            self.allocator.free_swa(params.value[: max(end - WINDOW, found)])
            params.component_evicted_seqlens = {SWA: max(end - WINDOW, found)}
        if self.cfg.has_mamba:
            params.mamba_value = self._make_req(self.pool).kv.mamba_pool_idx.unsqueeze(0)
        self.cache.insert(params)

    def tokens(self, conversation: int, end: int) -> list[int]:
        return self._make_seq(10_000 * conversation, end)

    def usable(self, *conversations: int) -> list[int]:
        """Tokens of each that a next turn can use."""
        return [match_prefix(self.cache, self.tokens(each, CONTEXT)).device_prefix_len for each in conversations]

    def evict(self, **wanted: int) -> int:
        """Evict as much; returns how many tokens of full attention were."""
        evicted: int = self.cache.evict(EvictParams(**wanted)).num_tokens_evicted
        self.cache.sanity_check()
        return evicted


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")


class CutLeaves(PythonTailComponent):
    """What takes the tails of leaves page by page, whatever is cached of them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._whole = None


@EACH
def test_a_token_off_the_tail_would_make_all_the_others_useless(config: CacheConfig) -> None:
    kit = Conversations(config, ours=None)
    cut = {FULL: component_for(OURS, CutLeaves)}
    kit.cache = UnifiedRadixCache(replace(kit.params, component_registry_override=cut))
    kit.turn(1, CONTEXT)
    assert kit.usable(1) == [CONTEXT]
    assert kit.evict(num_tokens=1) == 1
    assert (kit.usable(1), kit.cache.full_evictable_size()) == ([0], CONTEXT - 1)


@EACH
def test_a_turn_goes_whole_and_leaves_the_turn_before(config: CacheConfig) -> None:
    kit = Conversations(config)
    kit.turn(1, TURN)
    kit.turn(1, CONTEXT)
    assert kit.usable(1) == [CONTEXT]
    # With a sliding window a turn is two leaves, one of them behind the other: its last window, and what is before it.
    leaves = [WINDOW, CONTEXT - TURN - WINDOW] if config.has_swa else [CONTEXT - TURN]
    assert [kit.evict(num_tokens=1) for _ in leaves] == leaves
    assert (kit.usable(1), kit.cache.full_evictable_size()) == ([TURN], TURN)


@EACH
def test_a_turn_that_can_be_spared_goes_before_older_ones_that_cannot(config: CacheConfig) -> None:
    kit = Conversations(config)
    kit.turn(1, CONTEXT)
    kit.turn(2, TURN)
    kit.turn(2, CONTEXT)
    assert TURN >= BUDGET > 0  # the second goes back to where it has all it needs, the first would lose everything
    kit.evict(num_tokens=CONTEXT - TURN)
    assert kit.usable(1, 2) == [CONTEXT, TURN]
    assert kit.cache.tail.counts == {"tel_safe": CONTEXT - TURN}
    kit.evict(num_tokens=1)
    assert kit.usable(1, 2) == [0, TURN]


@EACH
def test_what_is_of_no_use_any_more_goes_before_older_tokens_that_are(config: CacheConfig) -> None:
    kit = Conversations(config)
    kit.turn(1, CONTEXT)
    lock = kit.cache.lock(match_prefix(kit.cache, kit.tokens(1, CONTEXT)).last_device_node)
    kit.turn(2, TURN)
    kit.turn(2, CONTEXT)
    # By SGLang: what was kept at the end of either turn of the second, and with the last window or state its leaf.
    kit.evict(swa_num_tokens=2 * WINDOW * config.has_swa, mamba_num=2 * config.has_mamba)
    kit.cache.unlock(lock)
    useless = kit.cache.full_evictable_size() - CONTEXT
    assert useless == (CONTEXT - WINDOW if config.has_swa else TURN)
    assert kit.evict(num_tokens=useless) == useless
    assert kit.usable(1, 2) == [CONTEXT, 0]


@pytest.mark.parametrize("config", [STATEFUL, BOTH], ids=lambda config: config.label)
def test_a_turn_whose_predecessor_lost_its_state_cannot_be_spared_any_more(config: CacheConfig) -> None:
    kit = Conversations(config)
    for conversation in (1, 2):
        kit.turn(conversation, TURN)
        kit.turn(conversation, CONTEXT)
    kit.evict(mamba_num=1)  # by SGLang: the state that was used the longest ago is that of the first turn of all
    kit.evict(num_tokens=CONTEXT - TURN)
    assert kit.usable(1, 2) == [CONTEXT, TURN]


@EACH
def test_windows_and_states_are_evicted_as_stock_does(config: CacheConfig) -> None:
    def usable(kit: Conversations) -> list[list[int]]:
        for end in (30, TURN, CONTEXT):
            for conversation in (1, 2, 3):
                kit.turn(conversation, end)
        found = []
        for _ in range(6):
            kit.evict(swa_num_tokens=20 * config.has_swa, mamba_num=int(config.has_mamba))
            found.append([match_prefix(kit.cache, kit.tokens(each, CONTEXT)).full_kv_hit_length for each in (1, 2, 3)])
        return found

    assert usable(Conversations(config)) == usable(Conversations(config, ours=None))


@EACH
def test_what_an_allocation_wants_of_the_other_pools_is_wanted_still(config: CacheConfig) -> None:
    kit = Conversations(config, replace(OURS, trim_chunk=50))
    for conversation in (1, 2, 3):
        kit.turn(conversation, CONTEXT)
    wanted = EvictParams(num_tokens=1, swa_num_tokens=20 * config.has_swa, mamba_num=2 * config.has_mamba)
    # The pools are not full, so that what is evicted for one of them need not be enough for another.
    evicted = kit.cache.evict_for_alloc(wanted)
    assert evicted.num_tokens_evicted >= 50
    assert evicted.swa_num_tokens_evicted >= wanted.swa_num_tokens
    assert evicted.mamba_num_evicted >= wanted.mamba_num


def stock_params(config: CacheConfig) -> Any:
    return Conversations(config, ours=None).params


@EACH
def test_they_are_on_the_python_tree_core_and_it_is_said_why(config: CacheConfig) -> None:
    beside = " and ".join(each.name for each in config.components[1:])
    reason = f"what a next turn can use of {beside} beside full attention Rust does not tell"
    assert python_reason(stock_params(config), OURS) == reason
    cache = build_cache(stock_params(config), OURS)
    assert isinstance(cache, TailRadixCache)
    assert isinstance(cache.tail, PythonTailComponent)


@pytest.mark.parametrize(
    ("components", "named"),
    [
        ((SWA,), "a model without full attention"),
        ((FULL, SWA, C128), "a model that caches C128"),
        ((FULL,), "a sliding-window (SWA) model whose windows the cache does not keep"),
    ],
)
def test_what_is_no_hybrid_of_these_is_refused_by_its_name(components: Sequence[ComponentType], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^--radix-eviction: not supported with {re.escape(named)}$"):
        check_shape(replace(stock_params(SLIDING), tree_components=tuple(components)))


@EACH
def test_their_host_tier_is_refused(config: CacheConfig) -> None:
    beside = " and ".join(each.name for each in config.components[1:])
    named = f"--enable-hierarchical-cache and {beside} beside full attention"
    with pytest.raises(ConfigError, match=f"^--radix-eviction: not supported with {named}$"):
        build_cache(stock_params(config), OURS, hierarchical=True)


# ---- any order of steps ----


@pytest.mark.parametrize("shape", HYBRIDS, ids=str)
def test_a_thousand_likely_steps_lose_nothing_and_find_all_that_is_of_use(shape: Shape) -> None:
    audited = AuditedHybrid(shape)
    for step in steps_of(audited, seed=2, count=1_000):
        step()
    assert audited.steps["beside"] > 30
    assert min(audited.cache.tail.counts[phase] for phase in ("tel_safe", "lru")) > 30
    assert audited.cache.tail.counts["splits"] == 0


@pytest.mark.parametrize("shape", HYBRIDS, ids=str)
def test_no_order_of_steps_loses_anything(shape: Shape) -> None:
    seen: Counter[str] = Counter()
    budget = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: Scheduler(shape, seen), settings=budget)
    assert seen["tel_safe"] + seen["lru"] > 0


def lose_a_window(audited: AuditedHybrid) -> None:
    audited.allocator.swa_attn_allocator.alloc(audited.page_size)


def free_a_window_that_is_cached(audited: AuditedHybrid) -> None:
    page = audited.holds[next(iter(audited.windows))]
    audited.allocator.free_swa(audited._slots([page]))


def lose_a_state(audited: AuditedHybrid) -> None:
    audited.states.alloc(1)


def hand_over_another_state(audited: AuditedHybrid) -> None:
    first, second = audited.cache.all_mamba_values_flatten().tolist()[:2]
    handed = audited._handed_over
    handed[first] = handed[second]


@pytest.mark.parametrize(
    "wrong",
    [lose_a_window, free_a_window_that_is_cached, lose_a_state, hand_over_another_state],
    ids=lambda wrong: wrong.__name__,
)
def test_the_audit_notices(wrong: Callable[[AuditedHybrid], None]) -> None:
    audited = AuditedHybrid(Shape("python", 16, beside=("swa", "mamba")))
    for number in range(6):
        audited.start(number, 8)
        audited.finish(0)
    audited.audit()
    wrong(audited)
    with pytest.raises(AssertionError):
        audited.audit()
