"""``build_cache``: the real ``UnifiedRadixCache`` with our order, for server, tests and evaluation alike."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import get_tree_core_factory, register_tree_core_backend
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.utils.rank_consensus_checker import rank_consensus

from radix_tlru.config import FLAGS, Config, ConfigError
from radix_tlru.sglang.cache.component import EvictedTails, TailComponent, component_for
from radix_tlru.sglang.metrics import TailMetrics
from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold
from radix_tlru.sglang.scheduler.observer import PrefillObserver
from radix_tlru.sglang.state import StateKeeper
from radix_tlru.sglang.support import check_shape, python_core_reason

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams, DecLockRefResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

__all__ = ["TailRadixCache", "build_cache"]

FULL = ComponentType.FULL

logger = logging.getLogger(__name__)

RUST = "radix_tlru_rust"
"""Name of our Rust core among SGLang's tree cores."""

REPORT_EVERY = 32
"""Evictions and unlocks from one report of a busy cache to the next; a report takes as long as some unlocks."""


class TailRadixCache(UnifiedRadixCache):
    """SGLang's cache, telling its component what an allocation needs and the operator what the component did."""

    tail_metrics: TailMetrics | None = None
    _unreported = 0

    live_threshold: LiveThreshold | None = None
    """What moves ξ; None where the Config pins it."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        self._takes_tails = hasattr(self.tree_core, "evict_tails")  # all at once: on the Rust core
        if not self.tail.config.is_pinned:
            self.live_threshold = LiveThreshold(self, self.tail.config, self.tail.page_size)
        count_prefill = None if self.tail.load is None else self.tail.count_prefill
        self.prefill_observer = PrefillObserver(self.live_threshold, self.pp_size, count_prefill)
        """What the scheduler's hooks show prefills to."""
        self._agree_on_state()
        if self.metrics_collector is not None:
            self.tail_metrics = TailMetrics(self.metrics_collector.labels, self.tail, self.live_threshold)

    @property
    def tail(self) -> TailComponent:
        """The component that holds the order."""
        component: TailComponent = self.components[FULL]
        return component

    def evict_for_alloc(self, params: EvictParams, **kwargs: Any) -> EvictResult:
        """Make room for an allocation: for a trim chunk at least, so that the next ones need not ask."""
        if kwargs.get("allocation_reclaim_satisfied") is not None:
            return super().evict_for_alloc(params, **kwargs)
        missing = params.num_tokens and max(params.num_tokens, self.tail.policy.trim_chunk)
        if self._takes_tails:
            return self._make_room(missing)
        return super().evict_for_alloc(replace(params, num_tokens=missing), **kwargs)

    @rank_consensus(same_params=True, same_results=True)  # type: ignore[untyped-decorator]
    def _make_room(self, tokens: int) -> EvictResult:
        """On the Rust core: what SGLang's driver would do with one component and no host tier, without its steps.

        It asks for a leaf, has it evicted, frees it and looks at the pool, leaf by leaf; here all of them at once.
        """
        start, pool, evicted = time.perf_counter(), self.token_to_kv_pool_allocator, 0
        target = pool.available_size() + tokens
        while tokens > 0 and (freed := self._take(tokens)):
            evicted += freed
            tokens = target - pool.available_size()  # an allocator may hold back what it was given: then more has to go
        self.update_eviction_metrics(evicted, start)
        self._report_now_and_then()
        return EvictResult(num_tokens_evicted=evicted)

    def _take(self, tokens: int) -> int:
        """Evict so many tokens, if there are as many, and free them; returns how many they were."""
        evicted = EvictedTails()
        try:
            self.tree_core.evict_tails(tokens, evicted)
        finally:
            slots = evicted.slots
            if slots:
                pool = self.token_to_kv_pool_allocator
                pool.free_segment(torch.cat(slots) if len(slots) > 1 else slots[0], start_pos=0)
            if evicted.actions:
                self._apply_cache_actions(evicted.actions)
        return int(evicted.tokens)

    def _evict(self, params: EvictParams, available_size_targets: Any = None, **kwargs: Any) -> EvictResult:
        pool, target = (available_size_targets or {}).get(FULL, (FULL, None))
        self.tail.available_target = target if pool is FULL else None  # or full attention gives room to another pool
        self.tail.one_by_one = kwargs.get("allocation_reclaim_satisfied") is not None
        try:
            return super()._evict(params, available_size_targets, **kwargs)
        finally:
            self.tail.available_target, self.tail.one_by_one = None, False
            self._report_now_and_then()

    def _evict_components(self, request_by_type: Any, tracker: Any, *args: Any, **kwargs: Any) -> None:
        if not self._takes_tails or self.tail.one_by_one:
            super()._evict_components(request_by_type, tracker, *args, **kwargs)
        elif request_by_type[FULL] > 0:
            tracker[FULL] += self._take(request_by_type[FULL])

    def is_backuped(self, node_id: NodeId) -> bool:
        """Whether storage may have what continues behind a node; SGLang's scheduler asks it of the end of a match.

        Under write-back a tail is copied when it is evicted, and alone: its front stays on the device, without a copy.
        """
        return bool(super().is_backuped(node_id) or (self.is_write_back and self.enable_storage))

    # Leaves come and go with locks and with a flush: then the gauges are brought up to date.

    def dec_lock_ref(self, node_id: NodeId, params: DecLockRefParams, skip_swa: bool = False) -> DecLockRefResult:
        result = self.tree_core.dec_lock_ref(node_id, params, skip_swa)
        self._report_now_and_then()
        return result

    def reset(self) -> None:
        super().reset()
        self.report()

    def _report_now_and_then(self) -> None:
        """Report once in so many evictions and unlocks, and when nothing is locked any more."""
        if self.tail_metrics is None:
            return
        self._unreported += 1
        if self._unreported >= REPORT_EVERY or not self.tree_core.full_protected_size():
            self.report()

    # What ``LiveThreshold`` needs of its cache.

    def use_threshold(self, threshold: int) -> None:
        """Evict by another ξ (tokens) from now on, unless the cache has fallen back to lru."""
        if not self.tail.breaker.has_tripped:
            self.tail.use_threshold(threshold)

    def agree_on_maximum(self, values: torch.Tensor) -> None:
        """Replace each value by the largest of all ranks, in place: a collective."""
        self._drain_async_work()
        self._all_reduce(values, torch.distributed.ReduceOp.MAX)

    def _agree_on_state(self) -> None:
        """Raise ConfigError unless all ranks begin with the same state: else they would soon evict differently."""
        if self.tail.state is None:
            return
        own = self.tail.state.digest
        agreed = torch.tensor([own, -own], dtype=torch.float64)  # 32 bits, exactly
        self.agree_on_maximum(agreed)
        if agreed.tolist() != [own, -own]:
            raise ConfigError(
                f"{FLAGS['state']} {self.tail.config.state}: must be the same file on every rank, and is not"
            )

    def release_host_resources(self) -> None:
        """The server shuts down."""
        self.tail.save_state()
        super().release_host_resources()

    def report(self) -> None:
        """Bring the operator's metrics up to date."""
        self._unreported = 0
        if self.tail_metrics is not None:
            try:
                self.tail_metrics.report()
            except Exception as error:
                self.tail_metrics = None
                self.tail.breaker.trip("to report metrics", error)


