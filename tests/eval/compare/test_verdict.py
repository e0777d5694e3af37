"""The verdict: what counts as worse than lru, and the sentence that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eval.compare.changes import METRICS, changes, least, losses
from eval.compare.table import cell_grids, summary
from eval.compare.verdict import verdicts
from tests.helpers.verdict_rows import LRU, THRESHOLD, row


def loss(metric: str, own: float, lru: float, requests: int = 5_000) -> float:
    """Of one figure, all others as lru's."""
    index = METRICS.index(metric)
    before = np.array([LRU[name] for name in METRICS])
    before[index] = lru
    after = before.copy()
    after[index] = own
    found = losses(after, before, least(requests, THRESHOLD)).tolist()
    assert found.count(0.0) >= len(METRICS) - 1
    return float(found[index])


@pytest.mark.parametrize(("metric", "lru"), [("mean", 2_000.0), ("p95", 9_000.0), ("violations", 500.0)])
def test_more_is_worse_by_more_than_one_per_cent(metric: str, lru: float) -> None:
    assert loss(metric, lru * 1.02, lru) == pytest.approx(0.02)
    assert loss(metric, lru * 0.9, lru) == pytest.approx(-0.1)


def test_less_is_worse_for_the_hit_ratio() -> None:
    assert loss("hit_ratio", 0.45, 0.5) == pytest.approx(0.1)
    assert loss("hit_ratio", 0.55, 0.5) == pytest.approx(-0.1)
    assert loss("hit_ratio", 0.0, 0.0001) == pytest.approx(0.01)  # 1 of 10,000 prompt tokens


def test_where_lru_has_none_one_request_is_no_loss_and_two_are() -> None:
    assert loss("violations", 1, 0) == pytest.approx(0.01)  # not more than 1 %
    assert loss("violations", 2, 0) == pytest.approx(0.02)
    assert loss("violations", 5, 0, requests=50_000) == pytest.approx(0.01)  # 1 of 10,000
    assert loss("tel", THRESHOLD, 0) == pytest.approx(0.01)  # one request that is over ξ by as much


def test_a_thousandth_of_the_objective_is_no_loss_however_little_lru_has() -> None:
    assert loss("p50", 8, 0) == pytest.approx(0.01)
    assert loss("p50", 28, 20) == pytest.approx(0.01)
    assert loss("p50", 40, 20) == pytest.approx(0.025)


