"""The one shell of every page: a single HTML file with its style, tables and figures in it.

Text is escaped here. What a caller puts into a page is text, or HTML that a function of this module made.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

_STYLE = Path(__file__).with_name("page.css")
_DPI = 220  # of PNGs: 7.2 inches are 1,584 pixels
_PIXELS_AN_INCH = 130  # on a page


@dataclass(frozen=True, slots=True)
class Image:
    """A figure that was drawn."""

    path: Path  # of its PNG
    uri: str  # of its SVG: the data themselves
    inches: float  # wide


def save_figure(drawn: Figure, path: Path) -> Image:
    """Write a figure as PNG, and keep it as SVG for a page.

    On a page it stands inside an ``<img>``, so that the ids of one SVG cannot meet those of another.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=_DPI)
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return Image(path, f"data:image/svg+xml;base64,{data}", drawn.get_figwidth())


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: text; also the first heading.
        parts: HTML, one below the other.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE.read_text()}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A heading below that of the page."""
    return f"<h2>{escape(text)}</h2>"


def figure(title: str, image: Image, caption: str) -> str:
    """A heading, a figure and its caption, which ends with where its PNG is.

    Args:
        caption: text, with code in `backquotes`.
    """
    width = f"width:{image.inches * _PIXELS_AN_INCH:.0f}px"
    where = f"{image.path.parent.name}/{image.path.name}"
    return (
        f'{heading(title)}<figure><img src="{image.uri}" alt="{escape(title)}" style="{width}">'
        f"<figcaption>{code(caption)} <code>{escape(where)}</code></figcaption></figure>"
    )


def missing(text: str) -> str:
    """A remark that something is not there, and why; text with code in `backquotes`."""
    return f'<p class="missing">{code(text)}</p>'


def paragraph(text: str, kind: Literal["", "lead"] = "") -> str:
    """A paragraph of text with code in `backquotes`; lines may end in the middle."""
    lines = "<br>".join(code(line) for line in text.split("\n"))
    return f'<p class="{kind}">{lines}</p>' if kind else f"<p>{lines}</p>"


def code(text: str) -> str:
    """Text as HTML, with what stands in `backquotes` as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], highlighted: Sequence[int] = ()) -> str:
    """A table of text that scrolls sideways where it is too wide. The first column names the rows.

    Args:
        highlighted: numbers of columns with a tint, from 0.
    """

    def cell(number: int, text: str) -> str:
        tint = ' class="highlight"' if number in highlighted else ""
        return f"<td{tint}>{escape(text)}</td>" if number else f'<th scope="row">{escape(text)}</th>'

    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(cell(n, text) for n, text in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="cells"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    )
