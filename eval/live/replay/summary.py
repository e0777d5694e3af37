"""The figures of a replay: percentiles, violations, TEL and hit ratio, each with an interval; and tokens per second.

Intervals are by bootstrap over conversations and repeats. Turns of one conversation share their history, so they are
drawn together, and with them those of its subagents. A machine is slower for some minutes and then faster, so repeats
are drawn, too. The same are drawn for every arm, so a change against the baseline is a paired one. Of one repeat alone
the intervals do not say how much the next would differ, of a few too little: see :func:`interval_note`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.command import RunError
from eval.live.replay.rows import Folder, Row, Run

RESAMPLES = 1_000
COVERAGE = 0.95
PERCENTILES = (50, 90, 95, 99)
ITL_PERCENTILES = (50, 95, 99)

Floats = NDArray[np.float64]


class NoResultError(RunError):
    """No request of an arm succeeded: there is nothing to summarise."""


class Figure(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """Figures of one arm over all its repeats. Failed requests are counted in `errors` and in no other figure."""

    name: str
    requests: int  # succeeded
    errors: int
    retries: int
    figures: Mapping[str, Figure]  # see MEASURES; TEL and violations are of one repeat
    changes: Mapping[str, Figure]  # of each figure, relative to the baseline's: -0.1 is 10 % less
    tokens_per_s: float  # of all answers together, while it was played
    repeats: int
    sessions: int  # conversations, each with those of its subagents


class _Sample:
    """The rows of an arm as arrays. A row has the weight of how often its conversation and its repeat were drawn."""

    def __init__(self, found: Sequence[tuple[int, Row]], sessions: Mapping[int, int], repeats: int, run: Run) -> None:
        rows = [row for _, row in found]
        self.uncached = np.array([row.uncached_tokens for row in rows], dtype=np.float64)
        self.prompt = np.array([row.prompt_tokens for row in rows], dtype=np.float64)
        self.ttft = np.array([row.ttft_ms for row in rows], dtype=np.float64)
        self.over = np.maximum(self.uncached - run.threshold, 0.0)
        self.slo_ms = run.slo_ms
        self.session = np.array([sessions[row.session_index] for row in rows])
        self.repeat = np.array([repeat for repeat, _ in found])
        self.repeats = repeats
        drawn_together = self.session + len(sessions) * self.repeat
        self.sorted: dict[str, Sorted | _TokenTimes] = {
            "uncached": Sorted(self.uncached),
            "ttft": Sorted(self.ttft),
            "itl": _TokenTimes(rows, drawn_together),
        }

    def weights(self, sessions: Floats, repeats: Floats) -> Floats:
        """Of the rows, by how often each session and each repeat was drawn. An arm may lack repeats of a run."""
        own = repeats[np.unique(self.repeat)].sum()
        weights: Floats = sessions[self.session] * repeats[self.repeat] * (self.repeats / own if own else 0.0)
        return weights


class Sorted:
    """The known values of an arm's rows, sorted once: intervals need their percentiles a thousand times."""

    def __init__(self, values: Floats) -> None:
        known = np.flatnonzero(~np.isnan(values))
        self._rows = known[np.argsort(values[known])]
        self._values = values[self._rows]

    def percentile(self, share: float, weights: Floats) -> float:
        """The least value that so large a share of the weights, which are of the rows, does not exceed."""
        upto = np.cumsum(weights[self._rows])
        if not len(upto) or not upto[-1]:
            return float("nan")
        return float(self._values[np.searchsorted(upto / upto[-1], share)])


class _TokenTimes:
    """The inter-token latencies of all answers of an arm: intervals need their percentiles a thousand times.

    They may be millions, so they are sorted once, into ``GROUPS`` of equal size, and counted by what is drawn
    together and by group. A percentile is the mean of its group: exact where there are no more latencies than groups.
    """

    GROUPS = 2_000

    def __init__(self, rows: Sequence[Row], drawn_together: NDArray[np.int64]) -> None:
        _, self._first, numbers = np.unique(drawn_together, return_index=True, return_inverse=True)
        times = np.concatenate([np.zeros(0), *(row.itl_ms for row in rows)])
        groups = min(len(times), self.GROUPS)
        group = np.empty(len(times), dtype=np.int64)
        group[np.argsort(times, kind="stable")] = np.arange(len(times)) * groups // max(len(times), 1)
        counts = np.zeros((groups, len(self._first)), dtype=np.float32)
        np.add.at(counts, (group, np.repeat(numbers, [len(row.itl_ms) for row in rows])), 1)
        self._upto = np.cumsum(counts, axis=0)  # by group, and what is drawn together: latencies in it and below
        self._means = np.bincount(group, times, groups) / np.bincount(group, minlength=groups)

    def percentile(self, share: float, weights: Floats) -> float:
        """In ms; ``weights`` are of the rows, equal for all that are drawn together."""
        drawn = weights[self._first]
        total = float(self._upto[-1] @ drawn) if len(self._upto) else 0.0
        if not total:
            return float("nan")
        place = bisect_left(range(len(self._upto)), share * total, key=lambda group: float(self._upto[group] @ drawn))
        return float(self._means[place])


Measure = Callable[[_Sample, Floats], float]


def _percentile(kind: str, percentile: int) -> Measure:
    """Of what a sample has sorted."""
    return lambda sample, weights: sample.sorted[kind].percentile(percentile / 100, weights)


