"""Returns of conversations, predicted and seen."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from radix_tlru.tools.scrape import Rank
from radix_tlru.tools.top.cells import NONE, titled_table, whole

__all__ = ["returns_table"]

_TRUSTED = (2 / 3, 3 / 2)
"""Returns seen per return predicted; outside of these bounds hazards are not to be believed."""

_ENOUGH = 20
"""Returns, predicted or seen, from which on that can be told."""


def returns_table(rank: Rank) -> Table:
    """Returns by how long conversations had been silent: as many as hazards predicted, and as many as came."""
    table = titled_table("Returns of conversations, predicted and seen")
    for name in ("silent for", "predicted", "seen", "seen / predicted", "predicted / h", "seen / h"):
        table.add_column(name, justify="left" if name == "silent for" else "right")
    expected, seen = rank.by("expected_returns_total", "silent"), rank.by("returns_total", "silent")
    for span, watched_s in rank.by("watched_seconds_total", "silent").items():
        predicted, came = expected[span], seen[span]
        ratio = came / predicted if predicted else math.nan
        trusted = max(predicted, came) < _ENOUGH or _TRUSTED[0] <= ratio <= _TRUSTED[1]
        rates = [f"{count / watched_s * 3600:.2f}" if watched_s else NONE for count in (predicted, came)]
        table.add_row(
            Text(span.replace("-", " to ").replace("s", " s"), no_wrap=True),
            f"{predicted:,.1f}",
            whole(came),
            Text(NONE if math.isnan(ratio) else f"{ratio:.2f}", "" if trusted else "bold yellow"),
            *rates,
        )
    if not any(expected.values()):
        table.caption = "nothing is predicted: tlru goes by recency, etlru by recency until it has learned"
    else:
        table.caption = "/ h: in an hour of silence; yellow: not to be believed there"
    return table
