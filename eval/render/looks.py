"""How figures look: one colour for each policy, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize, to_hex, to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from eval.caches.policies import ORACLES

INK, MUTED, GRID = "#1f2933", "#6b7580", "#e6e9ed"
ACCENT = "#0b7a75"
"""The project's teal."""

RC: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": "#9aa5b1",
    "ytick.color": "#9aa5b1",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.color": INK,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a $ in the name of a trace or an arm is a $
    "svg.fonttype": "path",
    "svg.hashsalt": "radix-tlru",  # the same figure is the same bytes
}
"""Settings of matplotlib for every figure."""

DOTTED: Any = {"color": INK, "linewidth": 0.8, "linestyle": (0, (1, 2))}
"""A line at the objective."""

_ON_PIXELS = 1.08
"""How much wider a text is on a screen than its outlines are, at most."""

PHASES = {"tel_safe": "#8fb8de", "lru": "#d3d8df"}
"""Colours of the two phases of T-LRU."""


@dataclass(frozen=True, slots=True)
class Look:
    """The line and the marker of a policy."""

    colour: str
    marker: str
    dash: Any = "-"  # a line style of matplotlib
    width: float = 1.2  # points
    layer: float = 3.0  # a higher one is drawn over a lower one


# Okabe and Ito's colours, which colour-blind readers tell apart, with teal for tlru. Oracles are grey and dashed: no
# server can run them.
_LOOKS = {
    "lru": Look("#1f2933", "o", width=1.3, layer=4),
    "sglang-lru": Look("#1f2933", "s", (0, (1, 1.6)), width=1.3, layer=4),
    "sglang-tlru": Look("#d55e00", "s", width=1.5, layer=5),
    "sglang-slru": Look("#cc79a7", "v"),
    "sglang-lfu": Look("#e69f00", "^"),
    "sglang-priority": Look("#b8860b", "P"),
    "threshold-lru": Look("#8a6d3b", "h", (0, (4, 1.5))),
    "vllm": Look("#0072b2", "<"),
    "trtllm": Look("#56b4e9", ">"),
    "trtllm-retention": Look("#56b4e9", ">", (0, (3, 1.5))),
    "slru": Look("#cc79a7", "v", (0, (3, 1.5))),
    "lfu": Look("#e69f00", "^", (0, (3, 1.5))),
    "hpt": Look("#f0a35e", "1"),
    "arc": Look("#009e73", "o"),
    "s3-fifo": Look("#009e73", "s", (0, (3, 1.5))),
    "sieve": Look("#009e73", "D", (0, (1, 1.2))),
    "workload-aware": Look("#a44a3f", "p"),
    "continuum": Look("#a44a3f", "h", (0, (3, 1.5))),
    "saecache": Look("#a44a3f", "8", (0, (1, 1.2))),
    "tlru": Look(ACCENT, "D", width=2.4, layer=7),
    "etlru": Look("#6a3d9a", "p", width=2.0, layer=6),
    "etlru-given": Look("#9a7fc0", "p", (0, (3, 1.5)), layer=3),
    "tail-belady": Look("#6b7580", "*", (0, (5, 1.8)), width=1.5, layer=3),
    "tail-belady-ends": Look("#8b95a1", "*", (0, (1, 1.2)), layer=3),
    "belady": Look("#8b95a1", "X", (0, (3, 1.5)), layer=2),
    "length-aware": Look("#a0a9b4", "d", (0, (3, 1.5, 1, 1.5)), layer=2),
    "end-aware": Look("#a0a9b4", "H", (0, (2, 1.2)), layer=2),
}


def look(policy: str) -> Look:
    """The look of a policy, the same in every figure."""
    if policy in _LOOKS:
        return _LOOKS[policy]
    simulated = _LOOKS.get(policy.removesuffix("-python").removeprefix("real-"))
    if simulated is not None:  # the same policy through the real cache
        return Look(simulated.colour, simulated.marker, (0, (1, 1.2)), simulated.width, simulated.layer)
    return Look("#a0a9b4" if policy in ORACLES else "#795548", ".")


def ink(policy: str) -> str:
    """The colour of a policy's name: as dark as small text needs to be."""
    red, green, blue = to_rgb(look(policy).colour)
    lightness = 0.3 * red + 0.59 * green + 0.11 * blue
    darker = min(1.0, 0.42 / max(lightness, 1e-6))
    return to_hex((red * darker, green * darker, blue * darker))


