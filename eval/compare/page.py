"""The page of a comparison: verdicts, heat maps, the list of losses, all cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from eval.compare.bootstrap import COVERAGE, FEWEST_SESSIONS, RESAMPLES
from eval.compare.changes import RULE
from eval.compare.picture import gap_closed, worst_figures
from eval.compare.settings import BASELINE
from eval.compare.table import cell_grids, summary
from eval.compare.verdict import LEAST_GAP, NOTHING_DIFFERS, Row, Verdict, nothing_differs
from eval.render import html
from eval.render.looks import RC, percent

PAGE, FIGURES = "compare.html", "figures"

MOST_LISTED = 200
"""Losses of a policy on the page; all are in the list beside it."""

_ORACLE = " (It looks into the future: no server can run it.)"
_WORST = (
    "For each policy, trace (line) and capacity (column): the figure that is worst against lru, over all ξ, seeds and "
    "figures. Brown: worse, the darker the more. White: by so little that it does not count; no worse: equal in some, "
    "better in others. Teal: better in all."
)
_GAP = (
    "The share of the gap in TEL between lru (0 %) and tail-belady, which knows the future (100 %), mean over ξ and "
    "seeds. Teal: less TEL than lru. Brown: more. –: there is no gap, or one of less than 1 % of lru's TEL."
)
_READ = (
    "A request waits for the tokens of its prompt that were not cached. mean to p99 are of these uncached tokens, of a "
    "request. ξ is how many of them still meet the objective of time to first token. over ξ: requests that miss it. "
    "TEL: the tokens over ξ, summed. prefilled: all uncached tokens. A capacity in % is a share of the trace's working "
    "set: the most tokens at one time that a later prompt has again. Where a policy learns, w is the "
    "weight of the median: that of a server, unless one is given."
)
_INTERVALS = (
    f"In brackets: {percent(COVERAGE, digits=0)} intervals by bootstrap, {RESAMPLES} times, over sessions: "
    "conversations, each with those of its subagents. Every policy is given the same draws, so a change against lru is "
    "a paired one. What a policy keeps is not worked out again for the sessions that are drawn. An interval is of one "
    "figure alone: of many that only chance moves, one in forty is a loss beyond it. A trace of fewer than "
    f"{FEWEST_SESSIONS} sessions has none."
)
_MEANS = (
    "Mean changes: over settings in which lru has at least that, as ratios to less say little. gap closed: over "
    f"settings in which hindsight saves more than {percent(LEAST_GAP, digits=0)} of lru's TEL."
)


def write_page(
    folder: Path, found: Sequence[Verdict], rows: Sequence[Row], command_line: str, losses_file: str
) -> None:
    """Write the page and its figures.

    Args:
        rows: of all cells, in the order in which they are shown.
        losses_file: the file beside it that has all losses.
    """
    traces = {row["trace"] for row in rows}
    lead = (
        "What each eviction policy leaves for requests to prefill, against lru, the order of SGLang's default.\n"
        f"{len(found)} policies in {len(found[0].rows):,} settings (a trace, a capacity, a ξ) of {len(traces)} traces."
    )
    table = summary(found)
    parts = [
        html.paragraph(lead, "lead"),
        html.heading("The verdict"),
        *(html.paragraph(one.sentence + _ORACLE * one.is_oracle) for one in found if one.policy != BASELINE),
        *([html.paragraph(NOTHING_DIFFERS)] if nothing_differs(found) else []),
        *_pictures(folder, found),
        html.heading(table.title),
        html.table(table.head, table.rows),
        html.paragraph(f"{RULE} {_MEANS}"),
        html.heading("How to read this"),
        html.paragraph(_READ),
        html.paragraph(_INTERVALS),
        html.heading("Where a policy is worse than lru, the worst first"),
        html.paragraph(
            "In the order of the loss: the change, with lru counting as having at least what the rule says."
        ),
        *(_losses(one, losses_file) for one in found if one.losses),
        html.heading("All cells"),
        *(html.paragraph(grid.title) + html.table(grid.head, grid.rows) for grid in cell_grids(rows, intervals=True)),
        html.heading("Made by"),
        html.paragraph(f"`{command_line}`"),
    ]
    (folder / PAGE).write_text(html.page("Eviction policies against stock lru", parts))


def _pictures(folder: Path, found: Sequence[Verdict]) -> list[str]:
    with mpl.rc_context(RC):
        worst = html.save_figure(worst_figures(found), folder / FIGURES / "worst.png")
        gap = html.save_figure(gap_closed(found), folder / FIGURES / "gap-closed.png")
    return [
        html.figure("Who is worse than lru, and where", worst, _WORST),
        html.figure("Who wins the tail, and where", gap, _GAP),
    ]


def _losses(one: Verdict, losses_file: str) -> str:
    listed = [(str(number), str(loss)) for number, loss in enumerate(one.losses[:MOST_LISTED], start=1)]
    more = len(one.losses) - len(listed)
    rest = html.paragraph(f"{more:,} more in `{losses_file}`.") if more else ""
    return html.table((one.name, "figure, change (interval): lru → policy on trace, capacity, ξ"), listed) + rest
