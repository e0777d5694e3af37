"""Why models with a sliding window or a Mamba state are refused: what a trim leaves of their paths cannot be used.

A prefix of such a model is of use where the KV of a whole window, or a state, is cached at its end, and SGLang keeps
those at the ends of turns alone. A leaf that is cut keeps its full-attention KV up to the cut, and nothing to go on
from there. Shown on SGLang's own fixtures with our component for full attention, and theirs for the rest.
"""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType

pytest.importorskip("sglang.test.kits.unified_radix_cache", reason="this release ships no such kits")
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix
from sglang.test.kits.unified_radix_cache.mixins import UnifiedRadixCacheFixtures

from radix_tlru import Config, ConfigError
from radix_tlru.sglang.cache import check_shape
from radix_tlru.sglang.component import component_for
from radix_tlru.sglang.python_core import PythonTailComponent

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
WINDOW, CONTEXT = 16, 100

SLIDING = CacheConfig(components=(FULL, SWA), sliding_window_size=WINDOW)
STATEFUL = CacheConfig(components=(FULL, MAMBA))


class Fixtures(UnifiedRadixCacheFixtures):
    """A path of 100 tokens in a cache of SGLang's fixture, with our component."""

    def __init__(self, config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cfg = config
        monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")
        ours = component_for(Config(threshold=60, next_prompt_estimate=20), PythonTailComponent)
        self.cache, self.allocator, self.pool = build_fixture(config, component_registry_override={FULL: ours})
        self.tokens = self._make_seq(1, CONTEXT)
        params = InsertParams(key=RadixKey(array("q", self.tokens)), value=self._alloc(self.allocator, CONTEXT))
        if config.has_swa:  # as a request leaves it: KV of the window alone, for the layers that see no more
            self.allocator.free_swa(params.value[: CONTEXT - WINDOW])
            params.component_evicted_seqlens = {SWA: CONTEXT - WINDOW}
        if config.has_mamba:
            params.mamba_value = self._make_req(self.pool).kv.mamba_pool_idx.unsqueeze(0)
        self.cache.insert(params)

    def found(self) -> tuple[int, int]:
        """Tokens of the path that a next turn can use, and those whose full-attention KV is cached."""
        match = match_prefix(self.cache, self.tokens)
        return match.device_prefix_len, self.cache.full_evictable_size()


@pytest.mark.parametrize("config", [SLIDING, STATEFUL], ids=lambda config: config.label)
def test_a_token_off_the_tail_makes_all_the_others_useless(
    config: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Fixtures(config, monkeypatch)
    assert kit.found() == (CONTEXT, CONTEXT)
    assert kit.cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted == 1
    assert kit.found() == (0, CONTEXT - 1)
    kit.cache.sanity_check()


@pytest.mark.parametrize("config", [SLIDING, STATEFUL], ids=lambda config: config.label)
def test_they_are_refused_by_name(config: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a sliding-window" if config.has_swa else "a hybrid model, which caches MAMBA beside full attention"
    with pytest.raises(ConfigError, match=f"^--radix-eviction: not supported with {name}"):
        check_shape(Fixtures(config, monkeypatch).cache.cache_init_params)
