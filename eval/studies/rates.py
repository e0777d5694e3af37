"""`python -m eval rates`: ET-LRU with learned rates beside ET-LRU with the true ones, on the paper's stochastic model.

Where the model is true (`paper.sources.stand_in`), ET-LRU (Definition 1) is given what the model drew: λ_i of each
conversation, μ, and the distribution of Q in the steps of `eval paper`. ``etlru`` is given nothing and serves the same
requests, drawn anew for each seed. Differences are taken seed by seed; an interval is of their mean (Student's t).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table
from scipy import stats

from eval.caches.policies import StepPrompt, TraceKnowledge, simulated_cache
from eval.caches.simulator import simulate
from eval.command import tokens
from eval.render.table import console
from eval.simulate.cells import uncached_tokens
from eval.studies.paper.grid import STEPS
from eval.studies.paper.published import FIGURE_THRESHOLDS_MS, SHAREGPT, WILDCHAT, DataSet
from eval.studies.paper.sources import Reading, Source, drawn, prompt_lengths, stand_in
from eval.studies.paper.timing import ASSUMED

__all__ = ["Difference", "Setting", "Tail", "difference", "tail"]

SPREADS = (0.0, 1.0)
"""Of log λ_i."""

_MODELS = {"wildchat": WILDCHAT, "sharegpt": SHAREGPT}
_POLICIES = ("lru", "tlru", "etlru", "etlru-given")


class Tail(NamedTuple):
    """Of the later part of a trace; tokens."""

    tel: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the table."""

    data: DataSet  # whose stand-in the model is
    spread: float  # σ of log λ_i; 0: the same rate for all
    capacity: int  # tokens
    threshold: int  # ξ, tokens


class Difference(NamedTuple):
    """A relative difference: the mean over seeds, give or take so much for an interval of 95 %; NaN against nothing."""

    mean: float
    reach: float

    def __str__(self) -> str:
        return "–" if math.isnan(self.mean) else f"{self.mean:+.1%} ± {self.reach:.1%}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; those that name several values span a grid."""
    add = parser.add_argument
    add("--model", nargs="+", choices=_MODELS, default=tuple(_MODELS), metavar="M", help=f"of {', '.join(_MODELS)}")
    add("--capacity", nargs="+", type=tokens, default=[4_000, 10_000], metavar="TOKENS", help="(default: 4000 10000)")
    add("--turns", type=int, default=4_000, metavar="N", help="of each trace (default: %(default)s)")
    add("--seeds", type=int, default=10, metavar="N", help="traces of each model, 2 or more (default: %(default)s)")
    add("--from", type=float, default=0.5, dest="share", metavar="SHARE", help="judged from there on (%(default)s)")
    add("--optional-caching", action="store_true", help="as in the paper: a context may be trimmed once it is served")


def run(args: argparse.Namespace) -> int:
    """Print the table; 2 if something asked for cannot be done."""
    try:
        for flag, value, least in (("--seeds", args.seeds, 2), ("--turns", args.turns, 100)):
            if value < least:
                raise ValueError(f"{flag} {value}: must be {least} or more")
        if not 0 <= args.share < 1:
            raise ValueError(f"--from {args.share:g}: must be a share from 0 to less than 1")
        if min(args.capacity) < 1:
            raise ValueError(f"--capacity {min(args.capacity)}: must be at least 1 token")
    except ValueError as error:
        print(f"eval rates: {error}", file=sys.stderr)
        return 2
    console().print(compare(args))
    return 0


def compare(args: argparse.Namespace) -> Table:
    """Each setting, its policies one after the other on the traces of all seeds."""
    judged = f"the last {1 - args.share:.0%} of" if args.share else "all of"
    caching = "optional" if args.optional_caching else "forced"
    title = f"{judged} {args.turns:,} turns, {args.seeds} seeds, {caching} caching"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1))
    for column in ("model", "σ", "capacity", "ξ", "tlru", "etlru", "given", "TEL", "p95", "p99"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    thresholds = [ASSUMED.tokens(ms) for ms in FIGURE_THRESHOLDS_MS]
    for name, spread in itertools.product(args.model, SPREADS):
        drawn_by = [source_of(_MODELS[name], spread, args.turns, seed) for seed in range(args.seeds)]
        for capacity, threshold in itertools.product(args.capacity, thresholds):
            setting = Setting(_MODELS[name], spread, capacity, threshold)
            done = {
                policy: [tail(policy, setting, source, args.share, not args.optional_caching) for source in drawn_by]
                for policy in _POLICIES
            }
            lru = sum(one.tel for one in done["lru"])
            table.add_row(
                name,
                f"{spread:g}",
                f"{capacity:,}",
                f"{threshold:,}",
                *(f"{sum(one.tel for one in done[policy]) / lru - 1:+.1%}" if lru else "–" for policy in _POLICIES[1:]),
                *(str(each) for each in difference(done["etlru"], done["etlru-given"])),
            )
    return table


def source_of(data: DataSet, spread: float, turns: int, seed: int) -> Source:
    """A trace of the model that stands in for a data set."""
    reading = Reading(limit=turns, seed=seed)
    return drawn(replace(stand_in(data, reading), turn_rate_sigma=spread), data, reading)


def tail(policy: str, setting: Setting, source: Source, share: float = 0.0, forced: bool = True) -> Tail:
    """What a policy leaves to prefill of the requests from ``share`` of the trace on."""
    requests, given = source.requests, policy == "etlru-given"
    mean_life_s = stand_in(setting.data, Reading()).mean_life_s
    cache = simulated_cache(
        policy,
        setting.capacity,
        threshold=setting.threshold,
        next_prompt_estimate=None if policy == "etlru" else source.next_prompt_estimate,
        knowledge=TraceKnowledge(requests),
        prompts=StepPrompt.of(prompt_lengths(requests), STEPS) if given else None,
        death_rate=1 / mean_life_s if given else 0.0,
        forced=forced,
    )
    uncached = uncached_tokens(requests, simulate(cache, requests))[int(share * len(requests)) :]
    p95, p99 = np.percentile(uncached, [95, 99]).tolist()
    return Tail(float(np.maximum(uncached - setting.threshold, 0).sum()), p95, p99)


def difference(ours: Sequence[Tail], theirs: Sequence[Tail]) -> list[Difference]:
    """Of TEL, p95 and p99, relative to ``theirs``, trace by trace."""
    base = np.array(theirs, dtype=np.float64)
    relative = np.divide(np.array(ours), base, out=np.full_like(base, np.nan), where=base != 0) - 1.0
    reach = stats.t.ppf(0.975, len(relative) - 1) * stats.sem(relative, axis=0)
    return list(map(Difference, relative.mean(axis=0).tolist(), reach.tolist()))
