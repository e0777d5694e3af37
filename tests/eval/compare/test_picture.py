"""Heat maps: short names of traces, never the same for two; the gap where there is one."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import pytest

from eval.compare.picture import gap_closed, kinds, worst_figures
from eval.compare.verdict import verdicts
from eval.render.looks import RC
from tests.helpers.verdict_rows import row


def short(*traces: str) -> list[str]:
    return list(kinds([{"trace": trace} for trace in traces]).values())


def test_seeds_of_one_kind_share_a_line() -> None:
    assert short("agents:runs=9,seed=0", "agents:runs=9,seed=1", "day:seed=3") == ["agents", "agents", "day"]


def test_parameters_are_named_where_two_kinds_begin_alike() -> None:
    assert short("agents:runs=9,seed=0", "agents:runs=12") == ["agents:runs=9", "agents:runs=12"]


def test_variants_of_a_trace_with_a_long_name_have_lines_of_their_own() -> None:
    long = "conversations_of_a_whole_year_2026"
    found = short(long, f"{long}:half-1", f"{long}:half-2", f"{long}:first-turns")
    assert len(set(found)) == 4
    assert [name[-6:] for name in found[1:]] == ["half-1", "half-2", "-turns"]
    assert max(map(len, found)) < 34


def test_mixes_are_named_by_both_traces_and_how_they_are_mixed() -> None:
    agents, others = (
        ["agents:runs=9,seed=0", "agents:runs=9,seed=1"],
        ["day:seed=3", "conversations_of_a_whole_year_2026"],
    )
    mixes = [f"{first} {how} {second}" for how in ("then", "amid") for first in agents for second in others]
    found = short(*agents, *others, *mixes)
    assert found[:4] == ["agents", "agents", "day", others[1]]
    shown = [f"agents {how} {second}" for how in ("then", "amid") for second in ("day", others[1])]
    assert found[4:] == [*shown[:2], *shown[:2], *shown[2:], *shown[2:]]


def test_traces_of_a_mix_have_their_parameters_where_two_begin_alike() -> None:
    long = "synthetic:conversations=1000,turns=2,turn_rate_sigma=1"
    assert short("day", "day:sessions=9", f"day:sessions=9,seed=1 with {long}", f"{long} then day") == [
        *("day", "day:sessions=9", "day:sessions=9 with synthetic", "synthetic then day"),
    ]


def test_long_names_that_differ_in_the_middle_alone_are_whole() -> None:
    names = [f"synthetic:conversations=1000,turns={turns},turn_rate_sigma=1" for turns in (2, 3)]
    assert short(*names) == names


def test_a_gap_of_next_to_nothing_is_not_drawn_as_one() -> None:
    lru = [row("lru", 1_000), row("lru", 2_000)]
    optimum = [row("tail-belady", 1_000, tel=1_500_000), row("tail-belady", 2_000, tel=2_999_000)]  # of 3,000,000
    first, _ = gap_closed(verdicts([*lru, *optimum, row("etlru", 1_000, tel=2_700_000), row("etlru", 2_000)])).axes
    assert [text.get_text() for text in first.texts][-1] == "–"
    assert len(first.texts) == 2


def test_the_gap_of_a_field_is_the_mean_over_all_thresholds() -> None:
    def both(policy: str, *tels: int) -> list[dict[str, Any]]:
        return [
            row(policy, 1_000, tel=tel) | {"threshold": xi, "cell": f"{policy}-{xi}"} for xi, tel in enumerate(tels, 1)
        ]

    own = both("etlru", 2_400_000, 1_200_000)  # of 3,000,000: 20 % and 60 %
    first, _ = gap_closed(verdicts([*both("lru", *[3_000_000] * 2), *own, *both("tail-belady", 0, 0)])).axes
    assert [text.get_text() for text in first.texts] == ["40\N{NARROW NO-BREAK SPACE}%"]


def test_only_a_loss_that_counts_is_brown() -> None:
    own = [row("etlru", 1_000, p50=1_009), row("etlru", 2_000, p50=1_011)]  # +0.9 %, +1.1 %
    (axes,) = worst_figures(verdicts([row("lru", 1_000), row("lru", 2_000), *own])).axes
    assert [text.get_text()[:4] for text in axes.texts] == ["p50 ", "p50 "]
    ((white, brown),) = axes.images[0].get_array().tolist()
    assert (white, round(brown, 3)) == (0.0, 0.011)


def test_where_one_figure_is_equal_and_another_better_a_policy_is_no_worse_and_not_equal() -> None:
    own = [row("etlru", 1_000, p50=900), row("etlru", 2_000)]  # the seven other figures are lru's
    (axes,) = worst_figures(verdicts([row("lru", 1_000), row("lru", 2_000), *own])).axes
    assert [text.get_text() for text in axes.texts] == ["no worse", "equal"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("1,000", "2,000"), "capacity (tokens)"),
        (("10 %", "50 %"), "capacity (of the working set)"),
        (("10 %", "2,000"), "capacity"),
        (("1,000", "50 %"), "capacity"),
    ],
)
def test_the_axis_says_what_all_of_its_capacities_are(asked: tuple[str, str], said: str) -> None:
    both = [
        row(policy, capacity) | {"capacity_asked": text}
        for policy in ("lru", "etlru")
        for capacity, text in zip((1_000, 2_000), asked, strict=True)
    ]
    (axes,) = worst_figures(verdicts(both)).axes
    assert axes.get_xlabel() == said


def test_a_dollar_in_the_name_of_a_trace_is_no_formula() -> None:
    priced = [row(policy, 1_000) | {"trace": "a$_{$b"} for policy in ("lru", "etlru")]
    with mpl.rc_context(RC):
        figure = worst_figures(verdicts(priced))
        figure.savefig(io.BytesIO())
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a$_{$b"]
