"""What `radix-tlru top` and its metrics say of the leaves where the policy in force computes it, and where not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from radix_tlru.config import PolicyName
from radix_tlru.learning.guard import REASONS
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.objective.calibration import EVERY, PrefillBatch
from radix_tlru.objective.overhead import FirstToken
from radix_tlru.policy.models import Leaf, SingleGroup
from radix_tlru.tools.scrape import read
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
    assert rank.value("evictable_leaves") == len(watched.tail.order) > 0
    assert rank.value("splits_total") == watched.tail.counts["splits"] > 0


def test_once_nothing_can_be_evicted_no_victim_is_shown_however_short_the_last_look_is_ago() -> None:
    watched = Watched("tlru")
    victims = watched.serve(80).ranks[0].by("next_victim_cached_tokens", "position")
    assert min(victims.values()) > 0
    watched._metrics.victims.report()
    watched.cache.reset()
    watched._metrics.victims.report()
    (rank,) = read(watched.text(), "http://server").ranks
    assert set(rank.by("next_victim_cached_tokens", "position").values()) == {0.0}


def test_what_the_threshold_is_learned_from_is_what_the_ranks_agreed_on() -> None:
    """Prefills take 5 ms and 0.1 ms a token, first tokens 20 ms more: (100 - 20 - 5) / 0.1, in pages of 16, is 736."""
    watched = Watched("tlru", threshold=None, ttft_slo_ms=100)
    live, told = watched.cache.live_threshold, list[FirstToken]()
    (before,) = watched.serve(0).ranks
    assert [before.value(name) for name in ("threshold_samples", "alpha_ms_per_token", "overhead_ms")] == [0, 0, 0]
    for number in range(EVERY):
        tokens = 50 * (number + 1)
        ms = 5.0 + 0.1 * tokens
        live.count_batch(PrefillBatch((f"{number}",), None, tokens, tuple(told)), ms)
        told = [FirstToken(f"{number}", ms + 20.0)]
    (rank,) = watched.serve(0).ranks
    names = ("alpha_ms_per_token", "beta_ms", "prefill_late_ratio", "overhead_ms", "threshold_tokens")
    assert [rank.value(name) for name in names] == pytest.approx([0.1, 5.0, 1.0, 20.0, 736])
    assert rank.value("threshold_samples") == live.samples == EVERY


@pytest.mark.parametrize("reason", REASONS)
def test_a_policy_that_may_not_be_in_force_is_told_by_the_number_of_its_reason(reason: str) -> None:
    watched = Watched("etlru")
    assert watched.tail.learner is not None
    watched.tail.learner.rule.refused["etlru"] = reason
    (rank,) = watched.serve(1).ranks
    refused = rank.by("refused", "policy")
    assert refused.pop("etlru") == 1 + REASONS.index(reason)
    assert set(refused.values()) == {0.0}


class BySteps(SingleGroup):
    """A return model of one's own, whose time is known to itself alone."""

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def rate(self, group: int, key: float, now: float) -> float:
        return 1.0 / (1.0 + (now - key) // 10.0)

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """It goes by the leaf."""


@pytest.mark.parametrize(
    ("policy", "given", "unit"),
    [
        ("tlru", {"next_prompt_estimate": None}, "1 / turns"),
        ("tlru", {}, "1 / (matches and inserts)"),
        ("etlru", {"median_weight": None}, "1 / (matches and inserts)"),
        ("etlru", {}, "1 / s"),
        ("etlru", {"return_model": "eval.examples.tool_calls:AfterToolCalls"}, "1 / (matches and inserts)"),
        ("etlru", {"return_model": f"{__name__}:BySteps"}, "1 / (time of --tlru-return-model)"),
    ],
    ids=["tlru", "Q pinned", "lru in force", "learned", "by recency", "in a time of its own"],
)
@pytest.mark.parametrize("hints", [False, True])
def test_return_rates_have_the_unit_of_the_model_in_force_said_by_the_server(
    policy: PolicyName, given: dict[str, Any], unit: str, hints: bool
) -> None:
    watched = Watched(policy, **given)
    assert watched.tail.learner is not None
    if hints:  # a client gave one: the models are wrapped from then on
        watched.tail.learner.candidates.take_hints()
    snapshot = watched.serve(30)
    units = snapshot.ranks[0].by("return_rate_unit", "unit")
    assert [name for name, in_force in units.items() if in_force] == [unit]
    assert f"λ: how soon it returns, {unit}; lowest cost goes first" in " ".join(shown(snapshot).split())