def test_a_change_is_relative_and_unknown_where_lru_has_nothing() -> None:
    found = changes(np.array([1.1, 5.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert found.tolist() == pytest.approx([0.1, float("nan"), 0.0], nan_ok=True)


def test_a_policy_that_is_never_worse_is_told_so() -> None:
    better = [row("etlru", 1_000, tel=2_000_000), row("etlru", 2_000, p50=1_010)]  # p50: +1 %, not more
    _, found = verdicts([row("lru", 1_000), row("lru", 2_000), *better])
    assert found.losses == ()
    assert found.sentence == "etlru: never worse than lru (by more than 1 %, in any of 8 figures in any of 2 settings)."


def test_a_policy_that_is_worse_has_the_list_of_where_the_worst_first() -> None:
    worse = [row("tlru", 1_000, p50=1_500, hit_ratio=0.49), row("tlru", 2_000, violations=700), row("tlru", 3_000)]
    lru = [row("lru", capacity) for capacity in (1_000, 2_000, 3_000)]
    first, found = verdicts([*worse, *lru])
    assert (first.policy, found.policy) == ("lru", "tlru")
    assert [(each.metric, round(each.size, 3)) for each in found.losses] == [
        ("p50", 0.5),
        ("violations", 0.4),
        ("hit_ratio", 0.02),
    ]
    assert str(found.losses[2]).startswith("hit ratio −2.0")
    assert ": 50.00 % → 49.00 % on chats".replace(" %", "\N{NARROW NO-BREAK SPACE}%") in str(found.losses[2])
    assert found.sentence.startswith(
        "tlru: worse than lru by more than 1 % in 2 of 3 settings "
        "(hit ratio 1, p50 1, over ξ 1; 3 of 3 beyond the sampling error). Worst: p50 +50.0"
    )
    assert found.sentence.endswith(
        "1,000 → 1,500 on chats, 1 k tokens, ξ = 8,000".replace("1 k", "1\N{NO-BREAK SPACE}k")
    )


def test_the_gap_is_a_mean_over_settings_that_have_one() -> None:
    lru = [row("lru", 1_000), row("lru", 2_000)]
    optimum = [row("tail-belady", 1_000, tel=2_969_000), row("tail-belady", 2_000, tel=2_970_000)]
    own = [row("etlru", 1_000, tel=2_700_000), row("etlru", 2_000, tel=3_300_000)]
    found = {each.policy: each for each in verdicts([*lru, *optimum, *own])}
    assert found["etlru"].gap_closed == pytest.approx(own[0]["gap_closed"])  # at 2,000 hindsight saves no more than 1 %
    assert found["tail-belady"].title == "tail-belady (oracle)"


def test_a_mean_change_is_over_settings_in_which_lru_has_enough_for_a_ratio() -> None:
    few = row("lru", 2_000, violations=3)
    own = [row("etlru", 1_000, violations=400), row("etlru", 2_000, violations=9)]
    _, found = verdicts([row("lru", 1_000), few, *own])
    assert found.mean_change("violations") == pytest.approx(-0.2)


@pytest.mark.parametrize("other", [{"trace": "agents"}, {"threshold": 2_000}])
def test_a_cell_is_compared_with_lru_on_the_same_trace_under_the_same_threshold(other: dict[str, Any]) -> None:
    lru = row("lru", 1_000)
    there = row("lru", 1_000, tel=9_000_000) | other | {"cell": "lru-there"}
    (_, found) = verdicts([lru, there, row("etlru", 1_000)])
    assert found.lru == (lru,)


@pytest.mark.parametrize(("low", "certain"), [(0.0, 0), (0.001, 1)])
def test_a_loss_is_certain_if_its_interval_has_no_zero(low: float, certain: int) -> None:
    worse = row("tlru", 1_000, p50=1_500)
    worse["against_lru"]["p50"][1:] = [low, 0.9]
    _, found = verdicts([row("lru", 1_000), worse])
    assert f"(p50 1; {certain} of 1 beyond the sampling error)" in found.sentence


def test_a_loss_without_an_interval_is_not_called_certain() -> None:
    alone = row("tlru", 1_000, p50=1_500)
    alone["against_lru"]["p50"][1:] = [None, None]
    _, found = verdicts([row("lru", 1_000), alone])
    assert "(p50 1; 0 of 1 beyond the sampling error, which is not known of 1). Worst: p50 +50.0" in found.sentence


def test_where_etlru_does_what_lru_does_it_is_said_why() -> None:
    _, tlru, etlru = verdicts([row("lru", 1_000), row("tlru", 1_000), row("etlru", 1_000)])
    assert tlru.sentence.endswith("No figure differs from lru.")
    assert etlru.sentence.endswith("It evicts as lru until it can show that it is better, for 250 requests at least.")


def test_tables_count_settings_and_have_the_change_of_each_figure_but_lrus() -> None:
    more = {"prefilled": 1_000, "working_set": 5_000, "gap_interval": None}
    rows = [row("lru", 1_000) | more, row("tlru", 1_000, p50=1_500, violations=700) | more]
    rows[1]["against_lru"]["p50"] = [0.5, 0.42, 0.58]
    lru, tlru = summary(verdicts(rows)).rows
    assert (tlru[:2], lru[1], lru[-1]) == (("tlru", "1 of 1"), "", "1.0 k")
    (cells,) = cell_grids(rows, intervals=True)
    shown = [each[cells.head.index("p50")] for each in cells.rows]
    assert shown == ["1,000", "1,500\N{EM SPACE}+50\N{NARROW NO-BREAK SPACE}% (+42 to +58)"]


def test_the_summary_has_the_mean_change_of_each_figure_and_the_sum_of_what_is_prefilled() -> None:
    own = [row("tlru", 1_000, p50=1_500, violations=400), row("tlru", 2_000, p50=1_100, tel=2_400_000)]
    found = verdicts([row("lru", 1_000), row("lru", 2_000), *({**each, "prefilled": 1_250_000} for each in own)])
    table = summary(found)
    lru, tlru = (dict(zip(table.head, line, strict=True)) for line in table.rows)
    means = {"p50": "+30.0 %", "over ξ": "−10.0 %", "TEL": "−10.0 %", "p95": "0.0 %", "prefilled": "2.5 M"}
    assert {name: tlru[name].replace("\N{NARROW NO-BREAK SPACE}", " ") for name in means} == means
    assert lru["prefilled"] == "20.0 M"


def test_the_interval_of_a_share_of_the_gap_has_no_plus_as_it_is_no_change() -> None:
    more = {"prefilled": 1_000, "working_set": 5_000, "gap_closed": 0.3, "gap_interval": [-0.04, 0.61]}
    (cells,) = cell_grids([row("tlru", 1_000) | more], intervals=True)
    (shown,) = (each[cells.head.index("gap closed")] for each in cells.rows)
    assert shown == "30\N{NARROW NO-BREAK SPACE}% (−4 to 61)"
