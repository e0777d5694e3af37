"""The scheduler's batches, shown to what moves ξ and to what learns: hooks, put in place by :func:`install`.

Hooks after ``Scheduler.run_batch`` and around ``Scheduler.process_batch_result`` measure how long a prefill took.
SGLang hands a finished request to the cache before it sends the last token of the answer. That token must not wait, so
the turn is recorded when ``process_batch_result`` returns.

Learning from turns and reporting metrics can wait longer. They are done slice by slice when there is no batch to run.
All ranks come to ``Scheduler.on_idle`` at the same steps, as they form the same batches. Stages of a pipeline do not,
and learn after batches alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from radix_tlru.config import FLAGS, Config
from radix_tlru.objective.calibration import PrefillBatch
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.requests.metadata import first_tokens_of
from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold
from radix_tlru.sglang.support import resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.server_args import ServerArgs

__all__ = ["HOOKED", "batch_launched", "batch_processed", "install", "prefill_of", "server_idle", "sleep_wanted"]

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

HOOKED = tuple(
    f"{_SCHEDULER}.{name}" for name in ("run_batch", "process_batch_result", "on_idle", "maybe_sleep_on_idle")
)
"""Functions of SGLang that are hooked."""

_IN_STEP = "cpu"
"""The device that computes in step with the host, as a scheduler names it."""


def install(config: Config, server_args: ServerArgs) -> None:
    """Put the hooks in place that a cache with that configuration needs on such a server, once in a process.

    Raises:
        ConfigError: this SGLang does not take them.
    """
    if not config.is_pinned:
        without = f"{FLAGS['ttft_slo_ms']}: prefill cannot be timed"
        if resolved(server_args).device == _IN_STEP:
            hook(HOOKED[0], batch_launched, without)
        hook(HOOKED[1], batch_processed, without, "around")
    elif config.policy != "lru":
        hook(HOOKED[1], batch_processed, f"{FLAGS['policy']} {config.policy}: answers would wait", "around")
    without = f"{FLAGS['policy']} {config.policy}: what waits for an idle server"
    hook(HOOKED[2], server_idle, f"{without} is not done", "around")
    hook(HOOKED[3], sleep_wanted, f"{without} is late", "around")


def _give_up(scheduler: Any, error: Exception) -> None:
    """Look at no more prefills. What failed, all ranks do alike: to read a batch, or to agree. So it failed on all."""
    cache = scheduler.tree_cache
    cache.live_threshold = None
    cache.tail.breaker.trip("to look at prefills", error)


def batch_launched(_result: Any, scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``run_batch``: a prefill is done where the device computes in step with the host."""
    threshold: LiveThreshold | None = getattr(scheduler.tree_cache, "live_threshold", None)
    if threshold is None or not threshold.measures:
        return
    try:
        threshold.stopwatch.run_returned(batch.forward_iter, time.monotonic())
    except Exception as error:
        threshold.stop_measuring(error)


def batch_processed(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``process_batch_result``: turns that ended in it are recorded, and a prefill is timed.

    Every token of every answer waits for this. So a step in which no request ends is to cost next to nothing, and
    ``tail.step``, a generator, costs too much.
    """
    cache = scheduler.tree_cache
    tail = getattr(cache, "tail", None)
    if tail is None:
        return original(scheduler, batch, *args, **kwargs)
    cache.is_known_idle = False
    tail.begin_step()
    try:
        threshold = cache.live_threshold
        if threshold is None or batch.launch_ts is None:
            result = original(scheduler, batch, *args, **kwargs)
        else:
            result = _prefill_watched(threshold, original, scheduler, batch, *args, **kwargs)
    finally:
        tail.end_step()
    cache.report_due()
    return result


def server_idle(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``on_idle``, which may sleep: there is no batch to run.

    SGLang checks its pools then and publishes its load, which takes as long as several steps of ours. Once after each
    batch is enough, so it is skipped between our steps.
    """
    cache = scheduler.tree_cache
    if getattr(cache, "tail", None) is not None:
        cache.use_idle_time()
        if cache.has_work and cache.is_known_idle:
            return None
        cache.is_known_idle = True
    return original(scheduler, *args, **kwargs)


def sleep_wanted(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``maybe_sleep_on_idle``: not before what waits is done."""
    cache = scheduler.tree_cache
    waits = getattr(cache, "tail", None) is not None and cache.has_work
    return None if waits else original(scheduler, *args, **kwargs)


def _prefill_watched(
    threshold: LiveThreshold, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Have a batch processed, and time it if it was a prefill."""
    try:
        prefill = prefill_of(batch)
    except Exception as error:
        _give_up(scheduler, error)
        return original(scheduler, batch, *args, **kwargs)
    result = original(scheduler, batch, *args, **kwargs)
    if prefill is None:
        threshold.stopwatch.done = time.monotonic()
        return result
    ms = _ms_of(threshold, scheduler, batch)
    try:
        threshold.count_batch(prefill, ms)
    except Exception as error:
        _give_up(scheduler, error)
    return result


def _ms_of(threshold: LiveThreshold, scheduler: Any, batch: Any) -> float | None:
    """How long a batch took that is done now, ms; None if that cannot be told."""
    if not threshold.measures:
        return None
    try:
        now, in_step = time.monotonic(), scheduler.device == _IN_STEP
        return threshold.stopwatch.batch_ms(batch.forward_iter, batch.launch_ts, now, in_step=in_step)
    except Exception as error:
        threshold.stop_measuring(error)
        return None


def _is_prefill(batch: Any) -> bool:
    """Whether it prefills prompts of clients."""
    if not batch.forward_mode.is_extend_without_speculative():
        return False  # steps of decoding, which are most, get no further
    from radix_tlru.sglang.requests.turns import is_health_check

    return not all(map(is_health_check, batch.reqs))


def prefill_of(batch: Any) -> PrefillBatch | None:
    """What all ranks know of a prefill batch before its result is processed; None if it prefills nothing of clients."""
    if not _is_prefill(batch):
        return None
    decoding = {id(request) for request in batch.decoding_reqs or ()}
    prompts = [request for request in batch.reqs if id(request) not in decoding]
    if not prompts:  # with DP attention a step of decoding looks like a prefill, while another replica has one
        return None
    unfinished = [request for request in prompts if request.inflight_middle_chunks > 0]
    whole = [
        request
        for request in prompts
        if request.inflight_middle_chunks <= 0 and not request.retracted_stain and not request.finished()
    ]
    return PrefillBatch(
        requests=tuple(str(request.rid) for request in prompts),
        unfinished=str(unfinished[0].rid) if unfinished else None,
        tokens=batch.extend_num_tokens - (len(batch.reqs) - len(prompts)),  # one of each that decodes is in it
        first_tokens=tuple(token for request in whole for token in first_tokens_of(request)),
    )
