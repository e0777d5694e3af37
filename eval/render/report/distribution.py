"""How uncached tokens or TTFT are distributed over the requests of the chosen cell, and the change against lru."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from eval.render.looks import DOTTED, MUTED, compact, fitted, ink, look, nines_axis, percent, percent_axis, tokens_axis
from eval.render.report.labels import font_weight, short
from eval.render.report.rows import Row
from eval.render.report.scene import BASELINE, Missing, Scene

TAIL = (0.90, 0.95, 0.99, 0.999)
_STEPS = 600
_NAME_WIDTH = 0.9  # inches beside a line of the key


class Curve(NamedTuple):
    """The distribution of a cell's requests."""

    row: Row
    values: NDArray[np.float64]  # uncached tokens or TTFT in ms of each request, rising


def distribution(scene: Scene) -> Figure:
    """The CDF of the chosen cell and its tail, enlarged. Beside them names, p50 and p95.

    Raises:
        Missing: no requests were kept.
    """
    curves = _curves(scene)
    figure = Figure(figsize=(7.2, 3.0))
    whole, tail = figure.subplots(1, 2, width_ratios=(1, 1.25))
    figure.subplots_adjust(left=0.078, right=0.69, bottom=0.15, top=0.9, wspace=0.24)
    shares = np.linspace(0, 1, _STEPS)
    tails = 1 - np.geomspace(1 - TAIL[0], 1 - TAIL[-1], _STEPS)
    for curve in curves:
        _draw(whole, curve, shares, shares)
        _draw(tail, curve, tails, -np.log10(1 - tails))

    right = max(1.0, *(float(np.quantile(curve.values, 0.95)) for curve in curves))
    whole.set(xlim=(0, right), ylim=(0, 1.0), title="all requests", ylabel="share of requests")
    whole.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share, digits=0)))
    whole.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    ends = [float(np.quantile(curve.values, share)) for curve in curves for share in (TAIL[0], TAIL[-1])]
    tail.set_xscale("log")
    tail.set(xlim=(max(min(ends), 1.0) * 0.96, max(*ends, 2.0) * 1.03), ylim=(1, 3), title="the tail, enlarged")
    nines_axis(tail.yaxis, TAIL)
    whole.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    tail.xaxis.set_major_locator(LogLocator(10, (1, 2, 3, 5)))
    tail.xaxis.set_minor_locator(NullLocator())
    for axes in (whole, tail):
        if scene.latency:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        else:
            tokens_axis(axes.xaxis)
        axes.set_xlabel(_quantity(scene))
        axes.axvline(scene.objective, **DOTTED)
    name = f"SLO {scene.objective:,.0f} ms" if scene.latency else f"ξ = {compact(scene.threshold)}"
    is_right = scene.objective > 0.6 * right
    whole.annotate(
        name, (scene.objective, 0.03), xytext=(-4 if is_right else 4, 0), textcoords="offset points", fontsize=7.5,
        ha="right" if is_right else "left",
    )  # fmt: skip
    _key(figure, curves, [[f"{np.quantile(curve.values, share):,.0f}" for share in (0.5, 0.95)] for curve in curves])
    return figure


