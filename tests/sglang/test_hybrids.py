"""Models with a sliding window or a Mamba state beside full attention: leaves go whole, in our order.

A prefix of such a model is of use where the KV of a whole window, or a state, is cached at its end, and SGLang keeps
those at the ends of turns. Shown on its own caches and pools; and in any order of a scheduler's steps, after each of
which every page, window and state is accounted for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from eval.caches.real import Kind, RealCache
from eval.soak.hybrids import AuditedHybrid
from eval.soak.shape import Shape
from eval.soak.steps import HYBRIDS, steps_of
from eval.traces import open_trace
from radix_tlru import Config, ConfigError
from radix_tlru.learning.prompt_lengths import NextPrompts
from radix_tlru.sglang.cache.learning_component import component_for
from radix_tlru.sglang.cache.python_core import PythonTailComponent
from radix_tlru.sglang.cache.radix_cache import TailRadixCache, build_cache, check_shape, python_core_reason
from radix_tlru.sglang.offline import stock_cache_of
from radix_tlru.sglang.offline.hybrids import Hybrid, HybridCache, hybrid_params
from radix_tlru.sglang.releases import hybrid_refusal
from tests.helpers.any_order import in_any_order
from tests.helpers.examples import examples
from tests.helpers.rules import InTurn

pytestmark = pytest.mark.skipif(hybrid_refusal() is not None, reason=str(hybrid_refusal()))

FULL, SWA, MAMBA, C128 = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA, ComponentType.C128
POOL, WINDOW, TURN, CONTEXT = 1_000, 16, 60, 100
OURS = Config(threshold=60, next_prompt_estimate=20)
BUDGET = CONTEXT + 20 - 60  # of a context of 100 tokens, what has to stay for its next turn to meet the threshold

SLIDING = Hybrid(window=WINDOW, window_pool=POOL)
STATEFUL = Hybrid(states=50)
BOTH = Hybrid(window=WINDOW, window_pool=POOL, states=50)


def beside(hybrid: Hybrid) -> str:
    """What is cached beside full attention."""
    return " and ".join(each.name for each in hybrid.components[1:])


EACH = pytest.mark.parametrize("hybrid", [SLIDING, STATEFUL, BOTH], ids=beside)


class Conversations(HybridCache):
    """Numbered conversations that take turns on the cache of a hybrid, ours or stock."""

    def __init__(self, hybrid: Hybrid, ours: Config | None = OURS) -> None:
        params = hybrid_params(POOL, hybrid)
        super().__init__(stock_cache_of(params) if ours is None else build_cache(params, ours))

    def turn(self, conversation: int, end: int) -> None:
        """A request whose context is the first ``end`` tokens."""
        self.request(self.tokens(conversation, end))

    def tokens(self, conversation: int, end: int) -> range:
        return range(10_000 * conversation, 10_000 * conversation + end)

    def usable(self, *conversations: int) -> list[int]:
        """Tokens of each that a next turn can use."""
        return [self.match(self.tokens(each, CONTEXT)).device_prefix_len for each in conversations]

    def take(self, **wanted: int) -> int:
        """Evict as much; returns how many tokens of full attention were."""
        evicted: int = self.cache.evict(EvictParams(**wanted)).num_tokens_evicted
        self.cache.sanity_check()
        return evicted


class CutLeaves(PythonTailComponent):
    """What takes the tails of leaves page by page, whatever is cached of them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._whole = None


@EACH
def test_a_token_off_the_tail_would_make_all_the_others_useless(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid)
    cut = {FULL: component_for(OURS, CutLeaves)}
    kit.cache = UnifiedRadixCache(replace(hybrid_params(POOL, hybrid), component_registry_override=cut))
    kit.turn(1, CONTEXT)
    assert kit.usable(1) == [CONTEXT]
    assert kit.take(num_tokens=1) == 1
    assert (kit.usable(1), kit.cache.full_evictable_size()) == ([0], CONTEXT - 1)


@EACH
def test_a_turn_goes_whole_and_leaves_the_turn_before(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid)
    kit.turn(1, TURN)
    kit.turn(1, CONTEXT)
    assert kit.usable(1) == [CONTEXT]
    # With a sliding window a turn is two leaves, one of them behind the other: its last window, and what is before it.
    leaves = [WINDOW, CONTEXT - TURN - WINDOW] if bool(hybrid.window) else [CONTEXT - TURN]
    assert [kit.take(num_tokens=1) for _ in leaves] == leaves
    assert (kit.usable(1), kit.cache.full_evictable_size()) == ([TURN], TURN)


