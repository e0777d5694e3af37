"""Several caches behind a router, as one cache: each request goes to one replica and finds what that one holds.

============  =========================================================================================================
name          where a request goes
============  =========================================================================================================
round-robin   to the replicas in turn
least-loaded  to the one with the fewest requests in flight; of several, to the one that was sent the fewest so far
prefix-aware  as SGLang's own router decides under ``--policy cache_aware``: :class:`~.prefix_aware.PrefixAware`
============  =========================================================================================================

A trace has only arrivals. :class:`Service` says how long a request stays in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from eval.caches.prefix_aware import PrefixAware
from eval.caches.simulator import Cache
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Service:
    """How long a request is in flight: β + α·uncached + TPOT·output, from its arrival.

    Requests do not slow each other down and do not wait for each other, so this is a lower bound for a busy machine.
    The defaults are assumed, not measured: about a 7B model on an A100 (2,048 uncached tokens in 200 ms; 40 tokens a
    second for each user).
    """

    alpha_ms: float = 200 / 2048  # for each uncached token of the prompt
    beta_ms: float = 0.0  # for each request
    tpot_ms: float = 25.0  # for each token of the answer

    def seconds(self, uncached: int, output: int) -> float:
        """For ``uncached`` tokens of prompt and ``output`` tokens of answer."""
        return (self.beta_ms + self.alpha_ms * uncached + self.tpot_ms * output) / 1000


class Router(Protocol):
    """Decides where requests go."""

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        """Index of the replica for the next request, given how many requests each has in flight."""


class RoundRobin:
    """To the replicas in turn."""

    def __init__(self) -> None:
        self._sent = 0

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        """Index of the replica whose turn it is."""
        self._sent += 1
        return (self._sent - 1) % len(in_flight)


class LeastLoaded:
    """To the replica with the fewest requests in flight; of several, to the one that was sent the fewest so far."""

    def __init__(self) -> None:
        self._sent: Counter[int] = Counter()

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        """Index of the least loaded replica."""
        chosen = min(range(len(in_flight)), key=lambda replica: (in_flight[replica], self._sent[replica]))
        self._sent[chosen] += 1
        return chosen


ROUTINGS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}
"""Routers by name."""


class RoutedCache:
    """Replicas of a cache behind a router, as one cache.

    Args:
        build: makes the cache of one replica. It gets a list that is filled with the numbers of the requests that the
            replica is sent, from 0 as in the trace; knowledge of the trace goes by these numbers.
        replicas: how many.
        router: decides where a request goes.
        service: how long it stays in flight.

    Raises:
        ValueError: fewer than one replica.
    """

    def __init__(
        self,
        build: Callable[[Sequence[int]], Cache],
        replicas: int,
        router: Router,
        service: Service | None = None,
    ) -> None:
        if replicas < 1:
            raise ValueError(f"--replicas {replicas}: must be 1 or more")
        self.sent: list[list[int]] = [[] for _ in range(replicas)]  # numbers of the requests, by replica
        self.in_flight = [0] * replicas  # requests
        self.replicas = [build(numbers) for numbers in self.sent]
        self._router = router
        self._service = service or Service()
        self._done: list[tuple[float, int]] = []  # a heap of (when, on which replica)
        self._requests = 0

    @property
    def evicted(self) -> Counter[str]:
        """Evicted tokens by phase, of all replicas; empty where the caches do not count them."""
        total = Counter[str]()
        for cache in self.replicas:
            total.update(getattr(cache, "evicted", {}))
        return total

    def request(self, request: Request) -> int:
        """Serve a request on one of the replicas; returns the tokens of its prompt that were cached there."""
        while self._done and self._done[0][0] <= request.arrival_s:
            _, replica = heappop(self._done)
            self.in_flight[replica] -= 1
        replica = self._router.route(request, self.in_flight)
        self.sent[replica].append(self._requests)  # before the replica serves it, which asks for its number
        self._requests += 1
        cached = self.replicas[replica].request(request)
        stay = self._service.seconds(request.prompt_tokens - cached, request.output_tokens)
        self.in_flight[replica] += 1
        heappush(self._done, (request.arrival_s + stay, replica))
        return cached
