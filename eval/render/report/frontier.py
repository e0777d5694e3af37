"""The median–tail frontier of the chosen cell: what each policy does to the tail, and what the median pays for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from eval.render.looks import ACCENT, MUTED, ink, look, percent_axis
from eval.render.report.labels import font_weight, label
from eval.render.report.rows import Variant
from eval.render.report.scene import ARMS, BASELINE, Missing, Scene, is_online


class Offset(NamedTuple):
    """Where a name stands beside its point, in points of print."""

    x: float
    y: float
    side: Literal["left", "center", "right"]  # of the name that is at the offset


_OFFSETS = [
    Offset(distance * x, distance * y, ("center", "left", "right")[x])
    for distance in (6, 12, 20, 30, 42)
    for x, y in ((1, 0), (-1, 0), (0, 1.4), (0, -1.4), (1, 1), (1, -1), (-1, 1), (-1, -1))
]

_NEAR = 9
"""Points of print up to which a name needs no line to its point."""


class Point(NamedTuple):
    """A variant, and what it changes against lru: −0.1 is a tenth less."""

    variant: Variant
    x: float  # change of p50 against lru
    y: float  # change of the tail


def frontier(scene: Scene) -> Figure:
    """p50 against p95 and against TEL, each as a change against lru; the weights of a policy are joined by a line.

    Oracles are far away, so that the policies that a server can run are shown again, enlarged, in a second column.

    Raises:
        Missing: there is no lru to compare with, or its median is 0.
    """
    lru = scene.chosen(Variant(BASELINE, None, None))
    if lru is None:
        raise Missing("no cells of lru to compare with: run `simulate --policy lru`")
    wait: Callable[[float], float] = float if scene.latency is None else scene.latency.ms
    unit = "" if scene.latency is None else "TTFT, "
    if not wait(lru.outcome.p50):
        raise Missing("the median of lru is 0, so that changes against it cannot be stated as shares")
    rows = [row for row in scene.place(scene.capacity, scene.threshold) if row.variant not in scene.twins]
    figure = Figure(figsize=(7.2, 5.6))
    FigureCanvasAgg(figure)
    oracles = any(not is_online(row.variant) for row in rows)
    panels = figure.subplots(2, 2 if oracles else 1, squeeze=False)
    figure.subplots_adjust(left=0.115, right=0.97, bottom=0.085, top=0.95, wspace=0.34, hspace=0.24)
    for line, (name, title) in enumerate((("tel", "TEL"), ("p95", f"{unit}p95"))):
        points = [
            Point(row.variant, x, y)
            for row in rows
            if (x := scene.change(row, "p50", wait)) is not None
            and (y := scene.change(row, name, float if name == "tel" else wait)) is not None
        ]
        near = [point for point in points if is_online(point.variant)]
        for column, shown in enumerate((points, near) if oracles else (near,)):
            axes = panels[line, column]
            if shown:
                _scatter(axes, scene, shown, named=_named(scene, near=bool(column) or not oracles))
            else:
                axes.text(0.5, 0.5, f"{title} of lru is 0", transform=axes.transAxes, ha="center", color=MUTED)
                axes.set(xticks=[], yticks=[])
            axes.set_ylabel(f"{title} against lru")
            if line == 0:
                axes.set_title("all policies" if shown is points else "what a server can run" + ", enlarged" * oracles)
            else:
                axes.set_xlabel(f"{unit}p50 against lru")
    return figure


def _named(scene: Scene, near: bool) -> list[Variant]:
    """Variants that there is room to name: from afar oracles and arms; near by all, or of many only the main ones."""
    if not near:
        arms = [scene.arm(arm) for arm in ARMS]
        names = [BASELINE if arm is None else arm.policy for arm in arms]  # without stock's, the simulator's lru
        return [variant for variant in scene.mains if variant.policy in names or not is_online(variant)]
    few = sum(is_online(variant) for variant in scene.drawn) <= 10
    return [variant for variant in scene.drawn if few or variant in scene.mains or variant.policy == "tlru"]


def _scatter(axes: Axes, scene: Scene, points: Sequence[Point], named: Sequence[Variant]) -> None:
    for policy, group in groupby(points, key=lambda point: point.variant.policy):
        same, style = list(group), look(policy)
        axes.plot(
            [point.x for point in same], [point.y for point in same],
            color=style.colour, linewidth=0.9, zorder=style.layer + 3,
            marker=style.marker, markersize=9 if style.marker == "*" else 6, markeredgecolor="white",
            markeredgewidth=0.4,
        )  # fmt: skip
    axes.margins(0.16)
    axes.autoscale_view()
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.axhline(0, color=MUTED, linewidth=0.7, zorder=1)
    axes.axvline(0, color=MUTED, linewidth=0.7, zorder=1)
    axes.fill_between([left, 0], bottom, 0, color=ACCENT, alpha=0.06, linewidth=0, zorder=0)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    percent_axis(axes.xaxis, most=5)
    percent_axis(axes.yaxis)
    if left < -0.3 * (right - left):
        axes.text(0.02, 0.025, "tail and median better", transform=axes.transAxes, fontsize=7, color=ACCENT)
    shown = [point for point in points if point.variant in named]
    _place_names(axes, points, [(point, _name(point, shown)) for point in shown])


def _name(point: Point, points: Sequence[Point]) -> str:
    """The whole name for the first variant of a policy, only the weight for the others."""
    variant, variants = point.variant, [other.variant for other in points]
    same = [other for other in variants if other.policy == variant.policy]
    if variant == same[0] or len({other.weight for other in same}) < len(same):
        return label(variant, variants)
    return f"w = {variant.w}"


def _place_names(axes: Axes, points: Sequence[Point], named: Sequence[tuple[Point, str]]) -> None:
    """Put each name beside its point, where it covers the fewest other names and points, nearer places first."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    canvas: Any = figure.canvas  # of Agg, so that the size of a text is known before it is drawn
    renderer, pixels = canvas.get_renderer(), figure.dpi / 72  # pixels a point of print
    inside = axes.get_window_extent(renderer)
    at = {point: axes.transData.transform((point.x, point.y)) for point in points}
    taken = [Bbox.from_bounds(x - 3 * pixels, y - 3 * pixels, 6 * pixels, 6 * pixels) for x, y in at.values()]
    taken += [text.get_window_extent(renderer) for text in axes.texts]
    for point, text in sorted(named, key=lambda one: -look(one[0].variant.policy).layer):
        style: dict[str, Any] = {
            "fontsize": 7, "color": ink(point.variant.policy), "fontweight": font_weight(point.variant), "va": "center"
        }  # fmt: skip
        sample = axes.text(0, 0, text, **style)
        size = sample.get_window_extent(renderer)
        sample.remove()
        boxes = [_box(at[point], size, offset, pixels) for offset in _OFFSETS]
        costs = [_cost(box, taken, inside) + 0.02 * rank for rank, box in enumerate(boxes)]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        offset = _OFFSETS[best]
        line = {"arrowstyle": "-", "color": "#9aa5b1", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text, (point.x, point.y), xytext=(offset.x, offset.y), textcoords="offset points", ha=offset.side,
            zorder=20, path_effects=[withStroke(linewidth=2, foreground="white")],
            arrowprops=line if max(abs(offset.x), abs(offset.y)) > _NEAR else None, **style,
        )  # fmt: skip


def _box(at: NDArray[np.float64], size: Bbox, offset: Offset, pixels: float) -> Bbox:
    left = float(at[0]) + offset.x * pixels - size.width * {"left": 0.0, "center": 0.5, "right": 1.0}[offset.side]
    return Bbox.from_bounds(left, float(at[1]) + offset.y * pixels - size.height / 2, size.width, size.height)


def _cost(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
    return float(sum(box.overlaps(other) for other in taken) + 4 * outside)
