"""What is simulated with which settings: every combination of the flags, and what is taken where one is not given."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

from eval.caches.baselines import BASELINES as OTHERS
from eval.caches.real import REAL_CACHES
from eval.caches.simulator import Cache
from eval.simulate.cells import Cell
from radix_tlru import Config
from radix_tlru.config import DEFAULT_NEXT_PROMPT, MedianWeight, PolicyName

__all__ = ["BASELINES", "ESTIMATED", "OURS", "REFERENCES", "WEIGHTED", "grid", "own_settings"]

BASELINES: dict[str, Callable[..., Cache]] = {**OTHERS, **REAL_CACHES}
"""What others ship, and the real cache of SGLang under its policies and ours."""

OURS = ("tlru", "etlru", *(name for name in REAL_CACHES if name.startswith("real-")))
"""Policies that a server of ours has, which learn Q̂ where it is not given."""

WEIGHTED = (*OURS, "etlru-given", "end-aware", "length-aware")
"""Policies that a weight w makes a difference to."""

ESTIMATED = (
    *WEIGHTED,
    *("tail-belady", "tail-belady-ends"),
    *(name for name in REAL_CACHES if name.startswith("sglang-tlru")),
)
"""Policies that an estimate Q̂ makes a difference to."""

REFERENCES = ("lru", "tail-belady")
"""TEL of the first to TEL of the second is the gap. The second is an optimum for one replica only."""


def grid(trace: str, args: argparse.Namespace) -> list[Cell]:
    """Every combination of the flags, validated before the first is run."""
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: must be 1 or more")
    for replicas in args.replicas:
        if replicas < 1:
            raise ValueError(f"--replicas {replicas}: must be 1 or more")
    fleets = [(n, routing if n > 1 else None) for n in args.replicas for routing in args.routing]
    axes = (args.policy, args.capacity, args.threshold, args.next_prompt_estimate, args.median_weight, args.page_size)
    cells = []
    for policy, capacity, threshold, estimate, weight, page, fleet in itertools.product(*axes, fleets):
        if page < 1:
            raise ValueError(f"--page-size {page}: must be 1 or more")
        if capacity < page:
            raise ValueError(f"--capacity {capacity}: must be at least one page of {page} tokens")
        Config(threshold=threshold, next_prompt_estimate=estimate, median_weight=weight)
        if policy not in ESTIMATED:  # one cell, whatever Q̂ is
            estimate = args.next_prompt_estimate[0]
        estimate, weight = own_settings(policy, estimate, weight)
        if policy not in WEIGHTED:
            weight = 0.0
        elif isinstance(weight, str) and policy not in OURS:
            raise ValueError(f"--median-weight {weight}: {policy} does not learn; only tlru and etlru do")
        if args.optional_caching and policy in BASELINES:
            raise ValueError(f"--optional-caching: {policy} caches every context")
        sizes = (capacity, threshold, estimate, weight, page)
        cells.append(Cell(trace, policy, *sizes, not args.optional_caching, *fleet))
    return list(dict.fromkeys(cells))


def own_settings(policy: str, estimate: int | None, weight: MedianWeight | None) -> tuple[int | None, MedianWeight]:
    """Q̂ and w of a server with that policy that was told these (None: not told); w is 0 of the policies of others."""
    if policy not in OURS:
        return DEFAULT_NEXT_PROMPT if estimate is None else estimate, 0.0 if weight is None else weight
    eviction: PolicyName = "etlru" if "etlru" in policy else "tlru"
    return estimate, Config(eviction, next_prompt_estimate=estimate).weight if weight is None else weight
