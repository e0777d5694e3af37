"""Cells as a table to read: policies side by side, what each does to the tail and what the median pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table

from eval.arguments import weight_text
from eval.simulate.grid import is_own_weight
from eval.terminal import table

_BASELINES = ("lru", "sglang-lru", "sglang-lru-python")
"""Policies that a block is compared with: the first of these that it has."""


class _Size(NamedTuple):
    """What the cells of a block have in common. Lengths in tokens."""

    capacity: int
    threshold: int
    page_size: int
    replicas: int
    routing: str  # empty: one cache


def cells_table(rows: Sequence[dict[str, Any]]) -> Group:
    """A block for each size and objective. Changes are against the baseline of the block."""
    return Group(*(_block(size, list(group)) for size, group in groupby(sorted(rows, key=_size), key=_size)))


def _block(size: _Size, rows: list[dict[str, Any]]) -> Table:
    base = min(
        (row for row in rows if row["policy"] in _BASELINES),
        key=lambda row: _BASELINES.index(row["policy"]),
        default=None,
    )
    held = f"{short(size.capacity)} tokens of cache"
    if size.routing:
        held = f"{size.replicas} × {held}, {size.routing}"
    title = f"{held}, ξ = {size.threshold:,}, page {size.page_size}; uncached tokens of a request"
    if base is not None and len(rows) > 1:
        title += f", changes against {base['policy']}"
    result = table(title, ("policy", "hit", "p50", "", "p95", "", "p99", "TEL", "", "over ξ", "gap closed"))
    for row in rows:
        result.add_row(_name(row, rows), *_figures(row, base))
    return result


def label(policy: str, weight: float | None) -> str:
    """A policy and its weight w, unless that is its own."""
    return policy if is_own_weight(policy, weight) else f"{policy} w={weight_text(weight)}"


def _size(row: dict[str, Any]) -> _Size:
    fleet = (row.get("replicas", 1), row.get("routing") or "")  # rows from before there were replicas have neither
    return _Size(row["capacity"], row["threshold"], row["page_size"], *fleet)


def _name(row: dict[str, Any], block: Sequence[dict[str, Any]]) -> str:
    """A policy and its settings; Q̂ where the block has the policy with several."""
    name, estimate = label(row["policy"], row["median_weight"]), row["next_prompt_estimate"]
    if len({other["next_prompt_estimate"] for other in block if other["policy"] == row["policy"]}) == 1:
        return name
    return f"{name} Q̂ learned" if estimate is None else f"{name} Q̂={estimate:,}"


def _figures(row: dict[str, Any], base: dict[str, Any] | None) -> Iterator[str]:
    yield f"{row['hit_ratio']:.1%}"
    for figure in ("p50", "p95", "p99", "tel"):
        yield short(row[figure]) if figure == "tel" else f"{row[figure]:,.0f}"
        if figure != "p99":
            yield f"{row[figure] / base[figure] - 1:+.1%}" if base and row is not base and base[figure] else ""
    yield f"{row['violations']:,}"
    yield "–" if row["gap_closed"] is None else f"{row['gap_closed']:.1%}"


def short(tokens: float) -> str:
    """Tokens with at most four digits: 4,096, 500 k, 2 M, 6.178 M, 95.96 M."""
    for unit, factor, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if tokens >= least or (tokens >= factor and tokens % factor == 0):
            return f"{float(f'{tokens / factor:.4g}'):g} {unit}"
    return f"{tokens:,.0f}"