def compact(tokens: float) -> str:
    """A number of tokens: 2 M, 64 k, 8,192; short where that loses nothing."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if _is_short(tokens, factor):
            return f"{tokens / factor:.10g}\N{NO-BREAK SPACE}{unit}"
    return f"{tokens:,.10g}" if tokens == int(tokens) else f"{tokens:,.1f}"


def percent(share: float | None, sign: bool = False, digits: int = 1) -> str:
    """0.0824 → 8.2 %; an en dash for None."""
    if share is None:
        return "–"
    text = f"{share * 100:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return text.replace("-", "−") + "\N{NARROW NO-BREAK SPACE}%"


def fitted(text: str, inches: float, size: float, weight: Literal["normal", "bold"] = "normal") -> float:
    """The size of print at which a text is at most so wide, and ``size`` where that is less."""
    return min(size, size * inches / width_of(text, size, weight))


def width_of(text: str, size: float, weight: Literal["normal", "bold"] = "normal") -> float:
    """Inches that a text is wide in print of this size, where its letters are set on whole pixels."""
    font = FontProperties(weight=weight)
    return _ON_PIXELS * float(TextPath((0, 0), text, size=size, prop=font).get_extents().width) / 72


def percent_axis(axis: Axis, most: int = 6) -> None:
    """Ticks of an axis of relative changes, at most ``most`` of them."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: _tick(round(share * 100, 6))))


def tokens_axis(axis: Axis) -> None:
    """Ticks of an axis of tokens, all in one unit: the largest that loses nothing of any of them."""
    axis.set_major_formatter(_InOneUnit())


class _InOneUnit(Formatter):
    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        ticks = [round(float(value), 1) for value in values]
        for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if any(ticks) and all(tick == 0 or _is_short(tick, factor) for tick in ticks):
                return [f"{tick / factor:,.10g}" + (f"\N{NO-BREAK SPACE}{unit}" if tick else "") for tick in ticks]
        return [f"{tick:,.10g}" for tick in ticks]


def _is_short(tokens: float, factor: float) -> bool:
    """Whether a number loses nothing in this unit with one digit behind the point."""
    return abs(tokens) >= factor and round(tokens / factor, 1) * factor == tokens


def nines_axis(axis: Axis, shares: Sequence[float]) -> None:
    """Ticks at these percentiles of an axis of −log10(1 − share), which gives p90 to p99 the room of p99 to p99.9."""
    axis.set_major_locator(FixedLocator([-np.log10(1 - share) for share in shares]))
    axis.set_major_formatter(FuncFormatter(lambda nines, _: f"p{100 - 100 * 10**-nines:g}"))
    axis.set_minor_locator(NullLocator())


def heat_map(
    axes: Axes,
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    norm: Normalize,
    colours: str,
    fontsize: float,
    origin: Literal["upper", "lower"] = "upper",
) -> None:
    """Fields of these colours with a text in each; nan: without a colour."""
    axes.imshow(values, cmap=colormaps[colours], norm=norm, aspect="auto", origin=origin, alpha=0.9)
    for (line, column), value in np.ndenumerate(values):
        dark = not math.isnan(value) and abs(float(norm(value)) - 0.5) > 0.3
        text = texts[line][column]
        axes.text(column, line, text, ha="center", va="center", fontsize=fontsize, color="white" if dark else INK)
    axes.tick_params(length=0)
    axes.grid(False)
    for edge in range(1, values.shape[1]):
        axes.axvline(edge - 0.5, color="white", linewidth=1.2)
    for edge in range(1, values.shape[0]):
        axes.axhline(edge - 0.5, color="white", linewidth=1.2)
    axes.spines[:].set_visible(False)


def _tick(number: float) -> str:
    return f"{number:{'+' if number else ''},.10g}".replace("-", "−") + "\N{NARROW NO-BREAK SPACE}%"


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions from 0 to 1, at least ``gap`` apart and near to the wanted ones, in the same order.

    Neighbours that are too close are merged into a block around their mean, and blocks likewise, until none overlap.
    """
    gap = min(gap, 1 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _bottom(blocks[-1], wanted, gap) < (
            _bottom(blocks[-2], wanted, gap) + gap * len(blocks[-2])
        ):
            last = blocks.pop()
            blocks[-1] += last
    placed = [0.0] * len(wanted)
    for block in blocks:
        bottom = _bottom(block, wanted, gap)
        for number, index in enumerate(block):
            placed[index] = bottom + gap * number
    return placed


def _bottom(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    middle = sum(wanted[index] for index in block) / len(block)
    return min(max(middle - gap * (len(block) - 1) / 2, 0.0), 1.0 - gap * (len(block) - 1))
