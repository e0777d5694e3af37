"""What the results of a replay say: percentiles, violations, TEL, hit ratio, each with an interval; their table.

Intervals are of the bootstrap over conversations: turns of one conversation share their history, so they are drawn
together, and the same conversations are drawn for every arm, so that a change against the baseline is a paired one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.markup import escape
from rich.table import Table

from eval.live.replay.play import PROBE_TOKENS
from eval.live.replay.rows import Folder, Row

__all__ = [
    "ArmSummary",
    "Figure",
    "NoResultError",
    "comparison_table",
    "machine_sentences",
    "markdown",
    "sentences",
    "summarise",
]

RESAMPLES = 1_000
COVERAGE = 0.95
PERCENTILES = (50, 90, 95, 99)
UNEQUAL = 1.1  # a machine this many times slower in one arm than in another is told of

Floats = NDArray[np.float64]


class NoResultError(ValueError):
    """Not one request of an arm succeeded: there is nothing to summarise."""


class Figure(NamedTuple):
    """A figure and its interval (95 %)."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Figure) -> bool:
        """Whether the intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """Figures of one arm, of all its repeats. Failed requests are counted in `errors` and are in no other figure."""

    name: str
    requests: int  # that succeeded
    errors: int
    retries: int
    figures: Mapping[str, Figure]  # see MEASURES; TEL and violations are of one repeat
    changes: Mapping[str, Figure]  # of each figure, relative to the baseline's: -0.1 is 10 % less
    tokens_per_s: float  # of output, while it was played


class _Sample:
    """The rows of an arm as arrays, to be weighted by how often each conversation was drawn."""

    def __init__(self, rows: Sequence[Row], conversations: Mapping[int, int], repeats: int, threshold: int) -> None:
        self.uncached = np.array([row.uncached_tokens for row in rows], dtype=np.float64)
        self.prompt = np.array([row.prompt_tokens for row in rows], dtype=np.float64)
        self.ttft = np.array([row.ttft_ms for row in rows], dtype=np.float64)
        self.itl = np.array([np.mean(row.itl_ms) if row.itl_ms else np.nan for row in rows])
        self.over = np.maximum(self.uncached - threshold, 0.0)
        self.conversation = np.array([conversations[row.conversation] for row in rows])
        self.repeats = repeats


def _quantile(values: Floats, share: float, weights: Floats) -> float:
    known = ~np.isnan(values)
    if not weights[known].any():
        return float("nan")
    return float(np.quantile(values[known], share, weights=weights[known], method="inverted_cdf"))


Measure = Callable[[_Sample, Floats, float | None], float]

MEASURES: dict[str, Measure] = {
    **{
        f"uncached_p{p}": lambda sample, weights, _, share=p / 100: _quantile(sample.uncached, share, weights)  # type: ignore[misc]
        for p in PERCENTILES
    },
    **{
        f"ttft_p{p}": lambda sample, weights, _, share=p / 100: _quantile(sample.ttft, share, weights)  # type: ignore[misc]
        for p in PERCENTILES
    },
    "uncached_mean": lambda sample, weights, _: float(np.average(sample.uncached, weights=weights)),
    "itl_p50": lambda sample, weights, _: _quantile(sample.itl, 0.5, weights),
    "itl_p95": lambda sample, weights, _: _quantile(sample.itl, 0.95, weights),
    "violations": lambda sample, weights, _: float(weights @ (sample.over > 0)) / sample.repeats,
    "tel": lambda sample, weights, _: float(weights @ sample.over) / sample.repeats,
    "hit_ratio": lambda sample, weights, _: 1 - float(weights @ sample.uncached) / float(weights @ sample.prompt),
    "slo_violations": lambda sample, weights, slo: (
        float("nan") if slo is None else float(weights @ (sample.ttft > slo)) / sample.repeats
    ),
}
"""Figures by name. Tokens: uncached_*, tel (over ξ, summed). ms: ttft_*, and itl_* of a request's mean inter-token
latency. Requests: violations (of ξ), slo_violations (of the TTFT objective in ms)."""


def summarise(folder: Folder, seed: int = 0) -> list[ArmSummary]:
    """The figures of every arm that was played at least once, the baseline first; none if none was.

    Raises:
        NoResultError: no request of an arm succeeded.
    """
    run = folder.run
    rows = {arm: [row for _, row in folder.finished_rows(arm)] for arm in run.arms}
    rows = {arm: found for arm, found in rows.items() if found}
    if not rows:
        return []
    names = sorted({row.conversation for found in rows.values() for row in found})
    conversations = {name: index for index, name in enumerate(names)}
    samples: dict[str, _Sample] = {}
    for arm, found in rows.items():
        succeeded = [row for row in found if row.error is None]
        if not succeeded:
            raise NoResultError(f"{arm}: all {len(found)} requests failed; the first error: {found[0].error}")
        repeats = sum(part.arm == arm for part in folder.parts)
        samples[arm] = _Sample(succeeded, conversations, repeats, run.threshold)

    draws = np.random.default_rng(seed).multinomial(
        len(conversations), np.full(len(conversations), 1 / len(conversations)), size=RESAMPLES
    )
    values = {arm: _values(sample, np.ones_like(sample.ttft), run.slo_ms) for arm, sample in samples.items()}
    resampled = {
        arm: [_values(sample, drawn[sample.conversation].astype(np.float64), run.slo_ms) for drawn in draws]
        for arm, sample in samples.items()
    }
    baseline = next(iter(samples))
    return [
        ArmSummary(
            name=arm,
            requests=len(sample.ttft),
            errors=len(rows[arm]) - len(sample.ttft),
            retries=sum(row.retries for row in rows[arm]),
            figures={name: _interval(values[arm][name], [one[name] for one in resampled[arm]]) for name in MEASURES},
            changes={
                name: _interval(
                    _change(values[arm][name], values[baseline][name]),
                    [
                        _change(one[name], base[name])
                        for one, base in zip(resampled[arm], resampled[baseline], strict=True)
                    ],
                )
                for name in MEASURES
            },
            tokens_per_s=sum(row.output_tokens for row in rows[arm])
            / max(sum(part.seconds for part in folder.parts if part.arm == arm), 1e-9),
        )
        for arm, sample in samples.items()
    ]


def _values(sample: _Sample, weights: Floats, slo_ms: float | None) -> dict[str, float]:
    if not weights.any():  # none of the drawn conversations had a success in this arm
        return dict.fromkeys(MEASURES, float("nan"))
    return {name: measure(sample, weights, slo_ms) for name, measure in MEASURES.items()}


def _change(value: float, reference: float) -> float:
    return value / reference - 1 if reference else float("nan")


def _interval(value: float, resampled: Sequence[float]) -> Figure:
    known = np.asarray(resampled)[~np.isnan(resampled)]
    if not len(known):
        return Figure(value, float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Figure(value, float(low), float(high))


SHOWN: tuple[tuple[str, str, str], ...] = (
    *((f"ttft_p{p}", f"TTFT p{p} (ms)", "{:,.0f}") for p in PERCENTILES),
    *((f"uncached_p{p}", f"uncached tokens p{p}", "{:,.0f}") for p in PERCENTILES),
    ("violations", "requests over ξ", "{:,.0f}"),
    ("tel", "TEL (tokens)", "{:,.0f}"),
    ("hit_ratio", "hit ratio", "{:.1%}"),
    ("itl_p50", "ITL p50 (ms)", "{:,.1f}"),
    ("slo_violations", "requests over the SLO", "{:,.0f}"),
)
"""Figures of a table: name, title, format."""


def table_rows(arms: Sequence[ArmSummary]) -> Iterator[tuple[str, list[str], list[str]]]:
    """A line a figure: its title, each arm's value with its interval, and each later arm's change against the first."""
    for name, title, form in SHOWN:
        if all(math.isnan(arm.figures[name].value) for arm in arms):
            continue
        values = [
            f"{form.format(figure.value)} ({form.format(figure.low)}–{form.format(figure.high)})"
            for figure in (arm.figures[name] for arm in arms)
        ]
        yield title, values, [_percent(arm.changes[name]) for arm in arms[1:]]


def comparison_table(arms: Sequence[ArmSummary]) -> Table:
    """A column an arm, with what it changes against the first; 100 columns wide with three arms."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("", no_wrap=True)
    for arm in arms:
        table.add_column(escape(arm.name), justify="right", no_wrap=True)
    for title, (first, *others), changes in table_rows(arms):
        pairs = zip(others, changes, strict=True)
        table.add_row(title, first, *(f"{value}\n[dim]{change}[/dim]" for value, change in pairs))
    return table