def change_by_percentile(scene: Scene) -> Figure:
    """What each percentile gained or lost against lru, p50 to p99.9.

    Raises:
        Missing: no requests were kept, or none of lru.
    """
    curves = _curves(scene)
    base = next((curve for curve in curves if curve.row.cell.policy == BASELINE), None)
    if base is None:
        raise Missing("no requests of lru to compare with: run `simulate --policy lru --per-request` into this folder")
    shares = 1 - np.geomspace(0.5, 1 - TAIL[-1], 160)
    before = np.quantile(base.values, shares)
    if before[0] <= 0:
        raise Missing("the median of lru is 0, so that changes against it cannot be stated as shares")
    figure = Figure(figsize=(7.2, 3.1))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.69, bottom=0.15, top=0.95)
    for curve in curves:
        style = look(curve.row.cell.policy)
        change = np.quantile(curve.values, shares) / before - 1
        axes.plot(-np.log10(1 - shares), change, color=style.colour, linestyle=style.dash, linewidth=style.width,
                  zorder=style.layer)  # fmt: skip
    axes.set_xlim(-np.log10(0.5), 3)
    nines_axis(axes.xaxis, (0.5, 0.75, *TAIL))
    percent_axis(axes.yaxis)
    axes.set(xlabel="percentile of requests", ylabel=f"{_quantity(scene, unit=False)} against lru")
    _mark_objective(axes, scene, base)
    read_off = [
        [np.quantile(c.values, share) / np.quantile(base.values, share) - 1 for share in (0.5, 0.95)] for c in curves
    ]
    _key(figure, curves, [[percent(float(share), sign=True) for share in pair] for pair in read_off])
    return figure


def _mark_objective(axes: Axes, scene: Scene, base: Curve) -> None:
    within = float(np.mean(base.values <= scene.objective))
    if not 0.5 < within < TAIL[-1]:
        return
    place = -np.log10(1 - within)
    axes.axvline(place, **DOTTED)
    is_right = within > TAIL[2]  # p99
    axes.annotate(
        f"ξ = {compact(scene.threshold)} under lru", (place, 0.02), xycoords=("data", "axes fraction"),
        xytext=(-4 if is_right else 4, 0), textcoords="offset points", fontsize=7.5,
        ha="right" if is_right else "left",
    )  # fmt: skip


def _curves(scene: Scene) -> list[Curve]:
    curves = []
    for row in scene.main_rows:
        if (requests := scene.requests(row)) is None:
            continue
        values = np.sort(requests.uncached).astype(np.float64)
        if scene.latency is not None:
            values = scene.latency.beta + scene.latency.alpha * values
        curves.append(Curve(row, values))
    if not curves:
        raise Missing("no per-request data: run `simulate` with --per-request")
    return curves


def _draw(axes: Axes, curve: Curve, shares: NDArray[np.float64], heights: NDArray[np.float64]) -> None:
    style = look(curve.row.cell.policy)
    axes.plot(
        np.quantile(curve.values, shares), heights,
        color=style.colour, linestyle=style.dash, linewidth=0.8 * style.width, zorder=style.layer,
    )  # fmt: skip


def _key(figure: Figure, curves: Sequence[Curve], numbers: Sequence[Sequence[str]]) -> None:
    """Names with their line and what p50 and p95 are, in the order of p95, longest first."""
    ordered = sorted(
        zip(curves, numbers, strict=True), key=lambda one: float(np.quantile(one[0].values, 0.95)), reverse=True
    )
    axes = figure.add_axes((0.71, 0.12, 0.285, 0.8))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    step, columns = min(0.1, 1 / (len(ordered) + 1)), (0.75, 1.0)
    for x, head in zip(columns, ("p50", "p95"), strict=True):
        axes.text(x, 1, head, fontsize=7, color=MUTED, ha="right", va="center")
    for number, (curve, texts) in enumerate(ordered, start=1):
        variant, y = curve.row.variant, 1 - step * number
        style, bold = look(variant.policy), font_weight(variant)
        axes.plot([0, 0.09], [y, y], color=style.colour, linestyle=style.dash, linewidth=style.width)
        name = short(variant)
        size = fitted(name, _NAME_WIDTH, 7, bold)
        axes.text(0.12, y, name, fontsize=size, color=ink(variant.policy), va="center", fontweight=bold)
        for x, text in zip(columns, texts, strict=True):
            axes.text(x, y, text, fontsize=7, ha="right", va="center", fontweight=bold)


def _quantity(scene: Scene, unit: bool = True) -> str:
    name, of = ("TTFT", " (ms)") if scene.latency else ("uncached tokens", " a request")
    return name + (of if unit else "")
