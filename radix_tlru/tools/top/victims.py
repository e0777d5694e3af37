"""Which leaves go next if nothing is used before, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from radix_tlru.tools.scrape import Rank
from radix_tlru.tools.top.cells import NONE, titled_table, whole

__all__ = ["victim_table"]

_SELDOM = 0.2
"""P(over ξ) below which it is given as the reason."""

_FIELDS = (
    *("cached_tokens", "keep_tokens", "history_tokens", "silent_seconds"),
    *("return_rate", "exceed_probability", "cost"),
)
"""Metrics of a victim, after ``next_victim_``."""


def victim_table(rank: Rank) -> Table:
    """The next victims, the first one first."""
    learned = (rank.policy or "").startswith("etlru")
    table = titled_table("Next to go, if nothing is used before")
    for name in ("", "cached", "stays", "history", "silent", "λ", "P(over ξ)", "cost", "why"):
        table.add_column(name, justify="left" if name in ("", "why") else "right", no_wrap=name != "why")
    for victim in _next(rank):
        silent, exceed = victim["silent_seconds"], victim["exceed_probability"]
        table.add_row(
            str(table.row_count + 1),
            *(whole(victim[name]) for name in ("cached_tokens", "keep_tokens", "history_tokens")),
            NONE if math.isnan(silent) else f"{silent:,.0f} s",
            f"{victim['return_rate']:.2g}",
            NONE if math.isnan(exceed) else f"{exceed:.2f}",
            f"{victim['cost']:.2g}",
            _why(victim, learned),
        )
    if table.row_count:
        unit = next((f", {name}" for name, is_it in rank.by("return_rate_unit", "unit").items() if is_it), "")
        table.caption = f"tokens from the root of the path; λ: how soon it returns{unit}; lowest cost goes first"
    else:
        table.caption = "nothing can be evicted now"
    return table


def _next(rank: Rank) -> Iterator[dict[str, float]]:
    columns = {name: rank.by(f"next_victim_{name}", "position") for name in _FIELDS}
    for position in sorted(columns["cached_tokens"], key=int):
        if columns["cached_tokens"][position]:  # else there is none, and a server that never had one says no more of it
            yield {name: column[position] for name, column in columns.items()}


def _why(victim: dict[str, float], learned: bool) -> Text:
    """Why it goes before the others; green: nobody is expected to miss it."""
    if victim["return_rate"] == 0.0:
        return Text("no later prompt is expected to use it", "green")
    if victim["exceed_probability"] == 0.0:
        return Text("TEL-safe: with what stays the next turn is within ξ", "green")
    if victim["exceed_probability"] < _SELDOM:
        return Text("few next prompts are long enough to miss it", "green")
    return Text("not likely to return soon" if learned else "the longest unused", "yellow")
