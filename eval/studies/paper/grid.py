"""The cells of the experiments: which are run, running them side by side, and the figures that tables need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from eval.caches.knowledge import TraceKnowledge
from eval.caches.models import StepPrompt, TrueNextPrompt, Unended
from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import Cell, outcome, uncached_tokens
from eval.simulate.rows import Rows
from eval.simulate.timing import Timing
from eval.studies.paper.published import OBJECTIVE_MS
from eval.studies.paper.sources import Source, prompt_lengths
from eval.traces import Request
from radix_tlru import Policy

BASELINES = ("lru", "threshold-lru")

BOTH = "end-and-length-aware"
"""The paper's Length-Aware T-LRU: it knows whether a conversation goes on, and its next prompt. The policy
``length-aware`` of ``eval.caches.policies`` knows only the second."""

FUTURE = ("end-aware", "length-aware", BOTH, "tail-belady")
"""Variants with more and more knowledge of the future."""

STEPS = 16
"""Of the distribution of Q that ET-LRU is given: a step weighs 1/16."""

_TOGETHER = 8  # cells that a process is given at once, as the trace is sent with them


@dataclass(frozen=True)
class Study:
    """One trace under one set of policies, capacities and ξ_s."""

    source: Source
    timing: Timing
    capacities: tuple[int, ...]  # tokens
    thresholds_ms: tuple[float, ...]  # ξ_s
    next_prompt_estimate: int  # Q̂, tokens
    page_size: int = 1
    future_ms: tuple[float, ...] = ()  # ξ_s at which the variants that know the future are run as well
    weights: tuple[float, ...] = ()  # w of further T-LRUs, at the objective
    others: tuple[str, ...] = ()  # policies beside the baselines and T-LRU
    death_rate: float = 0.0  # μ that ET-LRU is given, 1/s

    @cached_property
    def trace(self) -> str:
        """Name of the trace in the rows."""
        return self.source.key

    def cell(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> Cell:
        """One cell, with optional caching as in the paper: a context may be trimmed as soon as it is served."""
        threshold, estimate = self.timing.tokens(threshold_ms), self.next_prompt_estimate
        return Cell(self.trace, policy, capacity, threshold, estimate, weight, self.page_size, forced=False)

    def cells(self) -> list[Cell]:
        """All of them, each once."""
        wanted = [
            self.cell(policy, capacity, ms)
            for capacity in self.capacities
            for ms in self.thresholds_ms
            for policy in (*BASELINES, "tlru", *(FUTURE if ms in self.future_ms else ()), *self.others)
        ]
        wanted += [
            self.cell("tlru", capacity, OBJECTIVE_MS, weight) for capacity in self.capacities for weight in self.weights
        ]
        return list(dict.fromkeys(wanted))


class Batch(NamedTuple):
    """Cells of one trace that are run together."""

    cells: list[Cell]
    requests: list[Request]
    death_rate: float
    objective: int  # tokens


def missing(studies: Iterable[Study], rows: Rows) -> list[Batch]:
    """The cells that have no row yet, or one for another objective, in batches."""
    batches = []
    for study in studies:
        objective = study.timing.tokens(OBJECTIVE_MS)
        cells = [one for one in study.cells() if one.name not in rows or rows[one.name]["objective"] != objective]
        for first in range(0, len(cells), _TOGETHER):
            batch = cells[first : first + _TOGETHER]
            batches.append(Batch(batch, study.source.requests, study.death_rate, objective))
    return batches


def run_batch(batch: Batch) -> list[dict[str, Any]]:
    """Run the cells of a batch; returns a row for each."""
    knowledge = TraceKnowledge(batch.requests)
    rows = []
    for cell in batch.cells:
        cached = simulate(_cache(cell, knowledge, batch), batch.requests)
        over = int((uncached_tokens(batch.requests, cached) > batch.objective).sum())
        row = outcome(batch.requests, cached, cell.threshold).row(cell, None)
        rows.append({**row, "objective": batch.objective, "over_objective": over})
    return rows


def _cache(cell: Cell, knowledge: TraceKnowledge, batch: Batch) -> SimulatedCache:
    assert cell.next_prompt_estimate is not None, "the paper gives Q̂"
    if cell.policy == BOTH:
        policy = Policy(Unended(), TrueNextPrompt(cell.next_prompt_estimate), cell.threshold, median_weight=0.0)
        return SimulatedCache(policy, cell.capacity, cell.page_size, knowledge=knowledge.future, forced=cell.forced)
    # With ξ ≤ Q̂ T-LRU has nothing to trim and is LRU; a server refuses such a setting.
    is_lru = cell.policy == "tlru" and cell.threshold <= cell.next_prompt_estimate
    return simulated_cache(
        "lru" if is_lru else cell.policy,
        cell.capacity,
        threshold=cell.threshold,
        next_prompt_estimate=cell.next_prompt_estimate,
        median_weight=cell.median_weight,
        page_size=cell.page_size,
        knowledge=knowledge,
        death_rate=batch.death_rate,
        prompts=StepPrompt.of(prompt_lengths(batch.requests), STEPS) if cell.policy == "etlru-given" else None,
        forced=cell.forced,
    )


def improvement(before: float, after: float) -> float | None:
    """The paper's relative improvement: the share of ``before`` that is gone, negative if it grew; None if it is 0."""
    return (before - after) / before if before else None


@dataclass(frozen=True, slots=True)
class Results:
    """The finished cells of a study."""

    study: Study
    rows: Rows

    def row(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> dict[str, Any]:
        """A cell with all its figures."""
        return self.rows[self.study.cell(policy, capacity, threshold_ms, weight).name]

    def ttft(self, policy: str, capacity: int, threshold_ms: float, percentile: str) -> float:
        """A percentile of TTFT, ms."""
        return self.study.timing.ms(self.row(policy, capacity, threshold_ms)[percentile])

    def faster(self, over: str, capacity: int, threshold_ms: float, percentile: str) -> float | None:
        """Relative improvement of T-LRU in a percentile of TTFT over a baseline."""
        before = self.ttft(over, capacity, threshold_ms, percentile)
        return improvement(before, self.ttft("tlru", capacity, threshold_ms, percentile))

    def fewer(self, over: str, capacity: int, threshold_ms: float) -> float | None:
        """Relative improvement of T-LRU over a baseline in requests beyond the objective."""
        before, after = (self.row(policy, capacity, threshold_ms)["over_objective"] for policy in (over, "tlru"))
        return improvement(before, after)

    def tel_saved(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> float | None:
        """Share of LRU's TEL that is gone."""
        lru, own = self.row("lru", capacity, threshold_ms), self.row(policy, capacity, threshold_ms, weight)
        return improvement(lru["tel"], own["tel"])

    def gap_closed(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> float | None:
        """Share of the TEL between LRU and Tail-Optimized Belady that is gone; None where the second has no less."""
        possible = self.tel_saved("tail-belady", capacity, threshold_ms)
        saved = self.tel_saved(policy, capacity, threshold_ms, weight)
        return None if possible is None or possible <= 0 or saved is None else saved / possible
