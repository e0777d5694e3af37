"""Figures of resampled sessions: how far those of a trace would move if other sessions had come.

Requests of one session (:func:`eval.traces.variants.sessions_of`) share their history, so sessions are drawn with all
of their requests, those of subagents too. Every policy is given the same draws, so the difference of two policies is a
paired one. What a policy does is not run again: a request keeps the uncached tokens that it had in the whole trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.compare.changes import METRICS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Drawn = NDArray[np.uint8]

RESAMPLES, FEWEST = 400, 100
"""Draws, and how many there are at least of a trace with so many sessions that they would not fit in memory."""

_MOST_DRAWN = 100_000_000
"""Bytes of all draws: above 250,000 sessions there are fewer of them."""

COVERAGE = 0.95
"""Share of the resamples that an interval holds."""

FEWEST_SESSIONS = 6
"""Sessions below which there are no intervals. An interval reaches from the least to the greatest of n at most. These
hold the median of all that could come with 1 − 2^(1 − n): 97 % of 6, 50 % of 2, none of 1."""

_AT_ONCE = 4_000_000
"""Weights of requests in memory at one time: 32 MB."""

_SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Sample:
    """The requests of a cell; one value a request, in tokens."""

    uncached: Ints
    prompt: Ints
    session: Ints  # its number, from 0


def draws(sessions: int) -> Drawn:
    """How often each session is drawn: a line for each resample, a column for each session.

    The same at every call.
    """
    resamples = max(min(RESAMPLES, _MOST_DRAWN // sessions), FEWEST)
    rng, shares = np.random.default_rng(0), np.full(sessions, 1 / sessions)
    drawn = np.empty((resamples, sessions), dtype=np.uint8)  # one session 256 times: never
    for line in drawn:
        line[:] = rng.multinomial(sessions, shares)
    return drawn


def resampled(sample: Sample, threshold: int, drawn: Drawn) -> Floats:
    """The figures of each resample: a line each, columns in the order of METRICS.

    All nan where there are fewer than FEWEST_SESSIONS.

    Args:
        threshold: ξ, tokens.
        drawn: as of :func:`draws`.
    """
    if drawn.shape[1] < FEWEST_SESSIONS:
        return np.full((len(drawn), len(METRICS)), np.nan)
    over = np.maximum(sample.uncached - threshold, 0)
    of_requests = (np.ones_like(over), sample.uncached, sample.prompt, over > 0, over)
    sums = np.stack([np.bincount(sample.session, weights=each, minlength=drawn.shape[1]) for each in of_requests])
    parts = [drawn[part] @ sums.T for part in _parts(drawn, sample.uncached)]
    requests, uncached, prompts, violations, tel = np.concatenate(parts).T
    quantiles = percentiles(sample.uncached, sample.session, drawn, list(_SHARES.values()))
    # Resamples differ in length. Counts and sums are stated for as many requests as the trace has.
    scale = len(sample.uncached) / requests
    columns = {
        "hit_ratio": 1 - np.divide(uncached, prompts, out=np.ones_like(uncached), where=prompts > 0),
        "mean": uncached / requests,
        **dict(zip(_SHARES, quantiles.T, strict=True)),
        "violations": violations * scale,
        "tel": tel * scale,
    }
    return np.stack([columns[name] for name in METRICS], axis=1)


def percentiles(values: Ints, session: Ints, drawn: Drawn, shares: Sequence[float]) -> Floats:
    """Percentiles of each resample, as ``np.percentile`` has them of all requests that were drawn.

    Returns:
        A line for each resample, a column for each share.
    """
    order = np.argsort(values, kind="stable")
    rising, owner = values[order], session[order]
    result = np.empty((len(drawn), len(shares)))
    for part in _parts(drawn, values):
        up_to = np.cumsum(drawn[part][:, owner], axis=1, dtype=np.int64)  # requests up to each value
        places = (up_to[:, -1:] - 1) * np.asarray(shares)
        below = np.floor(places)
        at = np.concatenate([below, np.ceil(places)], axis=1)
        # The first value up to which there are more requests than its place, counted from 0.
        found = [rising[np.searchsorted(line, each, side="right")] for line, each in zip(up_to, at, strict=True)]
        low, high = np.split(np.stack(found), 2, axis=1)
        result[part] = low + (high - low) * (places - below)
    return result


def _parts(drawn: Drawn, values: Ints) -> Iterator[slice]:
    """Lines of draws that are worked on at one time."""
    lines = max(_AT_ONCE // len(values), 1)
    return (slice(first, first + lines) for first in range(0, len(drawn), lines))


def interval(values: Floats) -> Floats:
    """Ends of the interval that holds COVERAGE of the resamples, in the first axis; nan where one of them has none."""
    ends = [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]
    result: Floats = np.quantile(values, ends, axis=0)
    return result
