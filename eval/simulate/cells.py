"""A cell of a simulation: one policy at one size under one objective on one trace, and its figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.traces.request import Request
from radix_tlru.config import DEFAULT_NEXT_PROMPT


@dataclass(frozen=True, slots=True)
class Cell:
    """What is simulated. Lengths in tokens."""

    trace: str
    policy: str
    capacity: int  # of each replica
    threshold: int  # ξ
    next_prompt_estimate: int | None  # Q̂; None: learned
    median_weight: float | None  # w; None: etlru chooses it
    page_size: int
    forced: bool = True  # every context is cached as it is served; else the paper's optional caching
    replicas: int = 1  # caches behind a router
    routing: str | None = None  # how the router chooses; None: there is one cache

    @property
    def name(self) -> str:
        """A name for files. It shows the main settings and has a hash of all of them."""
        settings = asdict(self)
        routed = f"-n{self.replicas}-{self.routing}" if self.routing else ""
        if not routed:  # the hash of a single cache is of the fields that it had before there were replicas
            del settings["replicas"], settings["routing"]
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
        return f"{self.policy}-c{self.capacity}-x{self.threshold}-p{self.page_size}{routed}-{digest}"

    def under(self, policy: str) -> Cell:
        """The same cell under a reference policy, with the default Q̂ where none is pinned, and w = 0."""
        estimate = DEFAULT_NEXT_PROMPT if self.next_prompt_estimate is None else self.next_prompt_estimate
        return replace(self, policy=policy, next_prompt_estimate=estimate, median_weight=0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a cell. Percentiles and mean are of the uncached prompt tokens of a request."""

    requests: int
    hit_ratio: float  # cached share of all prompt tokens
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    tel: int  # tokens over ξ, summed over requests
    violations: int  # requests over ξ
    evicted: dict[str, int]  # tokens by phase; empty where the cache does not count them
    seconds: float  # of simulation

    def row(self, cell: Cell, gap_closed: float | None) -> dict[str, Any]:
        """The line of ``cells.jsonl``."""
        figures = asdict(self)
        seconds = figures.pop("seconds")
        return {**asdict(cell), **figures, "gap_closed": gap_closed, "cell": cell.name, "seconds": seconds}


def uncached_tokens(requests: Sequence[Request], cached: Sequence[int]) -> NDArray[np.int64]:
    """Prompt tokens of each request that had to be prefilled, from those that it found cached."""
    prompts = np.fromiter((request.prompt_tokens for request in requests), dtype=np.int64, count=len(requests))
    return prompts - np.asarray(cached, dtype=np.int64)


def tail_excess_latency(uncached: NDArray[np.int64], threshold: int) -> int:
    """TEL of requests with so many uncached tokens each: those beyond ξ, summed."""
    return int(np.maximum(uncached - threshold, 0).sum())


def outcome(
    requests: Sequence[Request],
    cached: Sequence[int],
    threshold: int,
    evicted: Mapping[str, int] | None = None,
    seconds: float = 0.0,
) -> Outcome:
    """The figures of a run.

    Args:
        cached: tokens that each request found cached.
        threshold: ξ, tokens.
        evicted: tokens by phase, where they were counted.
        seconds: that the run took.
    """
    uncached = uncached_tokens(requests, cached)
    total = int(uncached.sum()) + int(np.sum(cached, dtype=np.int64))
    p50, p90, p95, p99 = (float(value) for value in np.percentile(uncached, [50, 90, 95, 99]))
    return Outcome(
        requests=len(requests),
        hit_ratio=round(1 - int(uncached.sum()) / total, 6) if total else 0.0,
        mean=round(float(uncached.mean()), 2),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        tel=tail_excess_latency(uncached, threshold),
        violations=int((uncached > threshold).sum()),
        evicted=dict(sorted((evicted or {}).items())),
        seconds=round(seconds, 3),
    )
