"""One verdict for each policy: never worse than lru, or in which figures of which settings it is, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from eval.caches.policies import ORACLES
from eval.compare.changes import METRICS, NAMES, TOLERATED, least
from eval.compare.settings import BASELINE, OPTIMUM
from eval.render.looks import compact, percent
from eval.simulate.table import label

Row = Mapping[str, Any]

LEAST_GAP = 0.01
"""Share of lru's TEL that the optimum has to save, or the share of the gap that a policy closes says nothing."""

_AS_LRU = " It evicts as lru until it can show that it is better, for 250 requests at least."
"""Said of etlru where it did what lru does."""

NOTHING_DIFFERS = (
    f"Nor does {OPTIMUM}, which knows the future, differ from lru in any figure: here no policy can win or lose. "
    "Nothing comes again, or all of it fits, or nothing does."
)
"""Said where the settings cannot tell policies apart."""


class Loss(NamedTuple):
    """A figure of a cell that is worse than lru's."""

    metric: str
    row: Row
    lru: Row
    size: float  # more than TOLERATED

    @property
    def has_interval(self) -> bool:
        """Whether the sampling error is known: lru has some of the figure, and the trace has sessions enough."""
        return self.row["against_lru"][self.metric][1] is not None

    @property
    def is_certain(self) -> bool:
        """Whether the interval of the change is on one side of 0."""
        _, low, high = self.row["against_lru"][self.metric]
        return low is not None and (low > 0 or high < 0)

    @property
    def change(self) -> str:
        """The change for a reader: relative, or absolute where lru has 0."""
        change = self.row["against_lru"][self.metric][0]
        return f"{NAMES[self.metric]} {percent(change, sign=True)}" if change is not None else NAMES[self.metric]

    def __str__(self) -> str:
        _, low, high = self.row["against_lru"][self.metric]
        span = "" if low is None else f" ({percent(low, sign=True)} to {percent(high, sign=True)})"
        values = f"{_value(self.metric, self.lru)} → {_value(self.metric, self.row)}"
        return f"{self.change}{span}: {values} on {place(self.row)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a policy."""

    name: str  # the policy, and its weight w where that is not 0
    policy: str
    rows: tuple[Row, ...]  # a cell a setting, in the order of the settings
    lru: tuple[Row, ...]  # lru's cell in each of them
    losses: tuple[Loss, ...]  # the worst first
    gaps: Mapping[str, float]  # by cell, the share of the gap that it closes, where there is one; see LEAST_GAP

    @property
    def gap_closed(self) -> float | None:
        """The mean over the settings in which there is a gap."""
        return float(np.mean([*self.gaps.values()])) if self.gaps else None

    @property
    def is_oracle(self) -> bool:
        """Whether it looks into the future: no server can run it."""
        return self.policy in ORACLES

    @property
    def title(self) -> str:
        """The name, and whether it looks into the future."""
        return f"{self.name} (oracle)" if self.is_oracle else self.name

    @property
    def settings_worse(self) -> int:
        """Settings in which at least one figure is worse."""
        return len({loss.row["cell"] for loss in self.losses})

    def mean_change(self, metric: str) -> float | None:
        """The mean relative change over the settings in which lru has enough of the figure for a ratio."""
        index = METRICS.index(metric)
        known = [
            row["against_lru"][metric][0]
            for row, before in zip(self.rows, self.lru, strict=True)
            if before[metric] >= least(before["requests"], before["threshold"])[index]
        ]
        return float(np.mean(known)) if known else None

    @property
    def differs(self) -> bool:
        """Whether any figure is another than lru's."""
        pairs = zip(self.rows, self.lru, strict=True)
        return any(row[metric] != lru[metric] for row, lru in pairs for metric in METRICS)

    @property
    def sentence(self) -> str:
        """The verdict."""
        count = len(self.rows)
        if not self.losses:
            where = "the one setting" if count == 1 else f"any of {count:,} settings"
            nothing = "" if self.differs else f" No figure differs from lru.{_AS_LRU if self.policy == 'etlru' else ''}"
            scope = f"by more than 1 %, in any of {len(METRICS)} figures in {where}"
            return f"{self.name}: never worse than lru ({scope}).{nothing}"
        of_metric = Counter(loss.metric for loss in self.losses)
        listed = ", ".join(f"{NAMES[metric]} {of_metric[metric]}" for metric in METRICS if of_metric[metric])
        certain = sum(loss.is_certain for loss in self.losses)
        unknown = sum(not loss.has_interval for loss in self.losses)
        beyond = f"{certain} of {len(self.losses)} beyond the sampling error" + (
            f", which is not known of {unknown}" if unknown else ""
        )
        return (
            f"{self.name}: worse than lru by more than 1 % in {self.settings_worse:,} of {count:,} settings "
            f"({listed}; {beyond}). Worst: {self.losses[0]}"
        )


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """A verdict for each policy and weight, in the order of the rows; lru's own is the first.

    Args:
        rows: of all cells; lru's are among them.
    """
    lru = {_setting(row): row for row in rows if row["policy"] == BASELINE}
    optimum = {_setting(row): row for row in rows if row["policy"] == OPTIMUM}
    with_gap = {at for at, row in optimum.items() if row["tel"] < (1 - LEAST_GAP) * lru[at]["tel"]}
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(label(row["policy"], row["median_weight"]), []).append(row)
    found = [_verdict(name, cells, lru, with_gap) for name, cells in arms.items()]
    return sorted(found, key=lambda one: one.policy != BASELINE)


def nothing_differs(found: Sequence[Verdict]) -> bool:
    """Whether the optimum does as lru does in every figure, so that the verdicts say nothing of policies."""
    return not any(one.differs for one in found if one.policy == OPTIMUM)


def _verdict(
    name: str, rows: Sequence[Row], lru: Mapping[tuple[Any, ...], Row], with_gap: Collection[tuple[Any, ...]]
) -> Verdict:
    before = tuple(lru[_setting(row)] for row in rows)
    found = [loss for row, other in zip(rows, before, strict=True) for loss in _losses(row, other)]
    return Verdict(
        name,
        rows[0]["policy"],
        tuple(rows),
        before,
        tuple(sorted(found, key=lambda loss: -loss.size)),
        {row["cell"]: row["gap_closed"] for row in rows if _setting(row) in with_gap},
    )


def _losses(row: Row, lru: Row) -> list[Loss]:
    sizes = row["losses"]
    return [Loss(metric, row, lru, sizes[metric]) for metric in METRICS if sizes[metric] > TOLERATED]


def _setting(row: Row) -> tuple[Any, ...]:
    return row["trace"], row["capacity"], row["threshold"]


def place(row: Row) -> str:
    """The setting of a row, for a reader."""
    asked, capacity = row["capacity_asked"], compact(row["capacity"])
    held = f"{asked} ({capacity} tokens)" if "%" in asked else f"{capacity} tokens"
    return f"{row['trace']}, {held}, ξ = {row['threshold']:,}"


def _value(metric: str, row: Row) -> str:
    value = row[metric]
    return percent(value, digits=2) if metric == "hit_ratio" else f"{value:,.0f}"
