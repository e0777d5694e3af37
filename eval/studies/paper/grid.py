"""The cells of the experiments: what is run, side by side and resumable, and the figures that tables ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from eval.caches.policies import StepPrompt, TraceKnowledge, TrueNextPrompt, Unended, simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import Cell, outcome, uncached_tokens
from eval.simulate.command import Rows
from eval.studies.paper.published import OBJECTIVE_MS
from eval.studies.paper.sources import Source, prompt_lengths
from eval.studies.paper.timing import Timing
from eval.traces import Request
from radix_tlru import Policy

__all__ = ["BASELINES", "BOTH", "FUTURE", "STEPS", "Results", "Study", "improvement", "missing", "run_batches"]

BASELINES = ("lru", "threshold-lru")

BOTH = "end-and-length-aware"
"""What the paper calls Length-Aware T-LRU: it knows both whether a conversation goes on and its next prompt. The policy
``length-aware`` of ``eval.caches.policies`` knows the second alone."""

FUTURE = ("end-aware", "length-aware", BOTH, "tail-belady")
"""Variants with more and more knowledge of the future."""

STEPS = 16
"""Of the distribution of Q that ET-LRU is given: a step weighs 1/16."""

_TOGETHER = 8  # cells that a process is given at once: the trace travels with them


@dataclass(frozen=True)
class Study:
    """One trace under one set of policies, capacities and ξ_s."""

    source: Source
    timing: Timing
    capacities: tuple[int, ...]  # tokens
    thresholds_ms: tuple[float, ...]  # ξ_s
    next_prompt_estimate: int  # Q̂, tokens
    page_size: int = 1
    future_ms: tuple[float, ...] = ()  # ξ_s that the variants with future knowledge are run at, too
    weights: tuple[float, ...] = ()  # w of further T-LRUs, at the objective
    others: tuple[str, ...] = ()  # policies beside the baselines and T-LRU
    death_rate: float = 0.0  # μ that ET-LRU is given, 1/s

    @cached_property
    def trace(self) -> str:
        """Which results are of this trace."""
        return self.source.key

    def cell(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> Cell:
        """One cell. Caching is optional, as in the paper: a context may be trimmed as soon as it is served."""
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


class _Batch(NamedTuple):
    cells: list[Cell]
    requests: list[Request]
    death_rate: float
    objective: int  # tokens


def missing(studies: Iterable[Study], rows: Rows) -> list[_Batch]:
    """The cells that have no row yet, or one for another objective, in batches."""
    batches = []
    for study in studies:
        objective = study.timing.tokens(OBJECTIVE_MS)
        cells = [cell for cell in study.cells() if cell not in rows or rows.of(cell)["objective"] != objective]
        for first in range(0, len(cells), _TOGETHER):
            batch = cells[first : first + _TOGETHER]
            batches.append(_Batch(batch, study.source.requests, study.death_rate, objective))
    return batches


def run_batches(batches: Sequence[_Batch], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Rows of each batch as it is done: here, or in ``jobs`` processes."""
    if jobs == 1 or len(batches) < 2:
        yield from map(_run, batches)
        return
    import joblib

    yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(
        joblib.delayed(_run)(batch) for batch in batches
    )


def _run(batch: _Batch) -> list[dict[str, Any]]:
    knowledge = TraceKnowledge(batch.requests)
    rows = []
    for cell in batch.cells:
        cached = simulate(_cache(cell, knowledge, batch), batch.requests)
        over = int((uncached_tokens(batch.requests, cached) > batch.objective).sum())
        row = outcome(batch.requests, cached, cell.threshold, {}, 0.0).row(cell, None)
        rows.append({**row, "objective": batch.objective, "over_objective": over})
    return rows


def _cache(cell: Cell, knowledge: TraceKnowledge, batch: _Batch) -> SimulatedCache:
    assert cell.next_prompt_estimate is not None, "the paper gives Q̂"
    if cell.policy == BOTH:
        policy = Policy(Unended(), TrueNextPrompt(cell.next_prompt_estimate), cell.threshold, median_weight=0.0)
        return SimulatedCache(policy, cell.capacity, cell.page_size, knowledge=knowledge.future, forced=cell.forced)
    # ξ ≤ Q̂ leaves T-LRU nothing to trim, so that it is LRU; the server refuses such a setting.
    useless = cell.policy == "tlru" and cell.threshold <= cell.next_prompt_estimate
    return simulated_cache(
        "lru" if useless else cell.policy,
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
    """Share of ``before`` that is gone, negative where it grew (the paper's relative improvement); None of nothing."""
    return (before - after) / before if before else None


@dataclass(frozen=True, slots=True)
class Results:
    """The finished cells of a study."""

    study: Study
    rows: Rows

    def row(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> dict[str, Any]:
        """A cell with all its figures."""
        return self.rows.of(self.study.cell(policy, capacity, threshold_ms, weight))

    def ttft(self, policy: str, capacity: int, threshold_ms: float, percentile: str, weight: float = 0.0) -> float:
        """A percentile of TTFT, ms."""
        return self.study.timing.ms(self.row(policy, capacity, threshold_ms, weight)[percentile])

    def faster(self, over: str, capacity: int, threshold_ms: float, percentile: str) -> float | None:
        """Relative improvement of T-LRU in a percentile of TTFT over a baseline."""
        before = self.ttft(over, capacity, threshold_ms, percentile)
        return improvement(before, self.ttft("tlru", capacity, threshold_ms, percentile))

    def fewer(self, over: str, capacity: int, threshold_ms: float) -> float | None:
        """Relative improvement of T-LRU in requests beyond the objective over a baseline."""
        before, after = (
            self.row(policy, capacity, threshold_ms)["over_objective"] for policy in (over, "tlru")
        )  # fmt: skip
        return improvement(before, after)

    def tel_saved(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> float | None:
        """Share of LRU's TEL that is gone."""
        lru, own = (self.row(*cell)["tel"] for cell in (
            ("lru", capacity, threshold_ms, 0.0), (policy, capacity, threshold_ms, weight)))  # fmt: skip
        return improvement(lru, own)

    def gap_closed(self, policy: str, capacity: int, threshold_ms: float, weight: float = 0.0) -> float | None:
        """Share of the TEL between LRU and Tail-Optimized Belady that is gone; None where there is nothing between."""
        possible = self.tel_saved("tail-belady", capacity, threshold_ms)
        saved = self.tel_saved(policy, capacity, threshold_ms, weight)
        return None if not possible or saved is None else saved / possible
