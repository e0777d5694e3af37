"""`python -m eval rates`: ET-LRU with learned rates beside ET-LRU with the true ones, on the paper's stochastic model.

Where the model is true (``paper.sources.stand_in``), ET-LRU (Definition 1) is given what the model drew: λ_i of each
conversation, μ, and the distribution of Q. ``etlru`` is given nothing and serves the same requests, drawn anew for each
seed. Differences are taken seed by seed; an interval is of their mean (Student's t, 95 %).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich.table import Table

from eval.arguments import Several, add_first_measured, one_of, whole
from eval.caches.knowledge import TraceKnowledge
from eval.caches.models import StepPrompt
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.simulate.cells import outcome
from eval.simulate.timing import ASSUMED
from eval.studies.figures import half_interval
from eval.studies.paper.grid import STEPS
from eval.studies.paper.published import FIGURE_THRESHOLDS_MS, SHAREGPT, WILDCHAT, DataSet
from eval.studies.paper.sources import Reading, Source, drawn, prompt_lengths, stand_in
from eval.terminal import Progress, show, table

SPREADS = (0.0, 1.0)
"""σ of log λ_i."""

MODELS = {"wildchat": WILDCHAT, "sharegpt": SHAREGPT}
POLICIES = ("lru", "tlru", "etlru", "etlru-given")


class Tail(NamedTuple):
    """Figures of the later part of a trace, in uncached tokens."""

    tel: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    data: DataSet  # that the model stands in for
    spread: float  # σ of log λ_i; 0: the same rate for all
    capacity: int  # tokens
    threshold: int  # ξ, tokens


class Difference(NamedTuple):
    """A relative difference: mean over seeds ± half of its 95 % interval. NaN where the other figure is 0."""

    mean: float
    half: float

    def __str__(self) -> str:
        return "–" if math.isnan(self.mean) else f"{self.mean:+.1%} ± {self.half:.1%}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; those that take several values span a grid."""
    add = parser.add_argument
    names = tuple(MODELS)
    add("--model", action=Several, type=one_of(names), default=list(names), metavar="M", help=f"of {', '.join(names)}")
    add("--capacity", action=Several, type=whole(1), default=[4_000, 10_000], metavar="TOKENS", help="(4000 10000)")
    add("--turns", type=whole(100), default=4_000, metavar="N", help="of each trace (default: %(default)s)")
    add("--seeds", type=whole(2), default=10, metavar="N", help="traces of each model (default: %(default)s)")
    add_first_measured(parser)
    add("--optional-caching", action="store_true", help="as in the paper: a context may be trimmed once it is served")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    show(compare(args))
    return 0


def compare(args: argparse.Namespace) -> Table:
    """A row for each setting: TEL against LRU, and how far etlru is from ET-LRU with the true rates."""
    judged = f"the last {1 - args.share:.0%} of" if args.share else "all of"
    caching = "optional" if args.optional_caching else "forced"
    result = table(
        f"{judged} {args.turns:,} turns, {args.seeds} seeds, {caching} caching",
        ("model", "σ", "capacity", "ξ", "tlru", "etlru", "given", "TEL", "p95", "p99"),
    )
    thresholds = [ASSUMED.tokens(ms) for ms in FIGURE_THRESHOLDS_MS]
    models = list(itertools.product(args.model, SPREADS))
    with Progress("settings", len(models) * len(args.capacity) * len(thresholds)) as progress:
        for name, spread in models:
            sources = [source_of(MODELS[name], spread, args.turns, seed) for seed in range(args.seeds)]
            for capacity, threshold in itertools.product(args.capacity, thresholds):
                setting = Setting(MODELS[name], spread, capacity, threshold)
                done = {
                    policy: [tail(policy, setting, source, args.share, not args.optional_caching) for source in sources]
                    for policy in POLICIES
                }
                lru = sum(one.tel for one in done["lru"])
                result.add_row(
                    name,
                    f"{spread:g}",
                    f"{capacity:,}",
                    f"{threshold:,}",
                    *(f"{sum(one.tel for one in done[p]) / lru - 1:+.1%}" if lru else "–" for p in POLICIES[1:]),
                    *(str(each) for each in difference(done["etlru"], done["etlru-given"])),
                )
                progress.advance()
    return result


def source_of(data: DataSet, spread: float, turns: int, seed: int) -> Source:
    """A trace of the model that stands in for a data set."""
    reading = Reading(limit=turns, seed=seed)
    return drawn(replace(stand_in(data, reading), turn_rate_sigma=spread), data, reading)


def tail(policy: str, setting: Setting, source: Source, share: float = 0.0, forced: bool = True) -> Tail:
    """The figures of a policy, of the requests from ``share`` of the trace on."""
    requests, is_given = source.requests, policy == "etlru-given"
    mean_life_s = stand_in(setting.data, Reading()).mean_life_s
    cache = simulated_cache(
        policy,
        setting.capacity,
        threshold=setting.threshold,
        next_prompt_estimate=None if policy == "etlru" else source.next_prompt_estimate,
        median_weight=None if policy == "lru" else 0.0,  # as in the paper
        knowledge=TraceKnowledge(requests),
        prompts=StepPrompt.of(prompt_lengths(requests), STEPS) if is_given else None,
        death_rate=1 / mean_life_s if is_given else 0.0,
        forced=forced,
    )
    first = int(share * len(requests))
    found = outcome(requests[first:], simulate(cache, requests)[first:], setting.threshold)
    return Tail(found.tel, found.p95, found.p99)


def difference(own: Sequence[Tail], other: Sequence[Tail]) -> list[Difference]:
    """Differences of TEL, p95 and p99 relative to ``other``, trace by trace."""
    base = np.array(other, dtype=np.float64)
    relative = np.divide(np.array(own), base, out=np.full_like(base, np.nan), where=base != 0) - 1.0
    return list(map(Difference, relative.mean(axis=0).tolist(), half_interval(relative).tolist()))
