"""The page: one HTML file that needs nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from eval.render.report.gallery import Picture
from eval.render.report.scene import CHOICES, Scene
from eval.render.report.style import compact
from eval.render.report.tables import all_cells, arms_by_cell, cards

__all__ = ["page"]

_STYLE = Path(__file__).with_name("page.css")

_HOW_TO_READ = """
<ul>
<li>A request waits for the tokens of its prompt that were <b>not cached</b>: time to first token (TTFT) ≈
β + α·uncached. Less is better everywhere on this page.</li>
<li><b>ξ</b> is how many uncached tokens still meet the TTFT objective. A request over ξ breaks it; <b>TEL</b> (tail
excess latency) adds up the tokens over ξ.</li>
<li><b>TEL saved</b> compares with <code>lru</code>, page by page, in the same cell: it says how kind the workload is.
<b>Gap closed</b> says how good a policy is: 0 % is <code>lru</code>, 100 % is <code>tail-belady</code>, the best that
one who knows the future can do.</li>
<li><b>What the median pays</b> is the change of p50 against <code>lru</code>. A tail gained by a median lost is a
trade, not a gift.</li>
<li>Names with <b>stock</b> are the unchanged classes of SGLang, which evict whole nodes. Grey and dashed are
<b>oracles</b>: they look into the future and no server can run them. ★ marks the least TEL among those that a server
can run, in each capacity and ξ.</li>
</ul>
"""


def page(scene: Scene, others: Sequence[Scene], pictures: Sequence[Picture], command: str) -> str:
    """The report of a folder: the chosen scene in cards and figures, then every cell, those of other scenes too."""
    requests = max(row.outcome.requests for row in scene.rows)
    cells = sum(row.asked_for for row in scene.rows)
    title = f"Eviction policies on {scene.group.trace}"
    chosen = f"capacity {compact(scene.capacity)} tokens, ξ {compact(scene.threshold)} tokens"
    if scene.latency is not None:
        chosen += f" ({scene.latency.ms(scene.threshold):,.0f} ms, as TTFT = {scene.latency})"
    where = escape(f"{scene.group}, {chosen}")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{requests:,} requests · {cells} cells<br>Cards and figures: {where}</p>',
        *([_others(scene, others)] if others else []),
        cards(scene),
        f"<h2>How to read this</h2>{_HOW_TO_READ}",
        "<h2>Stock, ours and the oracle, side by side</h2>"
        "<p>TEL saved, and what the median pays for it (p50), against <code>lru</code> in the same cell.</p>",
        arms_by_cell(scene),
        *(_figure(picture) for picture in pictures),
        "<h2>All cells</h2>"
        "<p>mean to p99: uncached tokens a request. TEL: tokens over ξ, summed. seconds: of simulation.</p>",
        *(f"<h3>{escape(str(one.group))}</h3>{all_cells(one)}" for one in (scene, *others)),
        f"<h2>Made by</h2><pre>{escape(command)}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE.read_text()}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _others(scene: Scene, others: Sequence[Scene]) -> str:
    names = "; ".join(escape(str(one.group)) for one in others)
    differ = [name for name in CHOICES if any(getattr(one.group, name) != getattr(scene.group, name) for one in others)]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in differ)
    return f'<p class="missing">Only in the table of all cells, not in the figures: {names}. Choose with {flags}.</p>'


def _figure(picture: Picture) -> str:
    title = f"<h2>{picture.plot.title}</h2>"
    if picture.image is None:
        return f'{title}<p class="missing">Not drawn: {_code(picture.reason)}.</p>'
    width = f"width:{picture.inches * 130:.0f}px"
    return (
        f'{title}<figure><img src="{picture.image}" alt="{picture.plot.title}" style="{width}">'
        f"<figcaption>{_code(picture.caption)} <code>figures/{picture.plot.file}.png</code></figcaption></figure>"
    )
