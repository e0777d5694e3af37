"""The figures of a report: titles, captions, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from eval.render.html import Image, save_figure
from eval.render.looks import RC, compact
from eval.render.report.distribution import change_by_percentile, distribution
from eval.render.report.frontier import frontier
from eval.render.report.grids import heat_maps, percentiles_by_capacity
from eval.render.report.labels import label, short
from eval.render.report.scene import Missing, Scene
from eval.render.report.timeline import timeline


class Plot(NamedTuple):
    """A figure of the report."""

    file: str  # stem of the PNG
    title: str
    caption: str
    draw: Callable[[Scene], Figure]
    place: str  # which cells it shows, as a format of capacity and threshold
    requests: bool = False  # needs --per-request


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that was drawn, or the reason why not."""

    plot: Plot
    caption: str
    image: Image | None = None
    reason: str = ""


_ONE_CELL = "Capacity {capacity}, ξ {threshold}."

FIGURES = (
    Plot(
        "cdf",
        "How long requests wait",
        "Left: share of requests with at most so many uncached tokens. Right: the slowest tenth, with "
        "as much room for p90 to p99 as for p99 to p99.9, and tokens on a logarithmic scale. Further left is better. "
        "Names are in the order of p95.",
        distribution,
        _ONE_CELL,
        requests=True,
    ),
    Plot(
        "change",
        "Who gains and who pays",
        "The same requests as a change against lru at each percentile, from the median to the slowest in a thousand. "
        "Below the zero line is better. Nothing of the first turn of a conversation can be cached: where the slowest "
        "requests are first turns, all policies meet.",
        change_by_percentile,
        _ONE_CELL,
        requests=True,
    ),
    Plot(
        "capacity",
        "Percentiles against capacity",
        "Uncached tokens of the median request and of the tail as the pool grows. Lower is better. "
        "The scales do not start at zero.",
        percentiles_by_capacity,
        "ξ {threshold}.",
    ),
    Plot(
        "tel-saved",
        "TEL saved against lru",
        "Share of the tail excess latency of lru that is gone: teal is less than lru, brown is more.",
        lambda scene: heat_maps(scene, "saved"),
        "All cells.",
    ),
    Plot(
        "gap-closed",
        "Gap closed",
        "How much of what hindsight could save is saved: 0 % is lru, 100 % is tail-belady, below 0 % worse than lru.",
        lambda scene: heat_maps(scene, "gap"),
        "All cells.",
    ),
    Plot(
        "frontier",
        "The median–tail frontier",
        "What the tail gains (down) and what the median pays (right). Settings of w of one policy are joined by a "
        "line that begins at its name; a policy in the tinted corner is better in both.",
        frontier,
        _ONE_CELL,
    ),
    Plot(
        "timeline",
        "What each phase evicted",
        "Tokens taken from TEL-safe tails, which cost nothing, and, when there were none left, from the least recently "
        "used protected tokens. Policies without a TEL-safe phase, and caches that do not tell, are not drawn.",
        timeline,
        _ONE_CELL,
        requests=True,
    ),
)


def draw(scene: Scene, folder: Path) -> list[Picture]:
    """Draw every figure of a scene and write its PNG. Where one cannot be drawn, an old PNG is removed."""
    pictures = []
    for plot in FIGURES:
        path = folder / f"{plot.file}.png"
        where = plot.place.format(capacity=compact(scene.capacity), threshold=compact(scene.threshold))
        caption = f"{where} {plot.caption}" + _twins(scene) + (_left_out(scene) if plot.requests else "")
        with mpl.rc_context(RC):
            try:
                pictures.append(Picture(plot, caption, save_figure(plot.draw(scene), path)))
            except Missing as missing:
                path.unlink(missing_ok=True)
                pictures.append(Picture(plot, caption, reason=str(missing)))
    return pictures


def _twins(scene: Scene) -> str:
    """Variants that are not drawn because another's line would cover theirs."""
    names: dict[str, list[str]] = {}
    for variant, other in scene.twins.items():
        names.setdefault(label(other, scene.variants), []).append(label(variant, scene.variants))
    return "".join(f" The same as {other} in every cell: {', '.join(same)}." for other, same in names.items())


def _left_out(scene: Scene) -> str:
    """Policies whose requests were not kept, where those of others were."""
    rows = scene.main_rows
    without: Sequence[str] = [short(row.variant) for row in rows if scene.requests(row) is None]
    if not without or len(without) == len(rows):
        return ""
    return f" No per-request data of {', '.join(without)}: run `simulate` with --per-request and these policies."
