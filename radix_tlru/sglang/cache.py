"""``build_cache``: the real ``UnifiedRadixCache`` with our order, for server, tests and evaluation alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from radix_tlru.config import Config, ConfigError
from radix_tlru.sglang.component import TailComponent, component_for
from radix_tlru.sglang.metrics import TailMetrics

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import DecLockRefResult, EvictParams, EvictResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

__all__ = ["TailRadixCache", "build_cache", "check_shape"]

FULL = ComponentType.FULL


class TailRadixCache(UnifiedRadixCache):
    """SGLang's cache, telling its component what an allocation needs and the operator what the component did."""

    tail_metrics: TailMetrics | None = None

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        if self.metrics_collector is not None:
            self.tail_metrics = TailMetrics(self.metrics_collector.labels, self.tail)

    @property
    def tail(self) -> TailComponent:
        """The component that holds the order."""
        component: TailComponent = self.components[FULL]
        return component

    def _evict(self, params: EvictParams, available_size_targets: Any = None, **kwargs: Any) -> EvictResult:
        _, self.tail.available_target = (available_size_targets or {}).get(FULL, (FULL, None))
        try:
            return super()._evict(params, available_size_targets, **kwargs)
        finally:
            self.tail.available_target = None
            self._report()

    # Leaves come and go with locks and with a flush: then the gauges are brought up to date.

    def dec_lock_ref(self, *args: Any, **kwargs: Any) -> DecLockRefResult:
        result = super().dec_lock_ref(*args, **kwargs)
        self._report()
        return result

    def reset(self) -> None:
        super().reset()
        self._report()

    def _report(self) -> None:
        if self.tail_metrics is not None:
            self.tail_metrics.report()


def build_cache(params: CacheInitParams, config: Config) -> UnifiedRadixCache:
    """The real radix cache of SGLang, evicting as ``config`` says.

    Args:
        params: as SGLang builds them; ``eviction_policy`` and ``component_registry_override`` are replaced, and
            ``tree_components`` may be None. Not changed.
        config: the policy, in tokens.

    Raises:
        ConfigError: the cache has a shape that is not supported (yet); the message names it.
    """
    if config.policy == "etlru":
        raise ConfigError("--radix-eviction etlru: not served yet, only simulated (python -m eval simulate)")
    check_shape(params)
    return TailRadixCache(
        replace(
            params,
            tree_components=(FULL,),
            component_registry_override={FULL: component_for(config)},
            eviction_policy="lru",  # read by nothing but stock's own component
            eviction_policy_config=None,
        )
    )


def check_shape(params: CacheInitParams) -> None:
    """Raise ConfigError for a cache that would not follow our order, naming what makes it so."""
    components = set(params.tree_components or ()) | set(params.component_registry_override or ())
    others = ", ".join(sorted(component.name for component in components - {FULL}))
    refusals = {
        "--disable-radix-cache: there is nothing to evict": params.disable,
        "--enable-session-radix-cache": params.enable_session_radix_cache,
        "a sliding-window (SWA) model": params.sliding_window_size is not None,
        f"a hybrid model, which caches {others} beside full attention": bool(others),
    }
    for shape, present in refusals.items():
        if present:
            raise ConfigError(f"--radix-eviction: not supported with {shape}")
