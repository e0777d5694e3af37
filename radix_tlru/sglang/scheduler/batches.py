"""What the scheduler shows of its batches, told to the cache: put in place by :func:`install` in a scheduler process.

- After ``Scheduler.run_batch``: how many requests wait for the prefill that was launched (``objective.load_weight``).
- There, and around ``Scheduler.process_batch_result``: how long it took (``stopwatch``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from radix_tlru.config import AUTO, FLAGS, LOAD, Config
from radix_tlru.objective.load_weight import Arrivals
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.metadata import first_tokens_with
from radix_tlru.sglang.scheduler.live_threshold import Prefill

if TYPE_CHECKING:
    from collections.abc import Callable

    from radix_tlru.sglang.cache.radix_cache import TailRadixCache

__all__ = ["HOOKED", "install", "prefill_of"]

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

HOOKED = (f"{_SCHEDULER}.run_batch", f"{_SCHEDULER}.process_batch_result")
"""Functions of SGLang that we stand beside."""


def install(config: Config) -> None:
    """Put the hooks in place that a cache with that configuration needs, once in a process.

    Raises:
        ConfigError: this SGLang does not take them.
    """
    if not config.is_pinned:
        without = f"{FLAGS['ttft_slo_ms']}: prefill cannot be timed"
        hook(HOOKED[0], _launched, without)
        hook(HOOKED[1], _processed, without, "around")
    elif config.weight in (LOAD, AUTO):
        hook(HOOKED[0], _launched, f"{FLAGS['median_weight']} {config.weight}: who waits cannot be counted")


def _ours(scheduler: Any) -> TailRadixCache | None:
    """The cache of a scheduler, if it is one of ours."""
    cache = scheduler.tree_cache
    return cache if hasattr(cache, "stopwatch") else None


def _launched(_result: Any, scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    cache = _ours(scheduler)
    if cache is None:
        return
    if cache.stopwatch is not None:
        cache.stopwatch.returned(batch.forward_iter, time.monotonic())
    if cache.tail.load is not None:
        _count_waiting(cache, scheduler, batch)


def _count_waiting(cache: TailRadixCache, scheduler: Any, batch: Any) -> None:
    if cache.arrivals is None:
        cache.arrivals = Arrivals(ahead=scheduler.enable_overlap and scheduler.device != "cpu")
    after_idle = scheduler.last_batch is None  # of this pass of its loop; it is set at its end
    present = left = len(scheduler.waiting_queue)
    if not _is_prefill(batch):
        cache.arrivals.launched(0, present, left, after_idle)
        return
    present += len(batch.reqs) - len(batch.decoding_reqs or ())
    left += batch.chunked_req is not None
    waited = cache.arrivals.launched(batch.extend_num_tokens, present, left, after_idle)
    cache.tail.prefilled(batch.extend_num_tokens, present - 1, waited)


def _processed(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    cache = _ours(scheduler)
    stopwatch = None if cache is None else cache.stopwatch
    if stopwatch is None or batch.launch_ts is None:
        return original(scheduler, batch, *args, **kwargs)
    prefill = prefill_of(batch)
    result = original(scheduler, batch, *args, **kwargs)
    ms = stopwatch.took(batch.forward_iter, batch.launch_ts, time.monotonic(), in_step=scheduler.device == "cpu")
    if prefill is not None:
        stopwatch.live.prefilled(prefill, ms)
    return result


def _is_prefill(batch: Any) -> bool:
    """Whether it is one, of a client's."""
    if not batch.forward_mode.is_extend_without_speculative():
        return False  # steps of decoding, which are most, get no further
    from sglang.srt.managers.utils import is_health_check_generate_req

    return not all(map(is_health_check_generate_req, batch.reqs))


def prefill_of(batch: Any) -> Prefill | None:
    """What all ranks know of a prefill batch before its result is processed; None if it is none of a client's."""
    if not _is_prefill(batch):
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
