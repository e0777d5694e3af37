"""How numbers are written in the cells of a table, and the table itself."""

from __future__ import annotations

import math

from rich.table import Table

__all__ = ["NONE", "percent", "titled_table", "whole"]

NONE = "–"
"""In a cell without a value."""


def titled_table(title: str) -> Table:
    """A table without columns, under a title."""
    return Table(
        box=None,
        title=title,
        title_justify="left",
        title_style="bold cyan",
        caption_justify="left",
        header_style="underline",
        padding=(0, 1),
    )


def whole(value: float | None, unit: str = "") -> str:
    """A whole number with its unit; a dash where there is none, or where a server says that it is not known.

    >>> whole(12345.6, " tokens"), whole(None), whole(math.nan, " tokens")
    ('12,346 tokens', '–', '–')
    """
    return NONE if value is None or math.isnan(value) else f"{value:,.0f}{unit}"


def percent(share: float, sign: str = "") -> str:
    """A share in per cent; with the sign ``+``, a change.

    >>> percent(0.125), percent(0.125, "+")
    ('12.5 %', '+12.5 %')
    """
    return f"{100.0 * share:{sign}.1f} %"