def markdown(arms: Sequence[ArmSummary]) -> str:
    """The table for a README."""
    lines = [f"| | {' | '.join(arm.name for arm in arms)} |", f"|---|{'---:|' * len(arms)}"]
    for title, (first, *others), changes in table_rows(arms):
        pairs = zip(others, changes, strict=True)
        lines.append(f"| {' | '.join([title, first, *(f'{value}<br>{change}' for value, change in pairs)])} |")
    return "\n".join(lines)


def sentences(arms: Sequence[ArmSummary]) -> list[str]:
    """What the last arm gained and paid against the first, with intervals of the paired change."""
    if len(arms) < 2:
        return []
    baseline, ours = arms[0], arms[-1]
    change = ours.changes
    paid = ours.figures["uncached_p50"].value - baseline.figures["uncached_p50"].value
    verdict = "paid for it" if paid > 0 else "gained too" if paid < 0 else "is unchanged"
    return [
        f"The tail of {ours.name} against {baseline.name}: TTFT p95 {_percent(change['ttft_p95'])}, p99 "
        f"{_percent(change['ttft_p99'])}, TEL {_percent(change['tel'])}.",
        f"The median {verdict}: TTFT p50 {_percent(change['ttft_p50'])}, uncached tokens p50 "
        f"{_percent(change['uncached_p50'])}.",
        "In brackets: 95 % intervals, by bootstrap over conversations.",
    ]


def machine_sentences(folder: Folder) -> list[str]:
    """How fast the machine was in each arm: machines drift, and an arm on a slower one has longer times for it."""
    alone = {
        arm: [ms for part in folder.parts if part.arm == arm for ms in part.prefill_alone_ms] for arm in folder.run.arms
    }
    alone = {arm: found for arm, found in alone.items() if found}
    if not alone:
        return []
    means = {arm: statistics.geometric_mean(found) for arm, found in alone.items()}
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    said = [
        f"A prompt of {PROBE_TOKENS:,} tokens alone, before and after each repeat: "
        + "; ".join(f"{arm} {', '.join(f'{ms:.0f}' for ms in found)} ms" for arm, found in alone.items())
        + "."
    ]
    if means[slow] > UNEQUAL * means[fast]:
        said.append(
            f"The machine was {means[slow] / means[fast] - 1:.0%} slower for {slow} than for {fast}, whose times are "
            "the shorter for that alone. Uncached tokens do not depend on it; more repeats even it out."
        )
    return said


def _percent(figure: Figure) -> str:
    return f"{figure.value:+.0%} ({figure.low:+.0%} to {figure.high:+.0%})".replace("-", "−")
