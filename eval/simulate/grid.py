"""Which cells the flags mean: every combination of their values, and what holds where a value is not given."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence

from eval.arguments import check_page_sizes
from eval.caches.baselines import BASELINES
from eval.caches.policies import POLICIES
from eval.caches.real import REAL_CACHES
from eval.caches.simulator import Cache
from eval.simulate.cells import Cell
from radix_tlru import Config
from radix_tlru.config import DEFAULT_NEXT_PROMPT

NAMED_CACHES: dict[str, Callable[..., Cache]] = {**BASELINES, **REAL_CACHES}
"""Caches that are no policy of the simulator: those of other engines, and the real caches of SGLang."""

EVICTIONS = (*POLICIES, *BASELINES)
"""What can be simulated by name: every policy of the simulator, and every rule of another engine."""

LEARNING = ("tlru", "etlru", *(name for name in REAL_CACHES if name.startswith("real-")))
"""Policies of radix-tlru, which learn Q̂ where it is not given."""

WEIGHTED = (*LEARNING, "etlru-given", "end-aware", "length-aware")
"""Policies that depend on the weight w."""

ESTIMATED = (
    *WEIGHTED,
    *("tail-belady", "tail-belady-ends"),
    *(name for name in REAL_CACHES if name.startswith("sglang-tlru")),
)
"""Policies that depend on the estimate Q̂."""

REFERENCES = ("lru", "tail-belady")
"""The gap is from the TEL of the first to that of the second. The second is an optimum for one replica only."""


def grid(trace: str, args: argparse.Namespace) -> list[Cell]:
    """Every combination of the flags, checked before the first is run.

    Raises:
        ValueError, ConfigError: a combination cannot be run.
    """
    check_page_sizes(args.page_size, args.capacity)
    check_weights(args.policy, args.median_weight)
    fleets = [(n, routing if n > 1 else None) for n in args.replicas for routing in args.routing]
    axes = (args.policy, args.capacity, args.threshold, args.next_prompt_estimate, args.median_weight, args.page_size)
    cells = []
    for policy, capacity, threshold, estimate, weight, page, fleet in itertools.product(*axes, fleets):
        Config(threshold=threshold, next_prompt_estimate=estimate, median_weight=weight)  # raises ConfigError
        if policy not in ESTIMATED:  # one cell, whatever Q̂ is
            estimate = args.next_prompt_estimate[0]
        estimate, weight = settings_in_force(policy, estimate, weight)
        if policy not in WEIGHTED:
            weight = 0.0
        if args.optional_caching and policy in NAMED_CACHES:
            raise ValueError(f"--optional-caching: {policy} caches every context")
        sizes = (capacity, threshold, estimate, weight, page)
        cells.append(Cell(trace, policy, *sizes, not args.optional_caching, *fleet))
    return list(dict.fromkeys(cells))


def check_weights(policies: Sequence[str], weights: Sequence[float | None]) -> None:
    """Refuse a weight that none of the policies depends on.

    Raises:
        ValueError: names both flags.
    """
    given = " ".join(f"{weight:g}" for weight in weights if weight is not None)
    if given and not set(policies) & set(WEIGHTED):
        raise ValueError(f"--median-weight {given}: has no effect on --policy {' '.join(policies)}; leave it out")


def settings_in_force(policy: str, estimate: int | None, weight: float | None) -> tuple[int | None, float | None]:
    """Q̂ and w in force where these were given (None: not given).

    tlru and etlru of radix-tlru learn Q̂. tlru has w = 0 as on a server, etlru chooses w itself (None). Any other policy
    has Q̂ = 200 and w = 0.
    """
    if policy not in LEARNING:
        return DEFAULT_NEXT_PROMPT if estimate is None else estimate, 0.0 if weight is None else weight
    return estimate, 0.0 if weight is None and "etlru" not in policy else weight


def is_own_weight(policy: str, weight: float | None) -> bool:
    """Whether w is what the policy has where none is given: chosen by itself (None) for etlru, 0 for others."""
    _, own = settings_in_force(policy, None, None)
    return weight is None or weight == own
