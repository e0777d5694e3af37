"""A dry run: SGLang's own cache evicts, and a learner is shown what it serves, to say what another policy would save.

Nothing of SGLang's is replaced: it is its tree core, its component and its order, so what is evicted is what a server
without radix-tlru evicts. The learner is told of each turn as by a cache of ours, and its shadow caches serve the turns
under each candidate. What it says of the lru of the shadows can be held against what it says of the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    get_tree_core_factory,
    register_tree_core_backend,
    select_tree_core_backend,
)

from radix_tlru.config import Config
from radix_tlru.policy.sharded_dict import ShardedDict
from radix_tlru.sglang.cache.learning_cache import LearningCache
from radix_tlru.sglang.cache.learning_component import LearningComponent, component_for
from radix_tlru.sglang.state import StateKeeper

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, MatchResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId, UnifiedTreeCoreInterface

    from radix_tlru.learning.records import Conversation

__all__ = ["DryRunCache", "DryRunComponent", "build_dry_run"]

FULL = ComponentType.FULL

STOCK_RUST = "radix_tlru_stock_rust"
"""Name among SGLang's tree cores of its own Rust core, which it would not choose beside a component of ours."""

_MOST_WRITTEN = 50_000  # nodes with a conversation, the newest; as many as a learner remembers


class DryRunComponent(LearningComponent):
    """SGLang's component, with a learner beside it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._written: ShardedDict[Conversation] = ShardedDict()  # by the node that its context ends at

    def has_children(self, node_id: NodeId) -> bool:
        (path,) = self.tree_core.collect_path_info([node_id])
        return bool(path and path[-1].num_children)

    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        self._written.put_last(node_id, conversation, _MOST_WRITTEN)

    def conversation_at(self, node_id: NodeId) -> Conversation | None:
        return self._written.get(node_id)

    def match_ended(self, node_id: NodeId, req: Req | None) -> None:
        """A match for a request ended at that node: if nothing continues it, its conversation is back."""
        if self.learner is None:
            return
        try:
            is_leaf = not self.has_children(node_id)
        except Exception as error:
            self.breaker.trip("to look up whose request waits", error)
            return
        if is_leaf:
            self.mark_queued(node_id, req)

    def forget(self) -> None:
        """The tree was emptied."""
        self._written = ShardedDict()


class DryRunCache(LearningCache):
    """SGLang's cache as it is; its component hears of what is looked up."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        self._match_in_core = self.tree_core.match_prefix
        self.tree_core.match_prefix = self._match  # which a waiting request calls, too

    @cached_property
    def tail(self) -> DryRunComponent:
        component: DryRunComponent = self.components[FULL]
        return component

    def _match(self, params: MatchPrefixParams) -> MatchResult:
        result = self._match_in_core(params)
        self.tail.match_ended(result.last_device_node, params.req)
        return result

    def reset(self) -> None:
        super().reset()
        self.tail.forget()


def build_dry_run(params: CacheInitParams, config: Config, state: StateKeeper | None) -> DryRunCache:
    """SGLang's cache under its lru, on the tree core that it would choose, watched as ``config`` says."""
    lru = replace(params, tree_components=params.tree_components or (FULL,), eviction_policy="lru")
    name = select_tree_core_backend(replace(lru, component_registry_override=None))
    if name == "rust":
        name = STOCK_RUST
        if get_tree_core_factory(name) is None:
            register_tree_core_backend(name, _stock_rust_core)
    watching = {FULL: component_for(config, DryRunComponent, state)}
    return DryRunCache(
        replace(lru, eviction_policy_config=None, component_registry_override=watching, tree_core_backend=name)
    )


def _stock_rust_core(params: CacheInitParams, _components: object) -> UnifiedTreeCoreInterface:
    """As SGLang makes it; no component is its business."""
    from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore

    return RustUnifiedTreeCore(replace(params, component_registry_override=None))
