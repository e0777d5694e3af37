"""Verdicts and cells as lines of text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.table import Table

from eval.compare.changes import METRICS, NAMES
from eval.compare.settings import BASELINE
from eval.compare.verdict import Row, Verdict, place
from eval.render.looks import compact, percent
from eval.simulate.table import label
from eval.terminal import table


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text; the first column names the rows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def printed(self) -> Table:
        """The same for a terminal."""
        result = table(self.title, self.head)
        for row in self.rows:
            result.add_row(*row)
        return result


def summary(found: Sequence[Verdict]) -> Grid:
    """A policy a row: in how many settings it is worse than lru, its mean changes, the gap that it closes."""
    head = ("policy", "worse in", "worst figure", *NAMES.values(), "gap closed", "prefilled")
    count = len(found[0].rows)
    rows = [_mean_row(one) for one in found]
    settings = "one setting" if count == 1 else f"means over {count:,} settings"
    return Grid(f"Changes against lru, {settings}", head, tuple(rows))


def _mean_row(one: Verdict) -> tuple[str, ...]:
    prefilled = _sum(row["prefilled"] for row in one.rows)
    if one.policy == BASELINE:
        return (one.title, "", "", *("0" for _ in METRICS), "0 %", prefilled)
    worst = one.losses[0] if one.losses else None
    return (
        one.title,
        f"{one.settings_worse:,} of {len(one.rows):,}" if worst else "none",
        worst.change if worst else "–",
        *(percent(one.mean_change(metric), sign=True) for metric in METRICS),
        percent(one.gap_closed),
        prefilled,
    )


def _sum(tokens: Iterable[int]) -> str:
    total = sum(tokens)
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if total >= factor:
            return f"{total / factor:,.1f} {unit}"
    return f"{total:,}"


def cell_grids(rows: Sequence[Row], *, intervals: bool) -> list[Grid]:
    """A table for each trace: the figures of every cell, and but for lru's the change of each.

    Args:
        intervals: with the interval of each change.
    """
    return [_trace_grid(trace, list(found), intervals) for trace, found in groupby(rows, key=lambda row: row["trace"])]


def _trace_grid(trace: str, rows: Sequence[Row], intervals: bool) -> Grid:
    head = ("capacity, ξ, policy", *NAMES.values(), "gap closed", "prefilled")
    lines = []
    for row in rows:
        where = place(row).removeprefix(f"{trace}, ")
        name = label(row["policy"], row["median_weight"])
        figures = [_figure(metric, row, intervals) for metric in METRICS]
        gap = percent(row["gap_closed"], digits=0)
        if intervals and row["gap_interval"] is not None and row["policy"] != BASELINE:
            low, high = row["gap_interval"]
            gap += f" ({_range(low, high, sign=False)})"
        lines.append((f"{where}: {name}", *figures, gap, _sum([row["prefilled"]])))
    return Grid(f"{trace}: {rows[0]['requests']:,} requests, working set {compact(rows[0]['working_set'])}", head,
                tuple(lines))  # fmt: skip


def _figure(metric: str, row: Row, intervals: bool) -> str:
    value = row[metric]
    text = percent(value) if metric == "hit_ratio" else f"{round(value):,}"
    change, low, high = row["against_lru"][metric]
    if row["policy"] == BASELINE or change is None:
        return text
    span = f" ({_range(low, high)})" if intervals and low is not None else ""
    return f"{text}\N{EM SPACE}{percent(change, sign=True, digits=0)}{span}"


def _range(low: float, high: float, sign: bool = True) -> str:
    """−12 to +3, in per cent; without a sign what is no change."""
    return f"{_whole(low, sign)} to {_whole(high, sign)}"


def _whole(share: float, sign: bool) -> str:
    return percent(share, sign=sign, digits=0).removesuffix("\N{NARROW NO-BREAK SPACE}%")
