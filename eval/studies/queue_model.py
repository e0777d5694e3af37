"""Requests that wait for each other: one server that prefills one request after the other, in order of arrival.

At every 32nd prefill, what is cached of the prompts in the queue counts as used. A scheduler does the same (SGLang
0.5.23, ``schedule_policy.py``, ``_touch_waiting_prefixes``).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eval.caches.simulator import Cache
from eval.simulate.timing import Timing
from eval.traces.request import Request

REFRESH, MOST_REFRESHED = 32, 128
"""Prefills between two refreshes of queued prompts, and requests at the head of the queue that one covers (SGLang)."""


@runtime_checkable
class QueueAware(Cache, Protocol):
    """A cache that is told of the queue."""

    def touch(self, request: Request) -> None:
        """Mark what is cached of a queued request's prompt as used."""


class Queued(NamedTuple):
    """A trace that was served; one value a request, in its order."""

    uncached: NDArray[np.int64]  # tokens
    ttft_s: NDArray[np.float64]
    busy: float  # share of the time from the first arrival to the last that prefills take


def serve(cache: QueueAware, requests: Sequence[Request], line: Timing) -> Queued:
    """Serve a trace first come, first served, one request at a time."""
    queue: deque[Request] = deque()
    coming = deque(requests)
    now, prefills = 0.0, 0
    uncached: list[int] = []
    ttft: list[float] = []
    while queue or coming:
        if not queue and coming[0].arrival_s > now:
            now = coming[0].arrival_s
        while coming and coming[0].arrival_s <= now:
            queue.append(coming.popleft())
        refresh(cache, prefills, queue)
        prefills += 1
        request = queue.popleft()
        uncached.append(request.prompt_tokens - cache.request(request))
        now += line.ms(uncached[-1]) / 1000.0
        ttft.append(now - request.arrival_s)
    work_s = sum(line.ms(tokens) / 1000.0 for tokens in uncached)
    return Queued(np.array(uncached), np.array(ttft), work_s / (span_s(requests) or math.inf))


def refresh(cache: QueueAware, prefills: int, queue: Iterable[Request]) -> None:
    """Mark what is cached of the prompts at the head of the queue as used, if it is time: before each 32nd prefill."""
    if prefills % REFRESH == 0:
        for request in reversed(list(itertools.islice(queue, MOST_REFRESHED))):  # the head of the queue last
            cache.touch(request)


def span_s(requests: Sequence[Request]) -> float:
    """Seconds from the first arrival to the last."""
    return requests[-1].arrival_s - requests[0].arrival_s


def line_for(load: float, beta_ms: float, requests: Sequence[Request], uncached: int) -> Timing:
    """The server that ``uncached`` tokens in all keep busy for a share ``load`` of the time.

    Raises:
        ValueError: β alone takes more time.
    """
    left_ms = 1000.0 * load * span_s(requests) - beta_ms * len(requests)
    if left_ms <= 0:
        raise ValueError(f"--beta {beta_ms:g}: {len(requests):,} requests are more than --load {load:g} by that alone")
    return Timing(left_ms / max(uncached, 1), beta_ms, f"lru prefills for {load:g} of the time")
