"""Tokens that each phase evicted over time in the chosen cell."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from eval.render.looks import MUTED, PHASES, ink, percent, tokens_axis
from eval.render.report.labels import label
from eval.render.report.rows import Requests
from eval.render.report.scene import Missing, Scene

_BINS = {1.0: "second", 10.0: "10 s", 60.0: "minute", 600.0: "10 min", 3600.0: "hour", 86400.0: "day"}
_UNITS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "days"}


class Binned(NamedTuple):
    """Tokens that each phase evicted, by time."""

    times: NDArray[np.float64]  # middle of each bin, in s
    tel_safe: NDArray[np.float64]  # tokens
    lru: NDArray[np.float64]


def timeline(scene: Scene) -> Figure:
    """A panel for each policy that has a TEL-safe phase, with what both phases took.

    Raises:
        Missing: no requests were kept, their arrival times are all the same, or no phase was told.
    """
    kept = [(row, requests) for row in scene.main_rows if (requests := scene.requests(row)) is not None]
    if not kept:
        raise Missing("no per-request data: run `simulate` with --per-request")
    told = [(row, requests) for row, requests in kept if requests.evicted_tel_safe.any()]
    if not told:
        raise Missing("nothing was evicted as TEL-safe here: the pool is large enough, or no such policy was run")
    start = min(float(requests.arrival_s[0]) for _, requests in told)
    span = max(float(requests.arrival_s[-1]) for _, requests in told) - start
    if span <= 0:
        raise Missing("all requests arrive at the same time")
    width = next((width for width in _BINS if span / width <= 240), 86400.0)
    columns = min(2, len(told))
    lines = -(-len(told) // columns)
    height = 1.25 * lines + 0.85
    figure = Figure(figsize=(3.6 * columns, height))
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(
        left=0.62 / (3.6 * columns), right=0.985, bottom=0.42 / height, top=1 - 0.48 / height, wspace=0.07, hspace=0.32
    )
    unit = max(seconds for seconds in _UNITS if seconds <= max(span / 3, 1))
    for number, (row, requests) in enumerate(told):
        axes = panels[number // columns, number % columns]
        times, tel_safe, lru = _binned(requests, start, width)
        axes.stackplot(times / unit, tel_safe, lru, colors=[PHASES["tel_safe"], PHASES["lru"]], linewidth=0)
        axes.set_title(label(row.variant), color=ink(row.cell.policy), fontsize=7.8)
        share = requests.evicted_tel_safe.sum() / (requests.evicted_tel_safe.sum() + requests.evicted_lru.sum())
        axes.set_title(
            f"{percent(share, digits=0)} TEL-safe", loc="right", fontsize=7, fontweight="normal", color=MUTED
        )
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        tokens_axis(axes.yaxis)
        axes.margins(x=0, y=0.02)
        axes.set_ylim(bottom=0)
    for axes in panels.flat[len(told) :]:
        axes.axis("off")
    figure.supxlabel(f"time in the trace ({_UNITS[unit]})", fontsize=8, y=0.05 / height)
    figure.supylabel(f"tokens evicted per {_BINS[width]}", fontsize=8, x=0.05 / (3.6 * columns))
    for inches, phase, text in ((0.62, "tel_safe", "TEL-safe tails"), (1.75, "lru", "protected, least recently used")):
        place: dict[str, Any] = {"y": 1 - 0.12 / height, "va": "center_baseline"}
        figure.text(inches / (3.6 * columns), s="■", color=PHASES[phase], fontsize=10, **place)
        figure.text((inches + 0.14) / (3.6 * columns), s=text, fontsize=7.5, **place)
    return figure


def _binned(requests: Requests, start: float, width: float) -> Binned:
    bins = ((requests.arrival_s - start) // width).astype(np.int64)
    tel_safe, lru = np.zeros(bins[-1] + 1), np.zeros(bins[-1] + 1)
    np.add.at(tel_safe, bins, requests.evicted_tel_safe)
    np.add.at(lru, bins, requests.evicted_lru)
    return Binned((np.arange(len(lru), dtype=np.float64) + 0.5) * width, tel_safe, lru)
