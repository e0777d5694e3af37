"""Names of variants, in words and beside the lines of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes

from eval.render.looks import ink, look, spread, width_of
from eval.render.report.rows import Variant
from eval.render.report.scene import OPTIMUM, is_candidate
from eval.simulate.grid import is_own_weight

_POINTS = 6.3  # size of a name beside a line


def label(variant: Variant, among: Sequence[Variant] = ()) -> str:
    """The name of a variant: its policy, its w where that is not its own, and settings in which ``among`` differ."""
    policy = variant.policy
    same = [other for other in among if other.policy == policy]
    name = policy.replace("sglang-", "stock ").replace("-python", " (Python core)")
    if policy == OPTIMUM:
        name += " (oracle)"
    elif policy.startswith("real-"):
        name = name.removeprefix("real-") + " (real cache)"
    if not is_own_weight(policy, variant.weight) or len({other.weight for other in same}) > 1:
        name += f", w = {variant.w}"
    if len({other.estimate for other in same}) > 1:
        name += ", Q̂ learned" if variant.estimate is None else f", Q̂ = {variant.estimate:,}"
    return name


def short(variant: Variant) -> str:
    """The name where room is short."""
    return label(variant).removesuffix(" (oracle)")


def name_width(variant: Variant) -> float:
    """Inches that a name beside a line needs."""
    return width_of(short(variant), _POINTS, font_weight(variant))


def font_weight(variant: Variant) -> Literal["normal", "bold"]:
    """Bold for the policies of radix-tlru."""
    return "bold" if is_candidate(variant) else "normal"


def label_ends(axes: Axes, ends: Sequence[tuple[Variant, float, str]]) -> None:
    """Name lines at the right edge of the axes, near to where they end, no name over another.

    The limits of the axes and the place of the axes in the figure must be final.

    Args:
        ends: variant, height at the right edge in data coordinates, and text of each line.
    """
    figure = axes.get_figure()
    assert figure is not None
    height = axes.get_position().height * figure.get_figure(root=True).get_figheight() * 72
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((1.0, y)))[1] for _, y, _ in ends]
    places = spread(heights, _POINTS * 1.22 / height)
    for (variant, _, text), start, place in zip(ends, heights, places, strict=True):
        colour = look(variant.policy).colour
        axes.plot(
            [1.01, 1.05, 1.06], [start, place, place],
            transform=axes.transAxes, color=colour, linewidth=0.5, clip_on=False, alpha=0.8,
        )  # fmt: skip
        axes.text(
            1.07, place, text,
            transform=axes.transAxes, fontsize=_POINTS, color=ink(variant.policy), va="center",
            fontweight=font_weight(variant),
        )  # fmt: skip
