"""Running cells: the cache that a cell means, the trace through it, and many cells side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from eval.caches.knowledge import PartOfTrace, TraceKnowledge
from eval.caches.policies import simulated_cache
from eval.caches.routing import ROUTINGS, RoutedCache
from eval.caches.simulator import Cache
from eval.parallel import in_parallel
from eval.simulate.cells import Cell, Outcome, outcome
from eval.simulate.grid import NAMED_CACHES, WEIGHTED
from eval.simulate.per_request import requests_file, write_requests
from eval.terminal import track
from eval.trace_arguments import TraceSource
from eval.traces import Trace


class Done(NamedTuple):
    """A cell that was run."""

    cell: Cell
    outcome: Outcome


class Served(NamedTuple):
    """A trace that went through the cache of a cell."""

    cached: list[int]  # tokens that each request found
    evicted: Mapping[str, int]  # tokens by phase; empty where the cache does not count them
    evicted_after: list[tuple[int, int]]  # (TEL-safe, LRU) after each request; empty unless asked for
    seconds: float


@lru_cache(maxsize=1)
def trace_of(source: TraceSource) -> Trace:
    """The trace, read once in each process."""
    return source.read()


@lru_cache(maxsize=1)
def knowledge_of(source: TraceSource) -> TraceKnowledge:
    """What policies may know of it, worked out once in each process."""
    return TraceKnowledge(trace_of(source).requests)


def cache_for(cell: Cell, knowledge: TraceKnowledge) -> Cache:
    """An empty cache as the cell says, or all of its replicas behind their router."""
    if cell.routing is None:
        return _replica(cell, knowledge)
    router = ROUTINGS[cell.routing]()
    return RoutedCache(lambda numbers: _replica(cell, PartOfTrace(knowledge, numbers)), cell.replicas, router)


def _replica(cell: Cell, knowledge: TraceKnowledge) -> Cache:
    if cell.policy in NAMED_CACHES:
        assert cell.forced, f"{cell.policy} caches every context"
        weight = (cell.median_weight,) if cell.policy in WEIGHTED else ()
        sizes = (cell.capacity, cell.threshold, cell.next_prompt_estimate, cell.page_size)
        return NAMED_CACHES[cell.policy](*sizes, *weight)
    return simulated_cache(
        cell.policy,
        cell.capacity,
        threshold=cell.threshold,
        next_prompt_estimate=cell.next_prompt_estimate,
        median_weight=cell.median_weight,
        page_size=cell.page_size,
        knowledge=knowledge,
        prompts=knowledge.next_prompts if cell.policy == "etlru-given" else None,
        death_rate=knowledge.death_rate if cell.policy == "etlru-given" else 0.0,
        forced=cell.forced,
    )


def serve(cell: Cell, source: TraceSource, *, by_request: bool = False) -> Served:
    """The whole trace through an empty cache as the cell says.

    Args:
        by_request: also count what was evicted after each request.
    """
    requests = trace_of(source).requests
    cache = cache_for(cell, knowledge_of(source))
    phases: list[tuple[int, int]] = []
    cached = []
    start = time.perf_counter()
    for request in requests:
        cached.append(cache.request(request))
        if by_request:
            evicted = _evicted(cache)
            phases.append((evicted.get("tel_safe", 0), evicted.get("lru", 0)))
    return Served(cached, dict(_evicted(cache)), phases, time.perf_counter() - start)


def evaluate(cell: Cell, source: TraceSource, folder: Path | None = None) -> Done:
    """Run one cell. With a folder, its requests are also written there."""
    requests = trace_of(source).requests
    served = serve(cell, source, by_request=folder is not None)
    if folder is not None:
        write_requests(requests_file(folder, cell.name), requests, served.cached, served.evicted_after)
    return Done(cell, outcome(requests, served.cached, cell.threshold, served.evicted, served.seconds))


def _evicted(cache: Cache) -> Mapping[str, int]:
    """Tokens by phase so far; empty where the cache does not count them."""
    evicted: Mapping[str, int] = getattr(cache, "evicted", {})
    return evicted


def evaluate_all(
    cells: Sequence[Cell],
    source: TraceSource,
    *,
    folder: Path | None,
    jobs: int,
    ray: str | None,
    title: str,
) -> Iterator[Done]:
    """Run cells, with progress: here, in ``jobs`` processes, or on a Ray cluster. Each is yielded when it is done.

    Args:
        folder: where the requests of each cell are written; None: nowhere.
        ray: address of the cluster; ``local`` starts one.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at that address.
    """
    if ray is None:
        calls = [(cell, source, folder) for cell in cells]
        yield from in_parallel(evaluate, calls, jobs=jobs, title=title, ordered=False)
        return
    yield from track(_on_ray(cells, source, folder, jobs, ray), title, len(cells))


def _on_ray(cells: Sequence[Cell], source: TraceSource, folder: Path | None, jobs: int, address: str) -> Iterator[Done]:
    try:
        import joblib
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise ValueError(f"--ray {address}: needs the package ray: in a checkout, pip install '.[ray]'") from None
    try:
        ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    except (ValueError, ConnectionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"--ray {address or repr(address)}: must be 'local' or HOST:PORT of a cluster ({reason})"
        ) from None
    register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=jobs):
        # Joblib's Ray backend returns nothing before all is done: batches, so that an interruption loses little.
        for start in range(0, len(cells), 4 * jobs):
            batch = cells[start : start + 4 * jobs]
            yield from joblib.Parallel()(joblib.delayed(evaluate)(cell, source, folder) for cell in batch)
