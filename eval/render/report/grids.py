"""How capacity and objective change the figures: percentiles against capacity, and heat maps over capacity × ξ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from eval.render.looks import compact, fitted, heat_map, ink, look, percent, tokens_axis
from eval.render.report.labels import label, label_ends, name_width, short
from eval.render.report.rows import Row, Variant
from eval.render.report.scene import BASELINE, OPTIMUM, Missing, Scene

Grid = NDArray[np.float64]  # a line for each capacity, a column for each ξ
_COLUMNS = 4
_TITLE = 7.8  # size of the names above maps
_ROOM = 0.24  # share of the axis of capacities that a number on it needs


def percentiles_by_capacity(scene: Scene) -> Figure:
    """p50, p90, p95 and p99 at the chosen ξ, a line for each policy.

    Raises:
        Missing: there is one capacity only.
    """
    if len(scene.capacities) < 2:
        raise Missing("one capacity only: run `simulate --capacity` with two or more")
    names = max((name_width(variant) for variant in scene.mains), default=0.0)  # inches beside a panel
    left, panel, between, right = 0.66, 1.95, max(names, 0.75) + 0.7, max(names, 0.75) + 0.25
    width = left + 2 * panel + between + right
    figure = Figure(figsize=(width, 5.4))
    panels = figure.subplots(2, 2)
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, bottom=0.085, top=0.95, wspace=between / panel, hspace=0.33
    )
    for panel, name in zip(panels.flat, ("p50", "p90", "p95", "p99"), strict=True):
        _percentile(panel, scene, name)
    return figure


def _percentile(axes: Axes, scene: Scene, name: str) -> None:
    ends = []
    for variant in scene.mains:
        rows = [row for size in scene.capacities if (row := scene.at(variant, size, scene.threshold)) is not None]
        if not rows:
            continue
        style = look(variant.policy)
        values = [float(getattr(row.outcome, name)) for row in rows]
        if scene.latency is not None:
            values = [scene.latency.ms(value) for value in values]
        axes.plot(
            [row.cell.capacity for row in rows], values, marker=style.marker, markersize=2.6,
            color=style.colour, linestyle=style.dash, linewidth=style.width, zorder=style.layer,
        )  # fmt: skip
        if rows[-1].cell.capacity == scene.capacities[-1]:
            ends.append((variant, values[-1], short(variant)))
    axes.set_xscale("log")
    axes.set_xlim(scene.capacities[0] * 0.97, scene.capacities[-1])
    axes.margins(y=0.08)
    axes.set_title(name)
    axes.xaxis.set_major_locator(FixedLocator(scene.capacities))
    axes.xaxis.set_minor_locator(NullLocator())
    named = _apart(scene.capacities)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: compact(round(value)) if round(value) in named else "")
    )
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if scene.latency:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    else:
        tokens_axis(axes.yaxis)
    axes.set_xlabel("capacity (tokens)")
    axes.set_ylabel("TTFT (ms)" if scene.latency else "uncached tokens")
    for line in axes.get_lines():
        line.set_clip_on(False)
    label_ends(axes, ends)


def _apart(capacities: Sequence[int]) -> list[int]:
    """The capacities that an axis has room to name: the last, the first, and of others those far from both sides."""
    first, last = capacities[0], capacities[-1]
    room = _ROOM * math.log(last / first)
    named = [first]
    for size in capacities[1:-1]:
        if math.log(size / named[-1]) >= room and math.log(last / size) >= room:
            named.append(size)
    return [*named, last]


def heat_maps(scene: Scene, shown: Literal["saved", "gap"]) -> Figure:
    """Share of lru's TEL that is saved, or of the gap to the optimum that is closed, a map for each policy.

    Raises:
        Missing: no cell has the figure.
    """
    value: Callable[[Row], float | None] = scene.tel_saved if shown == "saved" else scene.gap_closed
    trivial = (BASELINE,) if shown == "saved" else (BASELINE, OPTIMUM)
    maps: dict[Variant, Grid] = {}
    for variant in scene.drawn:
        if variant.policy in trivial:
            continue
        grid = [
            [math.nan if row is None or (share := value(row)) is None else share for row in line]
            for line in ([scene.at(variant, size, xi) for xi in scene.thresholds] for size in scene.capacities)
        ]
        if not np.isnan(grid).all():
            maps[variant] = np.array(grid)
    if not maps:
        if all(variant.policy in trivial for variant in scene.drawn):
            raise Missing(f"every policy here has the figures of {' or '.join(trivial)} in every cell")
        why = {
            "saved": "there are no cells of lru to compare with, or none of its requests is over ξ",
            "gap": "gap_closed is null in every cell: at these sizes hindsight does no better than lru",
        }
        raise Missing(why[shown])
    widest = max(float(np.nanmax(np.abs(grid))) for grid in maps.values()) or 1.0
    return _draw_maps(scene, maps, CenteredNorm(0, min(widest, 1.0) if shown == "saved" else 1.0))


def _draw_maps(scene: Scene, maps: dict[Variant, Grid], norm: CenteredNorm) -> Figure:
    columns = min(_COLUMNS, len(maps))
    lines = math.ceil(len(maps) / columns)
    map_height, gap, top, bottom = 0.28 * len(scene.capacities) + 0.04, 0.4, 0.27, 0.45  # inches
    height = lines * map_height + (lines - 1) * gap + top + bottom
    figure = Figure(figsize=(7.2 * max(columns, 2) / _COLUMNS, height))
    panels = figure.subplots(lines, columns, squeeze=False)
    width = figure.get_figwidth()
    figure.subplots_adjust(
        left=0.55 / width,
        right=1 - 0.05 / width,
        bottom=bottom / height,
        top=1 - top / height,
        wspace=0.08,
        hspace=gap / map_height,
    )
    for number, (variant, grid) in enumerate(maps.items()):
        axes = panels[number // columns, number % columns]
        _map(axes, scene, grid, norm)
        name = label(variant, scene.drawn)
        size = fitted(name, axes.get_position().width * width, _TITLE, "bold")
        axes.set_title(name, color=ink(variant.policy), fontsize=size)
        if number % columns:
            axes.set_yticklabels([])
        if number + columns < len(maps):
            axes.set_xticklabels([])
    for axes in panels.flat[len(maps) :]:
        axes.axis("off")
    figure.supxlabel("ξ (tokens)", fontsize=8, y=0.06 / height)
    figure.supylabel("capacity (tokens)", fontsize=8, x=0.06 / width)
    return figure


def _map(axes: Axes, scene: Scene, grid: Grid, norm: CenteredNorm) -> None:
    texts = [
        ["–" if math.isnan(share) else percent(share, digits=int(abs(share) < 0.9995)) for share in row] for row in grid
    ]
    heat_map(axes, grid, texts, norm, "BrBG", fontsize=7, origin="lower")
    axes.set_xticks(range(len(scene.thresholds)), [compact(xi) for xi in scene.thresholds], fontsize=7)
    axes.set_yticks(range(len(scene.capacities)), [compact(size) for size in scene.capacities], fontsize=7)
