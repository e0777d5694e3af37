"""The names of traces on heat maps: short, and never the same for two."""

from __future__ import annotations

from eval.compare.picture import kinds


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


def test_long_names_that_differ_in_the_middle_alone_are_whole() -> None:
    names = [f"synthetic:conversations=1000,turns={turns},turn_rate_sigma=1" for turns in (2, 3)]
    assert short(*names) == names
