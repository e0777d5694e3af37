"""What `radix-tlru top` and its metrics say of the leaves where the policy in force computes it, and where not."""

from __future__ import annotations

import math

import pytest

from radix_tlru.config import PolicyName
from tests.helpers.watched import Watched, row, shown


@pytest.mark.parametrize(("policy", "weight", "in_force"), [("etlru", 1.0, "etlru"), ("etlru", None, "lru")])
def test_without_a_threshold_in_force_no_token_is_said_to_be_over_it_or_within(
    policy: PolicyName, weight: float | None, in_force: str
) -> None:
    """etlru with w = 1 goes by the return rate alone; without a w it begins as lru."""
    watched = Watched(policy, median_weight=weight)
    snapshot = watched.serve(80)
    (rank,) = snapshot.ranks
    assert rank.policy == in_force
    tel_safe = rank.value("over_budget_tokens")
    assert tel_safe is not None
    assert math.isnan(tel_safe)
    victims = sum(tokens > 0 for tokens in rank.by("next_victim_cached_tokens", "position").values())
    assert victims > 3
    exceeds = [*rank.by("next_victim_exceed_probability", "position").values()]
    assert all(map(math.isnan, exceeds[:victims]))
    assert rank.by("evicted_tokens_total", "phase") == {"tel_safe": 0.0, "lru": watched.tail.counts["lru"]}
    text = shown(snapshot)
    assert row(text, "TEL-safe now") == "– only under a policy with a threshold: tlru, etlru with w < 1"
    assert row(text, "evicted, TEL-safe") == "0 tokens that cost nothing at the tail"
    assert row(text, "evicted, others").endswith(" all other tokens; without a threshold all are")
    lines = text.partition("Next to go")[2].splitlines()[2 : 2 + victims]
    assert [line.split()[7] for line in lines] == ["–"] * victims, "P(over ξ), behind λ"


def test_with_a_threshold_in_force_they_are_counted() -> None:
    watched = Watched("tlru")
    snapshot = watched.serve(100)
    (rank,) = snapshot.ranks
    tel_safe = rank.value("over_budget_tokens")
    assert tel_safe == watched.tail.order.over_budget
    assert tel_safe is not None
    text = shown(snapshot)
    assert row(text, "TEL-safe now") == f"{tel_safe:,.0f} tokens could go, and all next turns stay within ξ"
    assert not any(map(math.isnan, rank.by("next_victim_exceed_probability", "position").values()))
