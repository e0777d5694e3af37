"""The figure of `tune`: TEL against the median, as changes against stock lru, on the half that was not chosen by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from eval.arguments import weight_text
from eval.render.looks import INK, RC, look, percent_axis
from eval.simulate.cells import Cell, Outcome


@dataclass(frozen=True, slots=True)
class Setting:
    """A cell that was tried, and its outcomes: on the half to choose by, and on the half to expect from."""

    cell: Cell
    first: Outcome
    second: Outcome
    uncached: NDArray[np.int64]  # tokens of each request of the second half


def draw(settings: Sequence[Setting], chosen: Setting, path: Path, title: str) -> bool:
    """Write the figure as PNG. The first setting is stock lru; ``title`` says what the chosen one is.

    Returns whether there is one: not where TEL or median of stock is 0. A figure of an earlier run is removed.
    """
    stock, *others = settings
    path.unlink(missing_ok=True)
    if not stock.second.tel or not stock.second.p50:
        return False
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.6))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.1, right=0.97, bottom=0.14, top=0.96)
        lines = sorted({(one.cell.policy, one.cell.threshold) for one in others})
        shades = _shades(threshold for _, threshold in lines)
        for policy, threshold in lines:
            line = [one for one in others if (one.cell.policy, one.cell.threshold) == (policy, threshold)]
            line.sort(key=lambda one: -1.0 if one.cell.median_weight is None else one.cell.median_weight)
            x = [one.second.p50 / stock.second.p50 - 1 for one in line]
            y = [one.second.tel / stock.second.tel - 1 for one in line]
            style, shade = look(policy), shades[threshold]
            axes.plot(x, y, color=style.colour, alpha=shade, marker=style.marker, markersize=3.5,
                      linewidth=0.9, label=f"{policy}, ξ = {threshold:,}")  # fmt: skip
            axes.plot(x[0], y[0], color=style.colour, alpha=shade, marker=style.marker, markersize=6)
        place = (chosen.second.p50 / stock.second.p50 - 1, chosen.second.tel / stock.second.tel - 1)
        axes.plot(*place, marker="o", markersize=12, markerfacecolor="none", color=INK, linestyle="none",
                  label=f"{title}, w = {weight_text(chosen.cell.median_weight)}")  # fmt: skip
        axes.plot(0, 0, marker="s", color=INK, markersize=4)
        axes.annotate("stock lru", (0, 0), xytext=(5, 3), textcoords="offset points", fontsize=7)
        percent_axis(axes.xaxis)
        percent_axis(axes.yaxis)
        axes.set(xlabel="median uncached tokens against stock lru", ylabel="TEL against stock lru")
        axes.legend(frameon=False, fontsize=7, title="large marks: the least w", title_fontsize=7)
        figure.savefig(path, dpi=220)
    return True


def _shades(thresholds: Iterable[int]) -> dict[int, float]:
    """Opacity of the line of each ξ: the larger, the darker."""
    known = sorted(set(thresholds))
    return {threshold: 0.25 + 0.75 * place / max(len(known) - 1, 1) for place, threshold in enumerate(known)}
