"""``build_cache``: the real ``UnifiedRadixCache`` with our order, for server, tests and evaluation alike."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import get_tree_core_factory, register_tree_core_backend
from sglang.srt.utils.rank_consensus_checker import rank_consensus

from radix_tlru.config import Config
from radix_tlru.sglang.cache.component import EvictedTails, TailComponent
from radix_tlru.sglang.cache.dry_run import build_dry_run
from radix_tlru.sglang.cache.learning_cache import LearningCache
from radix_tlru.sglang.cache.learning_component import component_for
from radix_tlru.sglang.state import StateKeeper
from radix_tlru.sglang.support import check_shape, python_core_reason

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

__all__ = ["TailRadixCache", "build_cache"]

FULL = ComponentType.FULL

logger = logging.getLogger(__name__)

RUST = "radix_tlru_rust"
"""Name of our Rust core among SGLang's tree cores."""


class TailRadixCache(LearningCache):
    """SGLang's cache, telling its component what an allocation needs."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        self._takes_tails = hasattr(self.tree_core, "evict_tails")  # all at once: on the Rust core

    @cached_property
    def tail(self) -> TailComponent:
        """The component that holds the order."""
        component: TailComponent = self.components[FULL]
        return component

    def evict_for_alloc(self, params: EvictParams, **kwargs: Any) -> EvictResult:
        """Make room for an allocation: for a trim chunk at least, so that the next ones need not ask."""
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
        _, self.tail.available_target = (available_size_targets or {}).get(FULL, (FULL, None))
        try:
            return super()._evict(params, available_size_targets, **kwargs)
        finally:
            self.tail.available_target = None
            self._report_now_and_then()

    def _evict_components(self, request_by_type: Any, tracker: Any, *args: Any, **kwargs: Any) -> None:
        if not self._takes_tails:
            super()._evict_components(request_by_type, tracker, *args, **kwargs)
        elif request_by_type[FULL] > 0:
            tracker[FULL] += self._take(request_by_type[FULL])

    def is_backuped(self, node_id: NodeId) -> bool:
        """Whether storage may have what continues behind a node; SGLang's scheduler asks it of the end of a match.

        Under write-back a tail is copied when it is evicted, and alone: its front stays on the device, without a copy.
        """
        return bool(super().is_backuped(node_id) or (self.is_write_back and self.enable_storage))


def build_cache(
    params: CacheInitParams, config: Config, *, hierarchical: bool = False, state: StateKeeper | None = None
) -> LearningCache:
    """The real radix cache of SGLang, evicting as ``config`` says: a ``TailRadixCache``, unless it is a dry run.

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
    if config.dry_run:
        return build_dry_run(params, config, state)
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