@EACH
def test_a_turn_that_can_be_spared_goes_before_older_ones_that_cannot(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid)
    kit.turn(1, CONTEXT)
    kit.turn(2, TURN)
    kit.turn(2, CONTEXT)
    assert TURN >= BUDGET > 0  # the second goes back to where it has all it needs, the first would lose everything
    kit.take(num_tokens=CONTEXT - TURN)
    assert kit.usable(1, 2) == [CONTEXT, TURN]
    assert kit.cache.tail.counts == {"tel_safe": CONTEXT - TURN}
    kit.take(num_tokens=1)
    assert kit.usable(1, 2) == [0, TURN]


@EACH
def test_what_is_of_no_use_any_more_goes_before_older_tokens_that_are(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid)
    kit.turn(1, CONTEXT)
    lock = kit.cache.lock(kit.match(kit.tokens(1, CONTEXT)).last_device_node)
    kit.turn(2, TURN)
    kit.turn(2, CONTEXT)
    # By SGLang: what was kept at the end of either turn of the second, and with the last window or state its leaf.
    kit.take(swa_num_tokens=2 * WINDOW * bool(hybrid.window), mamba_num=2 * bool(hybrid.states))
    kit.cache.unlock(lock)
    useless = kit.cache.full_evictable_size() - CONTEXT
    assert useless == (CONTEXT - WINDOW if bool(hybrid.window) else TURN)
    assert kit.take(num_tokens=useless) == useless
    assert kit.usable(1, 2) == [CONTEXT, 0]


@pytest.mark.parametrize("hybrid", [STATEFUL, BOTH], ids=beside)
def test_a_turn_whose_predecessor_lost_its_state_cannot_be_spared_any_more(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid)
    for conversation in (1, 2):
        kit.turn(conversation, TURN)
        kit.turn(conversation, CONTEXT)
    kit.take(mamba_num=1)  # by SGLang: the state that was used the longest ago is that of the first turn of all
    kit.take(num_tokens=CONTEXT - TURN)
    assert kit.usable(1, 2) == [CONTEXT, TURN]


@EACH
def test_windows_and_states_are_evicted_as_stock_does(hybrid: Hybrid) -> None:
    def usable(kit: Conversations) -> list[list[int]]:
        for end in (30, TURN, CONTEXT):
            for conversation in (1, 2, 3):
                kit.turn(conversation, end)
        found = []
        for _ in range(6):
            kit.take(swa_num_tokens=20 * bool(hybrid.window), mamba_num=bool(hybrid.states))
            found.append([kit.match(kit.tokens(each, CONTEXT)).full_kv_hit_length for each in (1, 2, 3)])
        return found

    assert usable(Conversations(hybrid)) == usable(Conversations(hybrid, ours=None))


@EACH
def test_what_an_allocation_wants_of_the_other_pools_is_wanted_still(hybrid: Hybrid) -> None:
    kit = Conversations(hybrid, replace(OURS, trim_chunk=50))
    for conversation in (1, 2, 3):
        kit.turn(conversation, CONTEXT)
    wanted = EvictParams(num_tokens=1, swa_num_tokens=20 * bool(hybrid.window), mamba_num=2 * bool(hybrid.states))
    # The pools are not full, so that what is evicted for one of them need not be enough for another.
    evicted = kit.cache.evict_for_alloc(wanted)
    assert evicted.num_tokens_evicted >= 50
    assert evicted.swa_num_tokens_evicted >= wanted.swa_num_tokens
    assert evicted.mamba_num_evicted >= wanted.mamba_num


def params_of(hybrid: Hybrid) -> CacheInitParams:
    return hybrid_params(POOL, hybrid)


@EACH
def test_they_are_on_the_python_tree_core_and_it_is_said_why(hybrid: Hybrid) -> None:
    reason = f"what a next turn can use of {beside(hybrid)} beside full attention Rust does not tell"
    assert python_core_reason(params_of(hybrid), OURS) == reason
    cache = build_cache(params_of(hybrid), OURS)
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
        check_shape(replace(params_of(SLIDING), tree_components=tuple(components)))


@EACH
def test_their_host_tier_is_refused(hybrid: Hybrid) -> None:
    named = f"--enable-hierarchical-cache and {beside(hybrid)} beside full attention"
    with pytest.raises(ConfigError, match=f"^--radix-eviction: not supported with {named}$"):
        build_cache(params_of(hybrid), OURS, hierarchical=True)


# ---- any order of steps ----


@pytest.mark.parametrize("shape", HYBRIDS, ids=str)
def test_likely_steps_lose_nothing_and_find_all_that_is_of_use(shape: Shape) -> None:
    audited = AuditedHybrid(shape)
    for step in steps_of(audited, seed=2, count=examples(1_000)):
        step()
    assert audited.steps["evict hybrid"] > examples(30)
    assert min(audited.cache.tail.counts[phase] for phase in ("tel_safe", "lru")) > examples(30)
    assert audited.cache.tail.counts["splits"] == 0


