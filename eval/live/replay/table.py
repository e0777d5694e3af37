"""The figures of a replay as a table and in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from eval.live.replay.probe import PROBE_TOKENS
from eval.live.replay.rows import Folder
from eval.live.replay.summary import ITL_PERCENTILES, PERCENTILES, ArmSummary, Figure, interval_note
from eval.terminal import table

UNEQUAL = 1.1
"""A machine this many times slower in one arm than in another is mentioned."""

SHOWN: tuple[tuple[str, str, str], ...] = (
    *((f"ttft_p{p}", f"TTFT p{p} (ms)", "{:,.0f}") for p in PERCENTILES),
    *((f"uncached_p{p}", f"uncached tokens p{p}", "{:,.0f}") for p in PERCENTILES),
    ("violations", "requests over ξ", "{:,.0f}"),
    ("tel", "TEL (tokens)", "{:,.0f}"),
    ("hit_ratio", "hit ratio", "{:.1%}"),
    *((f"itl_p{p}", f"ITL p{p} (ms)", "{:,.1f}") for p in ITL_PERCENTILES),
    ("slo_violations", "requests over the SLO", "{:,.0f}"),
)
"""Rows of the table: figure, title, format."""


def table_rows(arms: Sequence[ArmSummary]) -> Iterator[tuple[str, list[str], list[str]]]:
    """For each figure its title, the value of each arm with its interval, and the change of each later arm.

    Tokens per second have no interval: they are of all conversations together.
    """
    for name, title, form in SHOWN:
        if all(math.isnan(arm.figures[name].value) for arm in arms):
            continue
        values = [
            f"{form.format(figure.value)} ({form.format(figure.low)}–{form.format(figure.high)})"
            for figure in (arm.figures[name] for arm in arms)
        ]
        yield title, values, [_percent(arm.changes[name]) for arm in arms[1:]]
    baseline = arms[0].tokens_per_s
    changes = [f"{arm.tokens_per_s / baseline - 1:+.0%}".replace("-", "−") if baseline else "" for arm in arms[1:]]
    yield "output tokens / s", [f"{arm.tokens_per_s:,.1f}" for arm in arms], changes


def comparison_table(arms: Sequence[ArmSummary]) -> Table:
    """A column for each arm, with its changes against the first."""
    result = table("", ("", *(arm.name for arm in arms)))
    for title, (first, *others), changes in table_rows(arms):
        pairs = zip(others, changes, strict=True)
        result.add_row(title, first, *(Text.assemble(f"{value}\n", (change, "dim")) for value, change in pairs))
    return result


def markdown(arms: Sequence[ArmSummary]) -> str:
    """The table for a file."""
    names = (arm.name.replace("|", r"\|") for arm in arms)
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(arms)}"]
    for title, (first, *others), changes in table_rows(arms):
        pairs = zip(others, changes, strict=True)
        lines.append(f"| {' | '.join([title, first, *(f'{value}<br>{change}' for value, change in pairs)])} |")
    return "\n".join(lines)


def sentences(arms: Sequence[ArmSummary]) -> list[str]:
    """What the last arm gained and paid against the first, with intervals of the paired change."""
    if len(arms) < 2:
        return []
    baseline, candidate = arms[0], arms[-1]
    change = candidate.changes
    median = change["uncached_p50"]
    verdict = "paid for it" if median.low > 0 else "gained too" if median.high < 0 else "may be as before"
    return [
        f"The tail of {candidate.name} against {baseline.name}: TTFT p95 {_percent(change['ttft_p95'])}, p99 "
        f"{_percent(change['ttft_p99'])}, TEL {_percent(change['tel'])}.",
        f"The median of uncached tokens {verdict}: {_percent(median)}; TTFT p50 "
        f"{_percent(change['ttft_p50'])}, ITL p50 {_percent(change['itl_p50'])}.",
        interval_note(baseline),
    ]


def server_sentences(folder: Folder) -> list[str]:
    """Whose server fell back to lru, and how fast the machine was in each arm, as a slower one makes longer times.

    Arms that are asked in turn have the same machine.
    """
    alone = {
        arm: [ms for part in folder.parts if part.arm == arm for ms in part.prefill_alone_ms] for arm in folder.run.arms
    }
    alone = {arm: found for arm, found in alone.items() if found}
    lines = [
        f"{arm}: radix-tlru fell back to lru after a fault, of which the server's log tells. Figures since are of lru."
        for arm in folder.run.arms
        if folder.fell_back(arm)
    ]
    lines += [f"Without the requests of each part's first {folder.settle_s:g} s."] if folder.settle_s else []
    if not alone:
        return lines
    means = {arm: statistics.geometric_mean(found) for arm, found in alone.items()}
    slow, fast = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    lines += [
        f"A prompt of {PROBE_TOKENS:,} tokens alone, before and after each repeat: "
        + "; ".join(f"{arm} {', '.join(f'{ms:.0f}' for ms in found)} ms" for arm, found in alone.items())
        + "."
    ]
    if folder.run.turn_s is None and means[slow] > UNEQUAL * means[fast]:
        lines.append(
            f"The machine was {means[slow] / means[fast] - 1:.0%} slower for {slow} than for {fast}, whose times are "
            "the shorter for that alone. Uncached tokens do not depend on it; more repeats even it out."
        )
    return lines


def _percent(figure: Figure) -> str:
    """A change; against a baseline of 0 there is none to tell."""
    if math.isnan(figure.value):
        return "–"
    return f"{figure.value:+.0%} ({figure.low:+.0%} to {figure.high:+.0%})".replace("-", "−")
