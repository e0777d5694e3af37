"""The page of a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from eval.render import html
from eval.render.looks import compact
from eval.render.report.gallery import Picture
from eval.render.report.scene import CHOICES, Group, Scene
from eval.render.report.tables import all_cells, arms_by_cell, cards

_HOW_TO_READ = """
<ul>
<li>A request waits for the tokens of its prompt that were <b>not cached</b>: time to first token (TTFT) ≈
β + α·uncached. Less is better everywhere on this page.</li>
<li><b>ξ</b> is how many uncached tokens still meet the TTFT objective. A request over ξ breaks it. <b>TEL</b> (tail
excess latency) adds up the tokens over ξ.</li>
<li><b>TEL saved</b> is against page-granular <code>lru</code> in the same cell. It also says how kind the workload is.
<b>Gap closed</b> says how good a policy is: 0 % is <code>lru</code>, 100 % is <code>tail-belady</code>, which knows the
future.</li>
<li>The change of <b>p50</b> against <code>lru</code> is what the median pays for the tail.</li>
<li>Names with <b>stock</b> are the unchanged classes of SGLang, which evict whole nodes. Grey and dashed are
<b>oracles</b>: they look into the future and no server can run them. ★ marks the least TEL among those that a server
can run, in each capacity and ξ.</li>
</ul>
"""


def page(scene: Scene, others: Sequence[Scene], pictures: Sequence[Picture], commands: str) -> str:
    """The report of a folder: the chosen scene in cards and figures, then every cell, also of other scenes.

    Args:
        commands: that made the folder and the report, a line each.
    """
    requests = max(row.outcome.requests for row in scene.rows if Group.of(row.cell) == scene.group)
    cells = sum(row.asked_for for row in scene.rows)
    chosen = f"capacity {compact(scene.capacity)} tokens, ξ {compact(scene.threshold)} tokens"
    if scene.latency is not None:
        line = f"{scene.latency.beta:g} ms + {scene.latency.alpha:g} ms a token"
        chosen += f" ({scene.latency.ms(scene.threshold):,.0f} ms, as TTFT = {line})"
    parts = [
        html.paragraph(
            f"{requests:,} requests · {cells} cell{'s' * (cells != 1)}\nCards and figures: {scene.group}, {chosen}",
            "lead",
        ),
        *([_others(scene, others)] if others else []),
        cards(scene),
        html.heading("How to read this") + _HOW_TO_READ,
        html.heading("Stock, radix-tlru and the oracle, side by side"),
        html.paragraph("TEL saved, and what the median pays (p50 of uncached tokens), against `lru` in the same cell."),
        arms_by_cell(scene),
        *(_figure(picture) for picture in pictures),
        html.heading("All cells"),
        html.paragraph("mean to p99: uncached tokens a request. TEL: tokens over ξ, summed. seconds: of simulation."),
        *(f"<h3>{escape(str(one.group))}</h3>{all_cells(one)}" for one in (scene, *others)),
        html.heading("Made by") + f"<pre>{escape(commands)}</pre>",
    ]
    return html.page(f"Eviction policies on {scene.group.trace}", parts)


def _others(scene: Scene, others: Sequence[Scene]) -> str:
    names = "; ".join(str(one.group) for one in others)
    differ = [name for name in CHOICES if any(getattr(one.group, name) != getattr(scene.group, name) for one in others)]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in differ)
    return html.missing(f"Only in the table of all cells, not in the figures: {names}. Choose with {flags}.")


def _figure(picture: Picture) -> str:
    if picture.image is None:
        return html.heading(picture.plot.title) + html.missing(f"Not drawn: {picture.reason}.")
    return html.figure(picture.plot.title, picture.image, picture.caption)