@pytest.mark.parametrize("shape", HYBRIDS, ids=str)
def test_no_order_of_steps_loses_anything(shape: Shape) -> None:
    seen = in_any_order(shape)
    assert seen["tel_safe"] + seen["lru"] > 0


@pytest.mark.parametrize("kind", ["swa", "mamba"])
@pytest.mark.parametrize("policy", [pytest.param("tlru", marks=pytest.mark.long), "etlru"])
def test_what_was_learned_orders_whole_leaves(policy: str, kind: Kind) -> None:
    requests = open_trace("synthetic:conversations=300").requests
    sizes = {"threshold": 1024, "next_prompt_estimate": None, "page_size": 16}
    real = RealCache(policy, 20_000, **sizes, core="python", hybrid=kind)
    cache, half = real.cache, len(requests) // 2
    candidate = "etlru w=0.6" if policy == "etlru" else policy
    cache.tail.learner.rule = InTurn([candidate])  # whatever the shadows say
    for request in requests[:half]:
        real.request(request)
    learner, counts = cache.tail.learner, cache.tail.counts
    assert isinstance(learner.policy.prompts, NextPrompts), "enough was seen to learn from"
    before = counts["tel_safe"] + counts["lru"]
    for request in requests[half:]:
        real.request(request)
    assert learner.in_force == candidate
    assert counts["tel_safe"] + counts["lru"] > before
    assert not counts["splits"]
    cache.evict(EvictParams(num_tokens=20_000))
    assert (cache.full_evictable_size(), cache.full_protected_size(), len(cache.tail.order)) == (0, 0, 0)


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
    audited = AuditedHybrid(Shape("python", 16, hybrid=("swa", "mamba")))
    for number in range(6):
        audited.start(number, 8)
        audited.finish(0)
    audited.audit()
    wrong(audited)
    with pytest.raises(AssertionError):
        audited.audit()


@EACH
@pytest.mark.parametrize(("of", "hook"), [("order", "choose_victim"), ("_whole", "correct_next")])
def test_a_fault_in_the_order_leaves_stock_lru(
    hybrid: Hybrid, of: str, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_tokens: int) -> None:
        monkeypatch.undo()  # the next time all is well
        raise RuntimeError

    kit, all_of_them = Conversations(hybrid), range(1, 6)
    for conversation in all_of_them:
        kit.turn(conversation, CONTEXT)
    tail: Any = kit.cache.components[FULL]
    tail.breaker.is_armed = True
    monkeypatch.setattr(getattr(tail, of), hook, broken)
    assert kit.take(num_tokens=CONTEXT) == CONTEXT
    assert tail.breaker.has_tripped
    assert kit.usable(*all_of_them) == [0, *[CONTEXT] * 4]


@EACH
def test_a_leaf_of_which_nobody_can_say_what_is_usable_without_it_leaves_stock_lru(
    hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_leaf: Any) -> None:
        raise RuntimeError

    kit = Conversations(hybrid)
    for conversation in range(1, 5):
        kit.turn(conversation, CONTEXT)
    tail: Any = kit.cache.components[FULL]
    tail.breaker.is_armed = True
    monkeypatch.setattr(tail._whole, "usable_without", broken)
    kit.turn(5, CONTEXT)
    assert tail.breaker.has_tripped
    assert len(tail.order) == sum(1 for _ in tail.leaves())
    assert kit.take(num_tokens=CONTEXT) == CONTEXT
    assert kit.usable(*range(1, 6)) == [0, *[CONTEXT] * 4]


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("hybrid", [STATEFUL, BOTH], ids=beside)
def test_a_fault_while_the_next_victim_gets_its_price_leaves_stock_lru(
    hybrid: Hybrid, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Conversations(hybrid)
    for conversation, end in ((1, 30), (1, TURN), (1, CONTEXT), (2, CONTEXT)):
        kit.turn(conversation, end)
    kit.match(kit.tokens(1, 30))
    kit.take(
        mamba_num=1
    )  # of the second turn: without the third 30 tokens are usable, and not 60 as the order was told
    tail: Any = kit.cache.components[FULL]
    tail.breaker.is_armed = True
    usable_without, calls = tail._whole.usable_without, 0

    def fails_at_the_second_call(leaf: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2 or (lasts and calls > 2):  # the first has found that the leaf needs another price
            raise RuntimeError
        return int(usable_without(leaf))

    monkeypatch.setattr(tail._whole, "usable_without", fails_at_the_second_call)
    kit.take(num_tokens=CONTEXT - 30)
    assert tail.breaker.has_tripped
    assert kit.usable(1, 2) == [30, CONTEXT]
