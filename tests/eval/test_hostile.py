"""`python -m eval hostile`: an attacker beside an honest tenant."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.simulate.cells import Cell
from eval.studies.figures import figures
from eval.studies.hostile import ANSWER, NEXT_PROMPT, Attack, attacks, damage, requests_of
from eval.traces import open_trace

CAPACITY, THRESHOLD, NEXT_PROMPT_ESTIMATE, PAGE = 16_384, 768, 128, 16
SMALL = "chat-mix:conversations=80,arrival_span_s=100,wait_median_s=40"


def cell(policy: str) -> Cell:
    return Cell("honest", policy, CAPACITY, THRESHOLD, NEXT_PROMPT_ESTIMATE, 0.0, PAGE)


@pytest.mark.parametrize("attack", attacks(CAPACITY), ids=str)
def test_an_attacker_sends_what_it_may_and_all_the_time(attack: Attack) -> None:
    rate, until_s = 3_000.0, 400.0
    sent = list(requests_of(attack, rate, until_s))
    assert [request.arrival_s for request in sent] == sorted(request.arrival_s for request in sent)
    assert [r.arrival_s - 500 for r in requests_of(attack, rate, until_s + 500, from_s=500)] == pytest.approx(
        [request.arrival_s for request in sent]
    )
    for half in ([r for r in sent if r.arrival_s < 200], [r for r in sent if r.arrival_s >= 200]):
        assert sum(request.prompt_tokens for request in half) == pytest.approx(rate * 200, rel=0.1)


def test_an_attackers_turns_continue_each_other_and_nothing_else() -> None:
    bait = Attack("bait", 100, turns=3, wait_s=5.0, last_prompt=1_000)
    sent = [r for r in requests_of(bait, rate=500.0, until_s=60.0) if r.conversation == "attacker-9"]
    assert [request.prompt_tokens for request in sent] == [
        100,
        100 + ANSWER + NEXT_PROMPT,
        100 + ANSWER + NEXT_PROMPT + ANSWER + 1_000,
    ]
    assert [later.arrival_s - turn.arrival_s for turn, later in itertools.pairwise(sent)] == pytest.approx([5.0, 5.0])
    for turn, later in itertools.pairwise(sent):
        assert later.prompt.common(turn.context) == len(turn.context)
    others = [r for r in requests_of(bait, rate=500.0, until_s=60.0) if r.conversation != "attacker-9"]
    assert {other.context.common(sent[-1].context) for other in others} == {0}
    assert {other.context.common(r.context) for r in open_trace(SMALL).requests for other in others} == {0}


def test_nobody_beside_the_tenant_is_a_plain_simulation_of_its_trace() -> None:
    honest = open_trace(SMALL).requests
    cache = simulated_cache(
        "tlru", CAPACITY, threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT_ESTIMATE, page_size=PAGE
    )
    cached = simulate(cache, honest)
    assert damage(honest, None, 1.0, cell("tlru")) == figures(honest, cached, THRESHOLD, 0)


def test_an_attacker_does_harm_and_under_tlru_no_more_than_under_lru() -> None:
    honest = open_trace(SMALL).requests
    alone = damage(honest, None, 1.0, cell("lru"))
    worst = {}
    for policy in ("lru", "tlru"):
        done = [damage(honest, attack, 1.0, cell(policy)) for attack in attacks(CAPACITY)]
        worst[policy] = (max(one.p95 for one in done), max(one.tel for one in done))
    assert worst["lru"] > (alone.p95, alone.tel)
    assert worst["tlru"][0] <= worst["lru"][0]
    assert worst["tlru"][1] < worst["lru"][1]


def test_the_command_prints_a_block_for_each_strength(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--trace", SMALL, "--limit", "60", "--capacity", "8k", "--strength", "0.5", "1"]
    assert main(["hostile", *small, "--policy", "lru", "tlru"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("Uncached tokens of 60 honest requests") == 2
    for block in ("alone", "flood (3)", "return (4)", "bait (4)"):
        assert printed.count(block) == 2
    assert printed.count(" tlru ") == 2 * 4


def test_a_block_has_the_worst_of_its_attacks_figure_by_figure(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--trace", SMALL, "--limit", "150", "--capacity", "80k", "--strength", "1"]
    assert main(["hostile", *small, "--policy", "lru"]) == 0
    shown = capsys.readouterr().out.partition("return (4)")[2].partition(" lru ")[2].split()[:3]
    honest, lru = open_trace(SMALL, limit=150).requests, replace(cell("lru"), capacity=80_000)
    done = [damage(honest, attack, 1.0, lru) for attack in attacks(80_000) if attack.kind == "return"]
    every = [[getattr(one, name) for one in done] for name in ("p50", "p95", "tel")]
    assert all(min(each) < max(each) for each in every)
    assert shown == [f"{max(each):,.0f}" for each in every]


def test_a_weight_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--trace", SMALL, "--limit", "30", "--capacity", "8k", "--strength", "0.5"]
    assert main(["hostile", *small, "--policy", "lru", "tlru", "--median-weight", "0.3"]) == 0
    assert "ξ = 768, w = 0.3." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--strength", "0"], "--strength 0: must be more than 0"),
        (["--strength", "nan"], "--strength nan: must be more than 0"),
        (["--page-size", "4k"], "--page-size 4000: must be at most a 64th of --capacity "),
        (["--trace", SMALL, "--limit", "1"], "lasts no time"),
        (["--threshold", "128"], "--threshold 128: must be more than --next-prompt-estimate 128"),
        (["--policy", "lru", "--median-weight", "0.5"], "--median-weight 0.5: has no effect on --policy lru; leave it"),
        (["--threshold", "100", "--policy", "tlru"], "--threshold 100: must be more than --next-prompt-estimate 128"),
    ],
)
def test_what_cannot_be_done_is_one_line(wrong: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hostile", *wrong]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eval hostile: ")
    assert named in said
    assert "\n" not in said.strip()