def build_cache(
    params: CacheInitParams, config: Config, *, hierarchical: bool = False, state: StateKeeper | None = None
) -> TailRadixCache:
    """The real radix cache of SGLang, evicting as ``config`` says.

    Args:
        params: as SGLang builds them; ``eviction_policy`` and ``component_registry_override`` are replaced. Of a hybrid
            model ``tree_components`` says what is cached beside full attention; else it may be None. Not changed.
        config: the policy, in tokens.
        hierarchical: it will be given a host tier (``init_hicache``).
        state: what the learner begins with, and where it is saved. None: nothing is kept, whatever ``config`` says.

    Raises:
        ConfigError: the cache has a shape that is not supported (yet); the message names it.
    """
    check_shape(params, hierarchical=hierarchical)
    name, component = _core_for(params, config, hierarchical=hierarchical)
    return TailRadixCache(
        replace(
            params,
            tree_components=params.tree_components or (FULL,),
            component_registry_override={FULL: component_for(config, component, state)},
            tree_core_backend=name,
            eviction_policy="lru",  # read by nothing but stock's own component
            eviction_policy_config=None,
        )
    )


def _core_for(params: CacheInitParams, config: Config, *, hierarchical: bool) -> tuple[str, type[TailComponent]]:
    """Name of the tree core, and the component that goes with it."""
    reason = python_core_reason(params, config, hierarchical=hierarchical)
    if reason is not None:
        logger.warning("radix_tlru: on the Python tree core, which costs more: %s", reason)
        from radix_tlru.sglang.cache.python_core import PythonTailComponent

        return "python", PythonTailComponent
    from radix_tlru.sglang.cache.rust_core import RustTailComponent, RustTailCore

    if get_tree_core_factory(RUST) is None:
        register_tree_core_backend(RUST, lambda params, components: RustTailCore(params, components[FULL]))
    return RUST, RustTailComponent
