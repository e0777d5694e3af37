"""What the results of a replay say: percentiles, violations of the objective, TEL, hit ratio; and the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from eval.client import RequestResult


class NoResultError(ValueError):
    """Not one request of an arm succeeded: there is nothing to summarise."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Linearly interpolated percentiles of at least one value."""
        return cls(*np.percentile(values, [50, 90, 95, 99]).tolist())


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one arm. Failed requests are counted in `errors` and are in no other figure."""

    name: str
    requests: int  # that succeeded
    errors: int
    uncached: Percentiles  # prompt tokens that were prefilled, per request
    ttft_ms: Percentiles
    violations: int  # requests with more than `threshold` uncached tokens
    tel: int  # tail excess latency in tokens: sum of max(uncached - threshold, 0)
    later_violations: int  # part of `violations` that is not of first turns; those have nothing cached in any arm
    later_tel: int  # part of `tel`, likewise
    hit_ratio: float  # cached share of all prompt tokens

    @property
    def violation_share(self) -> float:
        """Violations per request, between 0 and 1."""
        return self.violations / self.requests


def summarise(name: str, results: Sequence[RequestResult], threshold: int) -> Summary:
    """The figures of the arm `name` for an objective of `threshold` uncached tokens.

    Raises NoResultError if no request succeeded.
    """
    succeeded = [result for result in results if result.error is None]
    if not succeeded:
        first = results[0].error if results else "none was sent"
        raise NoResultError(f"{name}: all {len(results)} requests failed; the first error: {first}")
    violating = [result for result in succeeded if result.uncached_tokens > threshold]
    return Summary(
        name=name,
        requests=len(succeeded),
        errors=len(results) - len(succeeded),
        uncached=Percentiles.of([result.uncached_tokens for result in succeeded]),
        ttft_ms=Percentiles.of([result.ttft_ms for result in succeeded if result.ttft_ms is not None]),
        violations=len(violating),
        tel=sum(result.uncached_tokens - threshold for result in violating),
        later_violations=sum(result.turn > 0 for result in violating),
        later_tel=sum(result.uncached_tokens - threshold for result in violating if result.turn > 0),
        hit_ratio=sum(result.cached_tokens for result in succeeded) / sum(result.prompt_tokens for result in succeeded),
    )


def write_rows(path: Path, results: Sequence[RequestResult]) -> None:
    """One JSON object per request and line, for analyses of one's own; replaces the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for result in results:
            row = asdict(result) | {"uncached_tokens": result.uncached_tokens}
            file.write(json.dumps(row) + "\n")


# rich has no header over several columns, so a group of percentiles is one column of numbers of this width.
_NUMBER = 6


def comparison_table(arms: Sequence[Summary], threshold: int) -> Table:
    """One row per arm; 100 columns wide at most."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("\npolicy", no_wrap=True)
    for header in (
        _group_header("uncached prompt tokens"),
        _group_header("TTFT (ms)"),
        f"violations\n> {threshold}",
        "TEL\n(tokens)",
        "hit\nratio",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for summary in arms:
        table.add_row(
            summary.name,
            _group(summary.uncached),
            _group(summary.ttft_ms),
            f"{summary.violations} ({summary.violation_share:.0%})",
            f"{summary.tel:,}",
            f"{summary.hit_ratio:.1%}",
        )
    return table


def _group_header(title: str) -> str:
    return f"{title:^{4 * _NUMBER}}\n" + "".join(f"{name:>{_NUMBER}}" for name in ("p50", "p90", "p95", "p99"))


def _group(values: Percentiles) -> str:
    return "".join(f"{value:{_NUMBER},.0f}" for value in (values.p50, values.p90, values.p95, values.p99))


def tail_sentence(arm: Summary, baseline: Summary) -> str:
    """How TEL and violations of `arm` stand against `baseline`, in all and without the first turns."""
    return (
        f"The tail: TEL of {arm.name} against {baseline.name} is {relative_change(arm.tel, baseline.tel)}. In later "
        f"turns, the part that a cache can change, it is {arm.later_tel:,} against {baseline.later_tel:,} tokens "
        f"({relative_change(arm.later_tel, baseline.later_tel)}), in {arm.later_violations} against "
        f"{baseline.later_violations} violations."
    )


def median_sentence(arm: Summary, baseline: Summary) -> str:
    """What the median request of `arm` pays, or gains, against `baseline`: its uncached tokens and its TTFT."""
    tokens, ms = (arm.uncached.p50, baseline.uncached.p50), (arm.ttft_ms.p50, baseline.ttft_ms.p50)
    verdict = "paid for it" if tokens[0] > tokens[1] else "gained too" if tokens[0] < tokens[1] else "is unchanged"
    return (
        f"The median {verdict}: p50 is {tokens[0]:,.0f} uncached tokens against {tokens[1]:,.0f} "
        f"({relative_change(*tokens)}), and a TTFT of {ms[0]:,.0f} ms against {ms[1]:,.0f} ms ({relative_change(*ms)})."
    )


def relative_change(value: float, reference: float) -> str:
    """The change from `reference` to `value` in per cent, signed; "from 0" where per cent mean nothing."""
    return f"{round(100 * (value / reference - 1)):+d}%" if reference else f"{value:+,.0f} from 0"
