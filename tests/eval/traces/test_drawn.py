"""Generated traces whose parameters are drawn: which are, how far, and that a seed always draws the same."""

from __future__ import annotations

import pytest

from eval.compare.traces import SUITE
from eval.traces import generator_of, open_trace
from eval.traces.drawn import drawn
from eval.traces.parameters import parse


def parameters_of(name: str) -> dict[str, float]:
    """All of them, as they are read."""
    generator = generator_of(name)
    assert generator is not None
    assert generator.parameters is not None
    made = parse(generator.parameters, name.partition(":")[2])
    return {key: getattr(made, key) for key in generator.defaults()}


@pytest.mark.parametrize("name", SUITE)
def test_what_is_given_stays_and_the_others_are_within_their_ranges(name: str) -> None:
    given = {pair.partition("=")[0] for pair in name.partition(":")[2].split(",")}
    before, moved = parameters_of(name), set()
    for seed in range(40):
        for key, value in parameters_of(drawn(name, seed)).items():
            default = before[key]
            if key == "seed":
                assert value == seed
            elif key in given or key == "peak_hour" or not isinstance(default, int | float) or default in (0, 1):
                assert value == default, key
            else:
                moved.add(key)
                if key.endswith(("_share", "_probability")):
                    value, default, most = value / (1 - value), default / (1 - default), 4.0
                else:
                    most = 2**0.5 if key.endswith("_sigma") else 2.0
                rounding = 0.5 if isinstance(default, int) else 0.03 * default
                assert default / most - rounding <= value <= default * most + rounding, key
    assert moved, "some are drawn of each kind"


def test_a_seed_draws_the_same_each_time_and_another_one_others() -> None:
    one, again, other = (drawn("thinking:sessions=30", seed) for seed in (1, 1, 2))
    assert one == again
    assert one.removesuffix("seed=1") != other.removesuffix("seed=2")
    assert open_trace(one).requests == open_trace(again).requests


def test_draws_of_two_kinds_have_nothing_to_do_with_each_other() -> None:
    agents, compaction = (parameters_of(drawn(f"{kind}:sessions=9", 1)) for kind in ("subagents", "parallel-tools"))
    assert agents["tool_median_s"] != compaction["tool_median_s"]
