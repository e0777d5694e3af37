"""How long each prefill batch took, measured in the scheduler's own flow.

Two hooks, put in place by :func:`install` in a scheduler process whose cache learns its threshold, and nowhere else:

- after ``Scheduler.run_batch``: on a device that computes in step with the host (a CPU) the batch is done now;
- around ``Scheduler.process_batch_result``: on any other, the host waits in there for the batch, which then took from
  its launch, or from when the device was done with the batch before if that was later, until now. With overlap
  scheduling the next batch has been launched by then; it cannot have begun.

With pipeline parallelism the stages work at several batches at once, and the first stage, whose times count, has the
result when the last one is done: a batch took from its launch until then, on any device.

So the time in the queue, of decode steps before, and of other batches is in no sample. Nor is what lies outside the
scheduler, tokenizing and detokenizing: that is seen there, and told with later requests
(:mod:`radix_tlru.sglang.first_tokens`).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from radix_tlru.config import FLAGS
from radix_tlru.sglang.carried import first_tokens_with
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.live_threshold import Prefill

if TYPE_CHECKING:
    from collections.abc import Callable

    from radix_tlru.sglang.live_threshold import LiveThreshold

__all__ = ["HOOKED", "Stopwatch", "install"]

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

HOOKED = (f"{_SCHEDULER}.run_batch", f"{_SCHEDULER}.process_batch_result")
"""Functions of SGLang that the stopwatch stands beside."""


class Stopwatch:
    """Times batches, each in ``stages``. Times are in s, of SGLang's clock for launches: ``time.monotonic``."""

    def __init__(self, live: LiveThreshold, stages: int = 1) -> None:
        self.live = live
        self._stages = stages
        self._done = 0.0  # when the device was done with the last batch
        self._returned: deque[tuple[int, float]] = deque(maxlen=4)  # overlap scheduling is one batch ahead

    def returned(self, number: int, now: float) -> None:
        """``run_batch`` returns, for the batch of that number."""
        self._returned.append((number, now))

    def took(self, number: int, launched: float, now: float, *, in_step: bool) -> float | None:
        """``process_batch_result`` returns: ms that the device was at the batch; None if that cannot be told.

        Args:
            in_step: whether the device was done when ``run_batch`` returned.
        """
        began, done = max(launched, self._done), now
        if self._stages > 1:
            began = launched
        elif in_step:
            returned = [at for batch, at in self._returned if batch == number]
            if not returned:
                return None
            began, done = launched, returned[0]
        self._done = done
        return (done - began) * 1000.0


def install() -> None:
    """Put the hooks in place, once in a process.

    Raises:
        ConfigError: this SGLang does not take them.
    """
    without = f"{FLAGS['ttft_slo_ms']}: prefill cannot be timed"
    hook(HOOKED[0], _returned, without)
    hook(HOOKED[1], _processed, without, "around")


def _returned(_result: Any, scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    stopwatch: Stopwatch | None = getattr(scheduler.tree_cache, "stopwatch", None)
    if stopwatch is not None:
        stopwatch.returned(batch.forward_iter, time.monotonic())


def _processed(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    stopwatch: Stopwatch | None = getattr(scheduler.tree_cache, "stopwatch", None)
    if stopwatch is None or batch.launch_ts is None:
        return original(scheduler, batch, *args, **kwargs)
    prefill = prefill_of(batch) if batch.forward_mode.is_extend_without_speculative() else None
    result = original(scheduler, batch, *args, **kwargs)
    ms = stopwatch.took(batch.forward_iter, batch.launch_ts, time.monotonic(), in_step=scheduler.device == "cpu")
    if prefill is not None:
        stopwatch.live.prefilled(prefill, ms)
    return result


def prefill_of(batch: Any) -> Prefill | None:
    """What all ranks know of a prefill batch before its result is processed; None if it is none of a client's."""
    from sglang.srt.managers.utils import is_health_check_generate_req

    if all(map(is_health_check_generate_req, batch.reqs)):
        return None
    decoding = {id(request) for request in batch.decoding_reqs or ()}
    prompts = [request for request in batch.reqs if id(request) not in decoding]
    unfinished = [request for request in prompts if request.inflight_middle_chunks > 0]
    whole = [
        request
        for request in prompts
        if request.inflight_middle_chunks <= 0 and not request.retracted_stain and not request.finished()
    ]
    return Prefill(
        prompts=tuple(request.rid for request in prompts),
        unfinished=unfinished[0].rid if unfinished else None,
        tokens=batch.extend_num_tokens,
        uncached=tuple(len(request.origin_input_ids) - request.cached_tokens for request in whole),
        first_tokens=tuple(told for request in whole for told in first_tokens_with(request)),
    )
