"""The figures that studies compare, of a whole trace or of its later part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.simulate.cells import tail_excess_latency, uncached_tokens
from eval.traces.request import Request


class Figures(NamedTuple):
    """Uncached tokens of a request, unless said otherwise."""

    tel: float  # tokens over ξ, summed over requests
    p50: float
    p95: float
    mean: float
    violations: float  # requests over ξ
    hit_ratio: float  # cached share of all prompt tokens

    def against(self, baseline: Figures) -> Figures:
        """Changes against a baseline, relative: −0.1 is a tenth less; nan where it has 0. Hit ratio: the difference."""
        return Figures(*map(change, self, baseline))._replace(hit_ratio=self.hit_ratio - baseline.hit_ratio)

    def gap_closed(self, baseline: Figures, optimum: Figures) -> float:
        """Share of the gap in TEL from a baseline to an optimum; nan where there is none."""
        gap = baseline.tel - optimum.tel
        return (baseline.tel - self.tel) / gap if gap > 0 else math.nan


def change(own: float, other: float) -> float:
    """A relative change: −0.1 is a tenth less; nan from 0 to anything else."""
    return own / other - 1 if other else 0.0 if own == other else math.nan


def mean(values: Iterable[float]) -> float:
    """The mean of those that are known; nan if none is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def half_interval(values: NDArray[np.float64]) -> Any:
    """Half of the 95 % interval of the mean of independent values (Student's t), along the first axis."""
    from scipy import stats

    return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values, axis=0)


def shown(share: float, form: str = "{:+.1%}") -> str:
    """A share for a table; an en dash where it is not known."""
    return "–" if math.isnan(share) else form.format(share)


def four_digits(value: float) -> str:
    """A figure with four digits, or all those before the point: 4.25, 123.4, 12,345; an en dash for nan."""
    return shown(value, "{:,.0f}" if abs(value) >= 1000 else "{:.4g}")


def figures(requests: Sequence[Request], cached: Sequence[int], threshold: int, first: int = 0) -> Figures:
    """The figures of the requests from number ``first`` on.

    Args:
        cached: tokens that each request of the whole trace found cached.
        threshold: ξ, tokens.
    """
    uncached = uncached_tokens(requests, cached)[first:]
    prompts = sum(request.prompt_tokens for request in requests[first:])
    p50, p95 = np.percentile(uncached, [50, 95]).tolist()
    hit_ratio = 1 - float(uncached.sum()) / prompts if prompts else 0.0
    tel, violations = float(tail_excess_latency(uncached, threshold)), float((uncached > threshold).sum())
    return Figures(tel, p50, p95, float(uncached.mean()), violations, hit_ratio)
