"""`python -m eval unseen`: policies against lru, on generated traces of many kinds and with seeds of your choice.

Each policy serves each trace whole, from an empty cache. All figures are relative to LRU on the same trace. A policy
that looks only at tokens beyond ξ may raise percentiles below ξ. So the study counts traces whose p95 is more than 1 %
above that of LRU, and how many of these have a p95 beyond ξ, where requests miss the objective. It also counts traces
on which T-LRU, which learns nothing, has less TEL than etlru, in points of the gap from LRU to the hindsight optimum.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from eval.arguments import Several, add_policies, median_weight, weight_text, whole
from eval.caches.knowledge import TraceKnowledge
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.parallel import in_parallel
from eval.studies.figures import Figures, figures
from eval.terminal import show, table
from eval.traces import open_trace
from radix_tlru.config import MedianWeight

__all__ = [
    "KINDS",
    "OPTIMUM",
    "TOLERATED",
    "Arm",
    "Change",
    "Changes",
    "Kind",
    "add_arguments",
    "against_lru",
    "by_kind",
    "leads",
    "run",
    "summary",
]

TOLERATED = 0.01
"""Relative rise of p95 against LRU that does not count as one."""


class Kind(NamedTuple):
    """Traces that differ only in their seed, and the cache that serves them. Lengths in tokens."""

    trace: str  # a generator and its parameters, without the seed
    capacity: int
    threshold: int  # ξ
    page_size: int


class Arm(NamedTuple):
    """A policy and its weight w."""

    policy: str
    weight: MedianWeight

    def __str__(self) -> str:
        return f"{self.policy} w={weight_text(self.weight)}"


class Change(NamedTuple):
    """Figures of an arm on a trace, relative to LRU: 0.1 is a tenth more."""

    tel: float
    p50: float
    p95: float
    mean: float
    beyond: bool  # whether its p95 is beyond ξ

    @property
    def raised(self) -> bool:
        """Whether the p95 is above LRU's by more than is tolerated."""
        return self.p95 > TOLERATED


OPTIMUM = Arm("tail-belady-ends", 0.0)
"""Tail-Optimized Belady."""

Changes = Mapping[tuple[Kind, int], Mapping[Arm, Change]]
"""The change of each arm by kind and seed."""

