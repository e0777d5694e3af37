"""What a cache wants to know of the scheduler's prefills: one object on the cache, which the hooks look for."""

from __future__ import annotations

from collections.abc import Callable

from radix_tlru.objective.load_weight import PrefillLoad, QueueCounter
from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold
from radix_tlru.sglang.scheduler.stopwatch import Stopwatch

__all__ = ["PrefillObserver"]


class PrefillObserver:
    """Of one rank's cache.

    Args:
        threshold: what learns ξ from timed prefills; None where ξ is pinned.
        stages: of pipeline parallelism.
        count_prefill: called with the load of each prefill; None where w does not follow it.
    """

    def __init__(
        self, threshold: LiveThreshold | None, stages: int, count_prefill: Callable[[PrefillLoad], None] | None
    ) -> None:
        self.threshold = threshold
        self.stopwatch = None if threshold is None else Stopwatch(stages)
        """What times the prefills; None where ξ is pinned."""
        self._count_prefill = count_prefill
        self._queue: QueueCounter | None = None

    @property
    def follows_load(self) -> bool:
        """Whether anybody asks for the load of prefills."""
        return self._count_prefill is not None

    def queue_counter(self, ahead: bool) -> QueueCounter:
        """Who queues for which prefill. ``ahead``: as in ``QueueCounter``; it is known at the first launch."""
        if self._queue is None:
            self._queue = QueueCounter(ahead)
        return self._queue

    def count_prefill(self, load: PrefillLoad) -> None:
        """A prefill starts."""
        if self._count_prefill is not None:
            self._count_prefill(load)
