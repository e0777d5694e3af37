"""What is in force on a server and what it did: a column for each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from radix_tlru.policy.order import Phase
from radix_tlru.tools.scrape import Rank, Snapshot
from radix_tlru.tools.top.cells import NONE, percent, whole

__all__ = ["status_table"]

_MOST_RANKS = 6
"""Ranks that have a column on the screen."""

_WRAPPED = 60
"""Columns of a screen from which on the meaning of a row may take a second line, beside one rank."""


class _Row(NamedTuple):
    """A line of the table."""

    name: str
    cell: Callable[[Rank], str | None]  # what a rank says; None: nothing
    meaning: str
    must_agree: bool = False  # all ranks have to say the same


def status_table(now: Snapshot, before: Snapshot | None, width: int) -> Table:
    """The policy in force, what was served by it and what it evicted.

    Args:
        now: the server as it is.
        before: an earlier snapshot, for tokens evicted per second; None: totals are shown.
        width: of the screen, in columns.
    """
    ranks = now.ranks[:_MOST_RANKS]
    table = Table(box=None, padding=(0, 2), show_header=len(now.ranks) > 1)
    table.add_column("", style="bold", no_wrap=True)
    for rank in ranks:
        table.add_column(rank.name, justify="right", no_wrap=True)
    more = len(now.ranks) - len(ranks)
    table.add_column(f"(and {more} more ranks)" if more else "", style="dim")
    one_line = len(ranks) > 1 or width < _WRAPPED
    rows = [*_policy_rows(now), *_objective_rows(now), *_served_rows(now)]
    if not now.ranks[0].is_dry_run:
        rows += _eviction_rows(now, before)
    for row in rows:
        everywhere = {(rank.replica, row.cell(rank)) for rank in now.ranks}
        differ = row.must_agree and len(everywhere) > len({rank.replica for rank in now.ranks})
        meaning = f"RANKS DIFFER: {row.meaning}" if differ else row.meaning
        table.add_row(
            row.name,
            *(row.cell(rank) or NONE for rank in ranks),
            Text(meaning, no_wrap=one_line, overflow="ellipsis"),
            style="bold yellow" if differ else None,
        )
    return table


def _policy_rows(now: Snapshot) -> list[_Row]:
    meaning = "if this were no dry run" if now.ranks[0].is_dry_run else "by whose order leaves go"
    if any(rank.value("fallen_back") for rank in now.ranks):
        meaning = "AFTER A FAULT, which the server's log tells"
    return [
        _Row("policy in force", lambda rank: rank.policy, meaning, must_agree=True),
        _Row(
            "threshold ξ",
            _count("threshold_tokens", " tokens"),
            "uncached tokens that still meet the objective",
            must_agree=True,
        ),
        _Row("weight w", _weight, "of tokens whose request is not in the tail", must_agree=True),
    ]


def _objective_rows(now: Snapshot) -> list[_Row]:
    """What ξ was learned from, if it was."""
    if all(rank.value("threshold_samples") is None for rank in now.ranks[:_MOST_RANKS]):
        return []
    return [
        _Row("prefill takes", _line, "β + α a token near the objective, as fitted here; 19 of 20 at most so much more"),
        _Row("first token waits", _overhead, "for other things than its prefill"),
        _Row("learned from", _count("threshold_samples"), "recent prefills of this server"),
    ]


def _served_rows(now: Snapshot) -> list[_Row]:
    ratio = now.hit_ratio
    cached = "" if ratio is None else f"{percent(ratio)} of all prompt tokens were cached"
    return [
        _Row("requests served", _count("requests_total"), cached),
        _Row("beyond ξ", _violations, "requests that had to prefill more than ξ"),
        _Row("TEL", _count("excess_tokens_total", " tokens"), "by how much, all together: tail excess latency"),
        _Row(
            "answers repeated", _repeated, "by next prompts, as they were cached; where few are, answers are not kept"
        ),
    ]


def _eviction_rows(now: Snapshot, before: Snapshot | None) -> list[_Row]:
    could_go = "could go, and all next turns stay within ξ"
    if all(math.isnan(rank.value("over_budget_tokens") or 0.0) for rank in now.ranks):
        could_go = "only under a policy with a threshold: tlru, etlru with w < 1"
    return [
        _Row("evictable leaves", _count("evictable_leaves"), "ends of cached paths, not in use"),
        _Row("TEL-safe now", _count("over_budget_tokens", " tokens"), could_go),
        _Row("evicted, TEL-safe", _evicted("tel_safe", now, before), "tokens that cost nothing at the tail"),
        _Row("evicted, others", _evicted("lru", now, before), "all other tokens; without a threshold all are"),
    ]


# ---- cells ----


def _count(name: str, unit: str = "") -> Callable[[Rank], str]:
    """The value of a metric, as a whole number."""
    return lambda rank: whole(rank.value(name), unit)


def _evicted(phase: Phase, now: Snapshot, before: Snapshot | None) -> Callable[[Rank], str]:
    """Tokens evicted in a phase; with how many per second, if there is an earlier snapshot of the rank."""
    earlier = {rank.name: rank for rank in before.ranks} if before is not None else {}
    passed_s = now.at - before.at if before is not None else 0.0

    def cell(rank: Rank) -> str:
        tokens = rank.by("evicted_tokens_total", "phase").get(phase, 0.0)
        if rank.name not in earlier or passed_s <= 0.0:
            return whole(tokens)
        grown = tokens - earlier[rank.name].by("evicted_tokens_total", "phase").get(phase, 0.0)
        return f"{whole(tokens)} ({whole(max(grown, 0.0) / passed_s)}/s)"

    return cell


def _repeated(rank: Rank) -> str | None:
    continued = rank.by("continued_total", "answer")
    total = sum(continued.values())
    return f"{continued['as_cached'] / total:.1%} of {total:,.0f}" if total else None


def _weight(rank: Rank) -> str | None:
    weight = rank.value("median_weight")
    return None if weight is None else f"{weight:.2f}"


def _line(rank: Rank) -> str | None:
    alpha, beta = rank.value("alpha_ms_per_token"), rank.value("beta_ms")
    more = max((rank.value("prefill_late_ratio") or 1.0) - 1.0, 0.0)
    return f"{beta:.1f} ms + {alpha:.4f} ms (+{more:.0%})" if alpha and beta is not None else None


def _overhead(rank: Rank) -> str | None:
    overhead = rank.value("overhead_ms")
    return f"{overhead:.1f} ms" if overhead else None


def _violations(rank: Rank) -> str | None:
    requests, violations = rank.value("requests_total"), rank.value("violations_total")
    if not requests or violations is None:
        return None
    return f"{violations:,.0f} ({percent(violations / requests)})"
