"""Where each panel stands on the screen."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from radix_tlru.tools.scrape import Rank, Snapshot
from radix_tlru.tools.top.prefilled import ahead_text, warm_table
from radix_tlru.tools.top.returns import returns_table
from radix_tlru.tools.top.shadows import dry_run_text, shadow_table
from radix_tlru.tools.top.status import status_table
from radix_tlru.tools.top.victims import victim_table

__all__ = ["frame"]

_SIDE_BY_SIDE = 130
"""Columns of a screen on which two tables fit beside each other."""


def frame(now: Snapshot, before: Snapshot | None, width: int) -> RenderableType:
    """A screen: what is in force and what it did, shadow caches, returns, the next victims, what no request asked for.

    Args:
        now: the server as it is. Shadows, returns and victims are those of its first rank.
        before: an earlier snapshot of the same server, for tokens evicted per second; None: totals are shown.
        width: of the screen, in columns.
    """
    first = now.ranks[0]
    panels: list[RenderableType] = [_title(now)]
    if first.is_dry_run:
        panels.append(dry_run_text(first))
    panels.append(status_table(now, before, width))
    panels += _learned(first, width)
    if not first.is_dry_run:
        panels.append(victim_table(first))
    if now.warm:
        panels.append(warm_table(now.warm))
    if now.ahead is not None:
        panels.append(ahead_text(now.ahead))
    top, *others = panels
    return Group(top, *(part for panel in others for part in (Text(), panel)))


def _title(now: Snapshot) -> Text:
    return Text.assemble(("radix-tlru top", "bold"), f"   {now.url}   {now.model}", overflow="ellipsis", no_wrap=True)


def _learned(rank: Rank, width: int) -> list[RenderableType]:
    """Shadow caches and returns, in one panel if they fit beside each other."""
    tables = shadow_table(rank), returns_table(rank)
    if width < _SIDE_BY_SIDE:
        return [*tables]
    beside = Table.grid(padding=(0, 4))
    beside.add_row(*tables)
    return [beside]
