"""What was prefilled without a request: prompts that are kept warm, and next prompts that were prefilled ahead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from radix_tlru.tools.scrape import Ahead, WarmPrompt
from radix_tlru.tools.top.cells import titled_table, whole

__all__ = ["ahead_text", "warm_table"]

_MOST_WARM = 10
"""Warm prompts on a screen."""


def warm_table(prompts: Sequence[WarmPrompt]) -> Table:
    """Prompts that are kept warm, and how much of each was cached when it was asked for last."""
    table = titled_table("Warm prompts")
    for name in ("", "tokens", "were cached"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for prompt in prompts[:_MOST_WARM]:
        table.add_row(Text(prompt.name), whole(prompt.tokens), whole(prompt.cached))
    more = len(prompts) - _MOST_WARM
    table.caption = "tokens; as found when they were asked for last" + (f"; and {more} more" if more > 0 else "")
    return table


def ahead_text(ahead: Ahead) -> Text:
    """How many next prompts were prefilled ahead, and why others were not."""
    done, dropped, failed = (ahead.answers.get(outcome, 0.0) for outcome in ("done", "dropped", "failed"))
    told = f"after {whole(done)} answers, {whole(ahead.tokens)} tokens"
    if dropped:
        told += f", {whole(dropped)} dropped, as requests were always in flight"
    if failed:
        told += f", {whole(failed)} failed"
    return Text.assemble(("Prefilled ahead: ", "bold"), told)
