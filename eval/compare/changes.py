"""The figures that a policy is judged by, and when one of them counts as worse than lru's.

A change is relative: policy / lru − 1. A figure is *worse* if it is by more than 1 % of lru's value: less of the hit
ratio, more of any other. Where lru has 0, or a few requests, a ratio means nothing: 1 request over ξ where lru has none
is no infinite loss. So lru counts as having at least:

============================  =====================================================================================
figure                        least; 1 % of it is the smallest loss that counts
============================  =====================================================================================
hit ratio                     1 %: more than 1 of 10,000 prompt tokens
mean, p50, p90, p95, p99      ξ / 10: more than a thousandth of what the objective allows
requests over ξ               1 % of all requests, at least 100: more than 1 request, or than 1 of 10,000
TEL                           ξ times that: more than one such request that is over by ξ
============================  =====================================================================================

The *loss* is the difference for the worse over max(lru, least), so a loss above 1 % is one that counts. Losses are what
figures are ordered by: they are finite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eval.simulate.cells import Outcome

Floats = NDArray[np.float64]

NAMES = {
    "hit_ratio": "hit ratio",
    "mean": "mean",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "violations": "over ξ",
    "tel": "TEL",
}
"""Figures of an :class:`~eval.simulate.cells.Outcome`, and how a reader sees them."""

METRICS = tuple(NAMES)
"""In the order in which arrays of this folder hold them."""

TOLERATED = 0.01
"""A loss up to this counts as none."""

RULE = (
    "A figure is worse than lru's if it is so by more than 1 % of lru's value: a lower hit ratio, more of others. "
    "Where lru has less than this, 1 % is of this: a hit ratio of 1 %; ξ/10 tokens for mean and percentiles; 1 % of "
    "all requests, at least 100, for requests over ξ; ξ times that for TEL. So one request, or a thousandth of the "
    "objective, is never counted."
)
"""The rule for the reader of a page."""

_WORSE = np.where(np.array([name == "hit_ratio" for name in METRICS]), -1.0, 1.0)


def figures_of(outcome: Outcome) -> Floats:
    """The figures of a cell, in the order of METRICS."""
    return np.array([float(getattr(outcome, name)) for name in METRICS])


def least(requests: int, threshold: int) -> Floats:
    """What lru counts as having at least, in the order of METRICS.

    Args:
        requests: of the trace.
        threshold: ξ, tokens; 1 or more.
    """
    few = max(requests / 100, 100.0)
    known = {"hit_ratio": 0.01, "violations": few, "tel": few * threshold}
    return np.array([known.get(name, threshold / 10) for name in METRICS])


def changes(own: Floats, lru: Floats) -> Floats:
    """Relative changes against lru: −0.1 is a tenth less, nan where lru has 0 and the policy has not.

    Args:
        own, lru: figures in the last axis, in the order of METRICS.
    """
    result = np.where(own == lru, 0.0, np.nan)
    np.divide(own - lru, lru, out=result, where=lru != 0)
    return result


def losses(own: Floats, lru: Floats, smallest: Floats) -> Floats:
    """By how much figures are worse than lru's, as shares; below 0 they are better.

    Args:
        own, lru: figures in the last axis, in the order of METRICS.
        smallest: what lru counts as having at least.
    """
    result: Floats = (own - lru) / np.maximum(lru, smallest) * _WORSE
    return result
