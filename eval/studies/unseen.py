"""`python -m eval unseen`: what policies promise, on generated traces of many kinds, with seeds that nobody looked at.

Each policy serves each trace whole, from an empty cache. All figures are relative to LRU on the same trace. A policy
that looks only at tokens beyond ξ may raise percentiles below ξ. So the study counts traces whose p95 is more than 1 %
above that of LRU, and how many of these have a p95 beyond ξ, where requests miss the objective. It also counts traces
on which T-LRU, which learns nothing, has less TEL than etlru, in points of the gap from LRU to the hindsight optimum.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import joblib
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.caches.policies import TraceKnowledge, simulated_cache
from eval.caches.simulator import simulate
from eval.command import median_weight, weight_text
from eval.render.table import console
from eval.studies.later import Figures, figures
from eval.traces import open_trace
from radix_tlru import Config
from radix_tlru.config import LOAD, MedianWeight

__all__ = ["KINDS", "TOLERATED", "Arm", "Change", "Kind", "Paid", "against_lru", "leads"]

TOLERATED = 0.01
"""Of lru's p95, that a policy which holds it may be above."""


class Kind(NamedTuple):
    """Traces that differ in their seed alone, and the cache that serves them."""

    trace: str  # a generator and its parameters, but for the seed
    capacity: int  # tokens
    threshold: int  # ξ, tokens
    page_size: int  # tokens


class Arm(NamedTuple):
    """A policy and its weight w."""

    policy: str
    weight: MedianWeight

    def __str__(self) -> str:
        return f"{self.policy} w={weight_text(self.weight)}"


class Change(NamedTuple):
    """What an arm pays on a trace, in parts of what LRU pays."""

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

Paid = Mapping[tuple[Kind, int], Mapping[Arm, Change]]
"""What each arm pays, relative to LRU, by kind and seed."""

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
    add = parser.add_argument
    add("--policy", nargs="+", default=("tlru", "etlru"), choices=("tlru", "etlru"), metavar="P", help="of tlru, etlru")
    add("--median-weight", nargs="+", type=median_weight, default=[0.0, LOAD], metavar="W")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="a trace of each kind for each (0 1 2)")
    add("--kinds", type=int, default=len(KINDS), metavar="N", help="the first so many (all %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="traces side by side (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the tables; 2 if something asked for cannot be done."""
    try:
        if not 1 <= args.kinds <= len(KINDS):
            raise ValueError(f"--kinds {args.kinds}: must be 1 to {len(KINDS)}")
        if args.jobs < 1:
            raise ValueError(f"--jobs {args.jobs}: must be 1 or more")
        if min(args.seeds) < 0:
            raise ValueError(f"--seeds {min(args.seeds)}: must be 0 or more")
        for weight in args.median_weight:
            Config(median_weight=weight)  # raises ConfigError for what no policy takes
    except ValueError as error:
        print(f"eval unseen: {error}", file=sys.stderr)
        return 2
    arms = [Arm(*each) for each in itertools.product(args.policy, args.median_weight)]
    traces = list(itertools.product(KINDS[: args.kinds], args.seeds))
    work = (joblib.delayed(against_lru)(kind, seed, arms) for kind, seed in traces)
    found = joblib.Parallel(n_jobs=args.jobs, return_as="generator")(work)
    progress = track(found, "traces", total=len(traces), console=Console(stderr=True), transient=True)
    paid = dict(zip(traces, progress, strict=True))
    console().print(summary(paid, arms))
    console().print(by_kind(paid, arms))
    for weight in args.median_weight if {"tlru", "etlru"} <= set(args.policy) else ():
        console().print(leads(paid, weight), highlight=False)
    return 0


def against_lru(kind: Kind, seed: int, arms: Sequence[Arm]) -> dict[Arm, Change]:
    """What each arm pays on one trace, relative to LRU; the optimum too, if T-LRU is ahead of etlru."""
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
        return figures(requests, simulate(cache, requests), kind.threshold, 0)

    lru = serve("lru", 0.0)

    def pay(arm: Arm) -> Change:
        found = serve(*arm)
        return Change(*found.against(lru), beyond=found.p95 > kind.threshold)

    paid = {arm: pay(arm) for arm in arms}
    if any(_lead(paid, arm.weight) > 0 for arm in arms):
        paid[OPTIMUM] = pay(OPTIMUM)
    return paid


def _lead(paid: Mapping[Arm, Change], weight: MedianWeight) -> float:
    """By how much T-LRU's TEL is below etlru's, in parts of lru's; 0 if not both were served."""
    tlru, etlru = (paid.get(Arm(policy, weight)) for policy in ("tlru", "etlru"))
    return etlru.tel - tlru.tel if tlru and etlru else 0.0


def leads(paid: Paid, weight: MedianWeight) -> str:
    """On how many traces T-LRU is ahead of etlru with the same weight, and by how much at most."""
    ahead = {
        trace: (100 * lead, -100 * lead / of_trace[OPTIMUM].tel if of_trace[OPTIMUM].tel < 0 else math.inf)
        for trace, of_trace in paid.items()
        if (lead := _lead(of_trace, weight)) > 0
    }
    of = f"{Arm('etlru', weight)}: more TEL than tlru with the same weight on {len(ahead)} of {len(paid)} traces"
    if not ahead:
        return of
    most, points = (max(each) for each in zip(*ahead.values(), strict=True))
    return f"{of}; at most {most:.1f} % of lru's more, {points:.1f} points of the gap to {OPTIMUM.policy}"


def summary(paid: Paid, arms: Sequence[Arm]) -> Table:
    """An arm a line, over all traces."""
    table = _table(f"{len(paid)} generated traces, whole; means over traces, against lru")
    counts = (f"p95 above lru's by > {TOLERATED:.0%}", "… and beyond ξ")
    for column in ("", "TEL", "p50", "mean", "p95", "worst p95", *counts):
        table.add_column(column, justify="right" if column else "left")
    for arm in arms:
        of_arm = [each[arm] for each in paid.values()]
        tel, p50, p95, mean, _ = np.mean(of_arm, axis=0).tolist()
        worst = max(each.p95 for each in of_arm)
        changes = (f"{change:+.1%}" for change in (tel, p50, mean, p95, worst))
        raised = [each.beyond for each in of_arm if each.raised]
        table.add_row(str(arm), *changes, f"{len(raised)} of {len(paid)}", str(sum(raised)))
    return table


def by_kind(paid: Paid, arms: Sequence[Arm]) -> Table:
    """A kind a line: the mean TEL and the worst p95 of each arm over the seeds."""
    table = _table("TEL, mean over seeds; p95, worst of them")
    table.add_column("")
    for column in ("capacity", "ξ", "page", *map(str, arms)):
        table.add_column(column, justify="right", no_wrap=True)
    for kind in dict.fromkeys(kind for kind, _ in paid):
        of_kind = [each for (other, _), each in paid.items() if other == kind]
        cells = (
            f"{np.mean([each[arm].tel for each in of_kind]):+.1%} {max(each[arm].p95 for each in of_kind):+.1%}"
            for arm in arms
        )
        name = kind.trace.replace(":", ": ").replace(",", ", ")  # may be broken there
        table.add_row(name, f"{kind.capacity:,}", f"{kind.threshold:,}", str(kind.page_size), *cells)
    return table


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1))
