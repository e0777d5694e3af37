"""How things look: one colour a policy in every figure, numbers as people read them, labels beside what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import FuncFormatter, MaxNLocator

from eval.caches.policies import ORACLES
from eval.render.report.rows import Variant

__all__ = [
    "INK",
    "MUTED",
    "PHASES",
    "RC",
    "Look",
    "compact",
    "ink",
    "label",
    "label_ends",
    "look",
    "percent",
    "percent_axis",
    "short",
    "spread",
    "weight",
]

INK, MUTED, GRID = "#1f2933", "#6b7580", "#e6e9ed"
OURS = "#0b7a75"

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
    "svg.fonttype": "path",
    "svg.hashsalt": "radix-tlru",  # the same figure is the same bytes
}

PHASES = {"tel_safe": "#8fb8de", "lru": "#d3d8df"}
"""What each phase of T-LRU evicted."""


@dataclass(frozen=True, slots=True)
class Look:
    """A policy's line and mark."""

    colour: str
    marker: str
    dash: Any = "-"  # of matplotlib
    width: float = 1.2
    layer: float = 3.0


# Okabe and Ito's colours, which colour-blind readers tell apart, with the project's teal for ours. Oracles are grey and
# dashed: they are where one could get to, not something to choose.
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
    "tlru": Look(OURS, "D", width=2.4, layer=7),
    "etlru": Look("#6a3d9a", "p", width=2.0, layer=6),
    "etlru-given": Look("#9a7fc0", "p", (0, (3, 1.5)), layer=3),
    "tail-belady": Look("#6b7580", "*", (0, (5, 1.8)), width=1.5, layer=3),
    "tail-belady-ends": Look("#8b95a1", "*", (0, (1, 1.2)), layer=3),
    "belady": Look("#8b95a1", "X", (0, (3, 1.5)), layer=2),
    "length-aware": Look("#a0a9b4", "d", (0, (3, 1.5, 1, 1.5)), layer=2),
    "end-aware": Look("#a0a9b4", "H", (0, (2, 1.2)), layer=2),
}
_NAMES = {"tlru": "ours (tlru)", "real-tlru": "ours (real cache)", "tail-belady": "tail-belady (oracle)"}


def look(policy: str) -> Look:
    """The look of a policy, the same in every figure."""
    if policy in _LOOKS:
        return _LOOKS[policy]
    kin = _LOOKS.get(policy.removesuffix("-python").removeprefix("real-"))
    if kin is not None:  # another implementation of it
        return Look(kin.colour, kin.marker, (0, (1, 1.2)), kin.width, kin.layer)
    return Look("#a0a9b4" if policy in ORACLES else "#795548", ".")


def ink(policy: str) -> str:
    """The colour of a policy for its name: as dark as small text needs to be."""
    red, green, blue = to_rgb(look(policy).colour)
    lightness = 0.3 * red + 0.59 * green + 0.11 * blue
    darker = min(1.0, 0.42 / max(lightness, 1e-6))
    return to_hex((red * darker, green * darker, blue * darker))


def label(variant: Variant, among: Sequence[Variant] = ()) -> str:
    """What a variant is called: w where it is not 0, and settings that ``among`` has the policy with others of."""
    policy = variant.policy
    kin = [other for other in among if other.policy == policy]
    name = _NAMES.get(policy, policy.replace("sglang-", "stock ").replace("-python", " (Python core)"))
    if variant.weight or len({other.weight for other in kin}) > 1:
        name += f", w = {variant.w}"
    if len({other.estimate for other in kin}) > 1:
        name += ", Q̂ learned" if variant.estimate is None else f", Q̂ = {variant.estimate:,}"
    return name


def short(variant: Variant) -> str:
    """What it is called where room is short."""
    return label(variant).removesuffix(" (oracle)")


def weight(variant: Variant) -> str:
    """Bold for ours."""
    return "bold" if variant.policy in ("tlru", "real-tlru") else "normal"


def compact(tokens: float) -> str:
    """2 M, 64 k, 8,192: short where that loses nothing."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(tokens) >= factor and round(tokens / factor, 1) * factor == tokens:
            return f"{tokens / factor:g}\N{NO-BREAK SPACE}{unit}"
    return f"{tokens:,.10g}" if tokens == int(tokens) else f"{tokens:,.1f}"


def percent(share: float | None, sign: bool = False, digits: int = 1) -> str:
    """0.0824 → 8.2 %; an en dash where there is nothing to say."""
    if share is None:
        return "–"
    text = f"{share * 100:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return text.replace("-", "−") + "\N{NARROW NO-BREAK SPACE}%"


def percent_axis(axis: Axis, most: int = 6) -> None:
    """Ticks of an axis of changes, as short as they are exact."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: _tick(round(share * 100, 6))))


def _tick(number: float) -> str:
    return f"{number:{'+' if number else ''}g}".replace("-", "−") + "\N{NARROW NO-BREAK SPACE}%"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least ``gap`` apart and as near to the wanted ones as that allows, kept in their order.

    Neighbours that are too close are merged into a block around their mean, and blocks likewise, until none overlap.
    """
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _bottom(blocks[-1], wanted, gap, low, high) < (
            _bottom(blocks[-2], wanted, gap, low, high) + gap * len(blocks[-2])
        ):
            last = blocks.pop()
            blocks[-1] += last
    placed = [0.0] * len(wanted)
    for block in blocks:
        bottom = _bottom(block, wanted, gap, low, high)
        for number, index in enumerate(block):
            placed[index] = bottom + gap * number
    return placed


def _bottom(block: Sequence[int], wanted: Sequence[float], gap: float, low: float, high: float) -> float:
    middle = sum(wanted[index] for index in block) / len(block)
    return min(max(middle - gap * (len(block) - 1) / 2, low), high - gap * (len(block) - 1))


def label_ends(axes: Axes, ends: Sequence[tuple[Variant, float, str]], points: float = 7.0) -> None:
    """Name lines at the right edge of the axes, where they end at the given heights (in data), none over another.

    The limits of the axes and the place of the axes in the figure must be final.
    """
    figure = axes.get_figure()
    assert figure is not None
    height = axes.get_position().height * figure.get_figure(root=True).get_figheight() * 72
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((1.0, y)))[1] for _, y, _ in ends]
    places = spread(heights, points * 1.22 / height, 0.0, 1.0)
    for (variant, _, text), start, place in zip(ends, heights, places, strict=True):
        colour = look(variant.policy).colour
        axes.plot(
            [1.01, 1.05, 1.06], [start, place, place],
            transform=axes.transAxes, color=colour, linewidth=0.5, clip_on=False, alpha=0.8,
        )  # fmt: skip
        axes.text(
            1.07, place, text,
            transform=axes.transAxes, fontsize=points, color=ink(variant.policy), va="center",
            fontweight=weight(variant),
        )  # fmt: skip