KINDS = (
    Kind("synthetic:conversations=1000", 200_000, 2048, 16),
    Kind("synthetic:conversations=3000", 200_000, 1024, 16),
    Kind("synthetic:conversations=3000", 100_000, 512, 1),
    Kind("synthetic:conversations=3000", 400_000, 1024, 512),
    Kind("synthetic:conversations=3000", 400_000, 2048, 512),
    Kind("synthetic:conversations=6000,prompt_mean=500", 400_000, 2048, 64),
    Kind("synthetic:conversations=6000,prompt_mean=1000,turn_rate_sigma=1", 400_000, 4096, 16),
    Kind("synthetic:conversations=6000,turn_rate_sigma=1", 100_000, 1024, 16),
    Kind("synthetic:conversations=6000,turn_rate_sigma=1", 200_000, 1024, 256),
    Kind("synthetic:conversations=2000", 300_000, 1500, 32),
    Kind("synthetic:conversations=8000", 500_000, 2048, 16),
    Kind("synthetic:conversations=1500,prompt_mean=2000", 600_000, 8192, 64),
    Kind("synthetic:conversations=4000,prompt_mean=300", 200_000, 1024, 1),
    Kind("synthetic:conversations=5000,turn_rate_sigma=0.5", 150_000, 768, 16),
    Kind("synthetic:conversations=3000,turn_rate_sigma=2", 100_000, 2048, 128),
    Kind("agents:runs=3000,arrival_span_s=1200", 500_000, 2048, 64),
    Kind("agents:runs=3000,arrival_span_s=1200", 1_000_000, 4096, 16),
    Kind("agents:runs=3000,arrival_span_s=3600,templates=20", 500_000, 2048, 64),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; policies and weights span a grid."""
    add_policies(parser, ("tlru", "etlru"), ("tlru", "etlru"))
    add = parser.add_argument
    add(
        "--median-weight",
        action=Several,
        type=median_weight,
        default=[None],
        metavar="W",
        help="w (default: own)",
    )
    add("--seeds", action=Several, type=whole(0), default=[0, 1, 2], metavar="N", help="of each kind (default: 0 1 2)")
    add("--kinds", type=whole(1, len(KINDS)), default=len(KINDS), metavar="N", help="the first N (all %(default)s)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="traces side by side (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    arms = [Arm(*each) for each in itertools.product(args.policy, args.median_weight)]
    traces = list(itertools.product(KINDS[: args.kinds], args.seeds))
    calls = [(kind, seed, arms) for kind, seed in traces]
    changes = dict(zip(traces, in_parallel(against_lru, calls, jobs=args.jobs, title="traces"), strict=True))
    show(summary(changes, arms), by_kind(changes, arms))
    for weight in args.median_weight if {"tlru", "etlru"} <= set(args.policy) else ():
        show(leads(changes, weight))
    return 0


def against_lru(kind: Kind, seed: int, arms: Sequence[Arm]) -> dict[Arm, Change]:
    """The change of each arm on one trace; that of the optimum too, if T-LRU has less TEL than etlru."""
    requests = open_trace(f"{kind.trace},seed={seed}").requests

    def serve(policy: str, weight: MedianWeight) -> Figures:
        cache = simulated_cache(
            policy,
            kind.capacity,
            threshold=kind.threshold,
            next_prompt_estimate=None,
            median_weight=weight,
            page_size=kind.page_size,
            knowledge=TraceKnowledge(requests) if policy == OPTIMUM.policy else None,
        )
        return figures(requests, simulate(cache, requests), kind.threshold)

    lru = serve("lru", 0.0)

    def change(arm: Arm) -> Change:
        found = serve(*arm)
        relative = found.against(lru)
        return Change(relative.tel, relative.p50, relative.p95, relative.mean, beyond=found.p95 > kind.threshold)

    changes = {arm: change(arm) for arm in arms}
    if any(_lead(changes, arm.weight) > 0 for arm in arms):
        changes[OPTIMUM] = change(OPTIMUM)
    return changes


def _lead(changes: Mapping[Arm, Change], weight: MedianWeight) -> float:
    """By how much the TEL of T-LRU is below that of etlru, relative to LRU's; 0 if not both were served."""
    tlru, etlru = (changes.get(Arm(policy, weight)) for policy in ("tlru", "etlru"))
    return etlru.tel - tlru.tel if tlru and etlru else 0.0


def leads(changes: Changes, weight: MedianWeight) -> str:
    """A line: on how many traces T-LRU is ahead of etlru with the same weight, and by how much at most."""
    ahead = {
        trace: (100 * lead, -100 * lead / of_trace[OPTIMUM].tel if of_trace[OPTIMUM].tel < 0 else math.inf)
        for trace, of_trace in changes.items()
        if (lead := _lead(of_trace, weight)) > 0
    }
    count = f"{Arm('etlru', weight)}: more TEL than tlru with the same weight on {len(ahead)} of {len(changes)} traces"
    if not ahead:
        return count
    most, points = (max(each) for each in zip(*ahead.values(), strict=True))
    return f"{count}; at most {most:.1f} % of lru's more, {points:.1f} points of the gap to {OPTIMUM.policy}"


def summary(changes: Changes, arms: Sequence[Arm]) -> Table:
    """An arm a row, over all traces."""
    counts = (f"p95 above lru's by > {TOLERATED:.0%}", "… and beyond ξ")
    result = table(
        f"{len(changes)} generated traces, whole; means over traces, against lru",
        ("", "TEL", "p50", "mean", "p95", "worst p95", *counts),
    )
    for arm in arms:
        of_arm = [each[arm] for each in changes.values()]
        tel, p50, p95, mean, _ = np.mean(of_arm, axis=0).tolist()
        worst = max(each.p95 for each in of_arm)
        raised = [each.beyond for each in of_arm if each.raised]
        shares = (f"{change:+.1%}" for change in (tel, p50, mean, p95, worst))
        result.add_row(str(arm), *shares, f"{len(raised)} of {len(changes)}", str(sum(raised)))
    return result


def by_kind(changes: Changes, arms: Sequence[Arm]) -> Table:
    """A kind a row: the mean TEL and the worst p95 of each arm over the seeds."""
    result = table("TEL, mean over seeds; p95, worst of them", ("", "capacity", "ξ", "page", *map(str, arms)))
    for kind in dict.fromkeys(kind for kind, _ in changes):
        of_kind = [each for (other, _), each in changes.items() if other == kind]
        cells = (
            f"{np.mean([each[arm].tel for each in of_kind]):+.1%} {max(each[arm].p95 for each in of_kind):+.1%}"
            for arm in arms
        )
        result.add_row(kind.trace, f"{kind.capacity:,}", f"{kind.threshold:,}", str(kind.page_size), *cells)
    return result
