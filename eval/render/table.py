"""Cells as a table to read: policies side by side, each with what it does to the tail and what the median pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from eval.command import weight_text
from radix_tlru.config import MedianWeight

__all__ = ["cells_table", "console", "label"]

NARROWEST = 120
"""Columns that the table needs; what is not a terminal (a file, CI) is given as many."""

BASELINES = ("lru", "sglang-lru", "sglang-lru-python")
"""Policies that a group is compared with: the first of these that it has."""

_Size = tuple[int, int, int, int, str]
"""Capacity, ξ, page size, replicas and their routing."""


def console() -> Console:
    """Where tables go: standard output."""
    result = Console(highlight=False)
    return result if result.is_terminal else Console(highlight=False, width=NARROWEST)


def cells_table(rows: Sequence[dict[str, Any]]) -> Group:
    """A block for each size and objective; the changes are against the block's own baseline."""
    return Group(*(_block(size, list(group)) for size, group in groupby(sorted(rows, key=_size), key=_size)))


def _block(size: _Size, rows: list[dict[str, Any]]) -> Table:
    base = min(
        (row for row in rows if row["policy"] in BASELINES),
        key=lambda row: BASELINES.index(row["policy"]),
        default=None,
    )
    capacity, threshold, page, replicas, routing = size
    held = (
        f"{replicas} × {_short(capacity)} tokens of cache, {routing}"
        if routing
        else f"{_short(capacity)} tokens of cache"
    )
    title = f"{held}, ξ = {threshold:,}, page {page}; uncached tokens of a request"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1), pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in ("hit", "p50", "", "p95", "", "p99", "TEL", "", "over ξ", "gap closed"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_name(row, rows), *_figures(row, base))
    return table


def label(policy: str, weight: MedianWeight) -> str:
    """A policy and its weight w, if it has one."""
    return f"{policy} w={weight_text(weight)}" if weight else policy


def _size(row: dict[str, Any]) -> _Size:
    fleet = (row.get("replicas", 1), row.get("routing") or "")  # rows of before there were replicas have neither
    return row["capacity"], row["threshold"], row["page_size"], *fleet


def _name(row: dict[str, Any], block: Sequence[dict[str, Any]]) -> str:
    """A policy and its settings; Q̂ where the block has the policy with several."""
    name, estimate = label(row["policy"], row["median_weight"]), row["next_prompt_estimate"]
    if len({other["next_prompt_estimate"] for other in block if other["policy"] == row["policy"]}) == 1:
        return name
    return f"{name} Q̂ learned" if estimate is None else f"{name} Q̂={estimate:,}"


def _figures(row: dict[str, Any], base: dict[str, Any] | None) -> Iterator[str]:
    yield f"{row['hit_ratio']:.1%}"
    for figure in ("p50", "p95", "p99", "tel"):
        yield _short(row[figure]) if figure == "tel" else f"{row[figure]:,.0f}"
        if figure != "p99":
            yield f"{row[figure] / base[figure] - 1:+.1%}" if base and row is not base and base[figure] else ""
    yield f"{row['violations']:,}"
    yield "–" if row["gap_closed"] is None else f"{row['gap_closed']:.1%}"


def _short(tokens: float) -> str:
    """Tokens with at most four digits: 4,096, 500 k, 2 M, 95.96 M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= 10 * factor or (tokens >= factor and tokens % factor == 0):
            return f"{tokens / factor:.4g} {unit}"
    return f"{tokens:,.0f}"
