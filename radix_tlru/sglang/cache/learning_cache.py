"""SGLang's cache with a component that learns: what it needs of the server, and what it tells the operator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel

from radix_tlru.config import FLAGS, ConfigError
from radix_tlru.sglang.cache.learning_component import LearningComponent
from radix_tlru.sglang.metrics import TailMetrics
from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams, DecLockRefResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

__all__ = ["LearningCache"]

FULL = ComponentType.FULL

_TAG = int.from_bytes(b"PpXi", byteorder="big")
"""Of what stages agree on: no other message between them has it (``sglang.srt.distributed.communication_tags``)."""

REPORT_EVERY = 32
"""Evictions and unlocks from one report to the next of a server that is never idle. One takes as long as some unlocks.
"""


class LearningCache(UnifiedRadixCache):
    """SGLang's cache, whose ``tail`` learns. ξ may follow prefills; ranks agree on it, and on what they begin with."""

    tail_metrics: TailMetrics | None = None
    _unreported = 0

    is_known_idle = False
    """Whether SGLang has seen since the last batch that there is none to run."""

    _sent: torch.distributed.Work | None = None  # to the next stage, what was agreed on last

    live_threshold: LiveThreshold | None = None
    """What moves ξ, and the scheduler's hooks show prefills to; None where the Config pins it."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        if not self.tail.config.is_pinned:
            self.live_threshold = LiveThreshold(self, self.tail.config, self.tail.page_size, self.pp_size)
        self.tail.learns_when_idle = self.pp_size == 1
        self._agree_on_start()
        if self.metrics_collector is not None:
            labels = dict(self.metrics_collector.labels)
            if (replica := get_parallel().dp_rank) is not None:
                labels["dp_rank"] = replica  # SGLang says 0 of each but with DP attention; our gauges would be one
            self.tail_metrics = TailMetrics(labels, self.tail, self.live_threshold)

    @cached_property
    def tail(self) -> LearningComponent:
        """The component that learns."""
        component: LearningComponent = self.components[FULL]
        return component

    # Leaves come and go with locks and with a flush: then the gauges are brought up to date.

    def dec_lock_ref(self, node_id: NodeId, params: DecLockRefParams, skip_swa: bool = False) -> DecLockRefResult:
        result = self.tree_core.dec_lock_ref(node_id, params, skip_swa)
        self._report_now_and_then()
        return result

    def reset(self) -> None:
        self.tail.forget_nodes()  # whose ids those of the next tree may have, too
        super().reset()
        self.report()

    # What a server does for us.

    def _report_now_and_then(self) -> None:
        """Report once in so many evictions and unlocks."""
        self._unreported += 1
        self.report_due()

    def report_due(self) -> None:
        """Report if that is due, and no batch is being processed, whose last tokens would wait for it."""
        if self._unreported >= REPORT_EVERY and not self.tail.learns_later:
            self.report()

    @property
    def has_work(self) -> bool:
        """Whether something waits for an idle moment."""
        return self._unreported > 0 or self.tail.has_work

    def use_idle_time(self) -> None:
        """No batch is there to run: do a slice of what waits, or else report. One of them a step."""
        if self.tail.has_work:
            self.tail.work_when_idle()
            self._unreported += 1
        elif self._unreported:
            self.report()

    # What ``LiveThreshold`` needs of its cache.

    def use_threshold(self, threshold: int) -> None:
        """Evict by another ξ (tokens) from now on, unless the cache has fallen back to lru."""
        if not self.tail.breaker.has_tripped:
            self.tail.use_threshold(threshold)

    def stop_measuring(self, error: Exception) -> None:
        """Prefills cannot be timed on this rank any more."""
        self.tail.breaker.survive("to time prefills", error, "the threshold stays as it is")

    def agree_on_maximum(self, values: torch.Tensor) -> None:
        """Replace each value by the largest of all ranks, in place: a collective. Of stages, those of the first count.

        Not by SGLang's ``_all_reduce``: with a host tier the scheduler waits, before each batch, until what was sent so
        is received. The next stage receives this only after a result that the first one sends later.
        """
        if self.pp_rank == 0:
            self._all_reduce_attn_groups(values, torch.distributed.ReduceOp.MAX)
        if self.pp_size == 1 or self.pp_group is None:
            return
        if self._sent is not None:
            self._sent.wait()  # the last time; it was received long ago
        if self.pp_rank > 0:
            torch.distributed.recv(values, group_src=self.pp_rank - 1, group=self.pp_group, tag=_TAG)
        if self.pp_rank + 1 < self.pp_size:
            passed_on = values.clone()
            self._sent = torch.distributed.isend(passed_on, group_dst=self.pp_rank + 1, group=self.pp_group, tag=_TAG)

    def _agree_on_start(self) -> None:
        """Raise ConfigError unless all ranks begin alike, also those of other nodes: else they evict differently."""
        config, state = self.tail.config, self.tail.state
        own = [config.digest, 0 if state is None else state.digest]
        agreed = torch.tensor([own, [-each for each in own]], dtype=torch.float64)  # 32 bits, exactly
        self.agree_on_maximum(agreed)
        is_same = [(high, low) == (each, -each) for each, high, low in zip(own, *agreed.tolist(), strict=True)]
        if not is_same[0]:
            raise ConfigError(f"{FLAGS['policy']} {config}: must be the same on every rank, and is not")
        if not is_same[1]:
            raise ConfigError(f"{FLAGS['state']} {config.state}: must be the same file on every rank, and is not")

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
            except Exception as error:  # ranks look at their orders at moments of their own
                self.tail.breaker.survive("to report metrics", error, "there are none")
                self.tail_metrics = None
