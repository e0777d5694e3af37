"""The same requests under other policies, as the shadow caches counted them."""

from __future__ import annotations

import math
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from radix_tlru.learning.guard import REASONS
from radix_tlru.learning.selector import IN_FORCE
from radix_tlru.tools.scrape import Rank
from radix_tlru.tools.top.cells import NONE, percent, titled_table, whole

__all__ = ["dry_run_text", "shadow_table"]


class _Figures(NamedTuple):
    """What the shadow caches counted, by candidate."""

    excess: dict[str, float]  # TEL, tokens
    violations: dict[str, float]  # requests beyond ξ
    cached: dict[str, float]  # share of the prompt tokens


def dry_run_text(rank: Rank) -> Text:
    """What would have been saved, in words."""
    text = Text.assemble(("dry run: ", "bold"), f"stock lru evicts; {rank.policy} would be in force now. ")
    excess, violations, cached = _figures(rank)
    if not excess["lru"]:
        return text.append("So far nothing in the shadow caches went beyond ξ under lru: there is no tail to save.")
    tel, beyond = (percent(each[IN_FORCE] / each["lru"] - 1.0, "+") for each in (excess, violations))
    hits = f"{percent(cached[IN_FORCE])} instead of {percent(cached['lru'])}"
    asked = f"{whole(rank.value('shadow_requests_total'))} requests"
    return text.append(
        f"With what would have been in force so far: TEL {tel}, requests beyond ξ {beyond}, {hits} of prompt tokens "
        f"cached. So say shadow caches, of {asked}."
    )


def shadow_table(rank: Rank) -> Table:
    """TEL, requests beyond ξ and hits of each candidate, and why it may not be in force."""
    asked = rank.value("shadow_requests_total") or 0
    table = titled_table("TEL in shadow caches")
    table.add_column("policy", no_wrap=True)
    for name in ("tokens", "against lru", "beyond ξ", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why not", no_wrap=True)
    refused = rank.by("refused", "policy")
    excess, violations, cached = _figures(rank)
    lru = excess.get("lru", 0.0)
    for name, tokens in excess.items():
        ratio = percent(tokens / lru - 1.0, "+") if lru and name != "lru" else NONE
        in_force = name == rank.policy
        code = int(refused.get(name, 0.0))
        reason = REASONS[code - 1] if code else ""
        label = f"{name} ◂ in force" if in_force else "as was in force" if name == IN_FORCE else name
        figures = whole(tokens), ratio, whole(violations[name]), percent(cached[name]) if asked else NONE
        table.add_row(label, *figures, reason, style="bold" * in_force)
    table.caption = f"tokens; {asked:,.0f} requests of sampled conversations" if asked else "nothing sampled yet"
    return table


def _figures(rank: Rank) -> _Figures:
    excess, violations, uncached = (
        rank.by(f"shadow_{name}_total", "policy") for name in ("excess_tokens", "violations", "uncached_tokens")
    )
    prompt = rank.value("shadow_prompt_tokens_total") or math.inf
    return _Figures(excess, violations, {name: 1.0 - tokens / prompt for name, tokens in uncached.items()})