MEASURES: dict[str, Measure] = {
    **{f"uncached_p{p}": _percentile("uncached", p) for p in PERCENTILES},
    **{f"ttft_p{p}": _percentile("ttft", p) for p in PERCENTILES},
    "uncached_mean": lambda sample, weights: float(np.average(sample.uncached, weights=weights)),
    **{f"itl_p{p}": _percentile("itl", p) for p in ITL_PERCENTILES},
    "violations": lambda sample, weights: float(weights @ (sample.over > 0)) / sample.repeats,
    "tel": lambda sample, weights: float(weights @ sample.over) / sample.repeats,
    "hit_ratio": lambda sample, weights: 1 - float(weights @ sample.uncached) / float(weights @ sample.prompt),
    "slo_violations": lambda sample, weights: (
        float("nan") if sample.slo_ms is None else float(weights @ (sample.ttft > sample.slo_ms)) / sample.repeats
    ),
}
"""Figures by name. In tokens: uncached_*, tel (over ξ, summed). In ms: ttft_*, and itl_* of the
inter-token latencies of all answers. In requests: violations (of ξ), slo_violations (of the TTFT objective in ms)."""


def summarise(folder: Folder) -> list[ArmSummary]:
    """The figures of every arm that was played at least once, the baseline first.

    Raises:
        NoResultError: no request of an arm succeeded.
    """
    rows = _rows(folder)
    if not rows:
        return []
    names = sorted({row.session_index for found in rows.values() for _, row in found})
    sessions = {name: index for index, name in enumerate(names)}
    played = sorted({part.repeat for part in folder.parts})
    samples = {arm: _sample(folder, arm, found, sessions, played) for arm, found in rows.items()}

    random = np.random.default_rng(0)
    draws = list(zip(_draws(random, len(sessions)), _draws(random, len(played)), strict=True))
    values = {arm: _values(sample, np.ones_like(sample.ttft)) for arm, sample in samples.items()}
    resampled = {
        arm: [_values(sample, sample.weights(once, again)) for once, again in draws] for arm, sample in samples.items()
    }
    baseline = next(iter(samples))
    return [
        ArmSummary(
            name=arm,
            requests=len(sample.ttft),
            errors=len(rows[arm]) - len(sample.ttft),
            retries=sum(row.retries for _, row in rows[arm]),
            figures={name: _interval(values[arm][name], [one[name] for one in resampled[arm]]) for name in MEASURES},
            changes=_changes(values[arm], values[baseline], resampled[arm], resampled[baseline]),
            tokens_per_s=sum(row.output_tokens for _, row in rows[arm] if row.error is None)
            / max(folder.seconds(arm), 1e-9),
            repeats=sample.repeats,
            sessions=len(sessions),
        )
        for arm, sample in samples.items()
    ]


def _rows(folder: Folder) -> dict[str, list[tuple[int, Row]]]:
    """By arm, of those that were played: each row with its repeat."""
    rows = {arm: folder.finished_rows(arm) for arm in folder.run.arms}
    for arm, found in rows.items():
        if not found and folder.settle_s and any(part.arm == arm for part in folder.parts):
            raise NoResultError(f"--settle {folder.settle_s:g}: must leave some requests; {arm} had none later")
    return {arm: found for arm, found in rows.items() if found}


def _sample(
    folder: Folder, arm: str, found: Sequence[tuple[int, Row]], sessions: Mapping[int, int], played: Sequence[int]
) -> _Sample:
    """The requests of an arm that succeeded; ``played`` are the repeats of the run."""
    succeeded = [(played.index(repeat), row) for repeat, row in found if row.error is None]
    if not succeeded:
        raise NoResultError(f"{arm}: all {len(found)} requests failed; the first error: {found[0][1].error}")
    return _Sample(succeeded, sessions, sum(part.arm == arm for part in folder.parts), folder.run)


def interval_note(arm: ArmSummary) -> str:
    """What the intervals in brackets are, and where they are too narrow.

    What is drawn of n values reaches at most from the least to the greatest of them. That span holds the median of all
    that could come with a probability of 1 − 2^(1 − n): else all n are above it, or all below.
    """
    lines = ["In brackets: 95 % intervals, by bootstrap over conversations"]
    lines[0] += " and repeats." if arm.repeats > 1 else "; one repeat does not tell how much the next would differ."
    for count, name in ((arm.sessions, "conversations"), (arm.repeats, "repeats")):
        held = 1 - 2.0 ** (1 - count)
        if 0 < held < COVERAGE:
            lines.append(
                f"{count} {name} are few: what differs between {name} alone they hold with {held:.0%} at most."
            )
    return " ".join(lines)


def _draws(random: np.random.Generator, count: int) -> Floats:
    """How often each of so many is drawn, for each resample."""
    return random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)


def _values(sample: _Sample, weights: Floats) -> dict[str, float]:
    if not weights.any():  # none of the drawn conversations had a success in this arm
        return dict.fromkeys(MEASURES, float("nan"))
    return {name: measure(sample, weights) for name, measure in MEASURES.items()}


def _changes(
    own: Mapping[str, float],
    baseline: Mapping[str, float],
    own_resampled: Sequence[Mapping[str, float]],
    baseline_resampled: Sequence[Mapping[str, float]],
) -> dict[str, Figure]:
    """Of each figure, relative to the baseline's. Resamples are paired: both arms have the same draw."""
    pairs = list(zip(own_resampled, baseline_resampled, strict=True))
    return {
        name: _interval(_change(own[name], baseline[name]), [_change(one[name], base[name]) for one, base in pairs])
        for name in MEASURES
    }


def _change(value: float, reference: float) -> float:
    return value / reference - 1 if reference else float("nan")


def _interval(value: float, resampled: Sequence[float]) -> Figure:
    known = np.asarray(resampled)[~np.isnan(resampled)]
    if not len(known):
        return Figure(value, float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Figure(value, float(low), float(high))
