"""What policies promise on traces of many kinds: the command that counts who keeps it."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from eval.__main__ import main
from eval.studies.unseen import KINDS, OPTIMUM, Arm, Change, against_lru, by_kind, leads, summary
from radix_tlru.config import LOAD

ALONE, HELD = Arm("etlru", 0.0), Arm("etlru", LOAD)


def shown(table: Table) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return [line.strip() for line in capture.get().splitlines()]


def test_every_kind_is_one_that_can_be_served() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert all(kind.page_size <= kind.threshold < kind.capacity for kind in KINDS)


def test_a_promise_is_broken_by_more_than_one_per_cent_on_one_trace() -> None:
    fast, slow = Change(-0.5, 1.0, 0.01, 0.2, beyond=True), Change(-0.1, 0.0, 0.012, 0.0, beyond=False)
    late = Change(-0.3, 0.5, 0.023, 0.1, beyond=True)
    paid = {(KINDS[0], 0): {ALONE: fast, HELD: fast}, (KINDS[1], 0): {ALONE: slow, HELD: fast}}
    lines = shown(summary(paid, [ALONE, HELD]))
    assert "etlru w=0 -30.0% +50.0% +10.0% +1.1% +1.2% 1 of 2 0" in [" ".join(line.split()) for line in lines]
    assert "etlru w=load -50.0% +100.0% +20.0% +1.0% +1.0% 0 of 2 0" in [" ".join(line.split()) for line in lines]
    paid[KINDS[5], 0] = {ALONE: late, HELD: fast}
    lines = shown(summary(paid, [ALONE]))
    assert "etlru w=0 -30.0% +50.0% +10.0% +1.5% +2.3% 2 of 3 1" in [" ".join(line.split()) for line in lines]
    (line,) = (line for line in shown(by_kind(paid, [ALONE])) if line.startswith(KINDS[1].trace))
    assert line.split()[-2:] == ["-10.0%", "+1.2%"]


def test_a_lead_of_tlru_is_in_points_of_the_gap() -> None:
    def of_trace(tlru: float, etlru: float, optimum: float) -> dict[Arm, Change]:
        tels = {Arm("tlru", 0.0): tlru, ALONE: etlru, OPTIMUM: optimum}
        return {arm: Change(tel, 0.0, 0.0, 0.0, beyond=False) for arm, tel in tels.items()}

    level = of_trace(-0.2, -0.2, -0.5)
    assert leads({(KINDS[0], 0): level}, 0.0) == "etlru w=0: more TEL than tlru with the same weight on 0 of 1 traces"
    paid = {(KINDS[0], 0): level, (KINDS[0], 1): of_trace(-0.2, -0.19, -0.5), (KINDS[1], 0): of_trace(0.1, 0.3, -0.8)}
    told = "on 2 of 3 traces; at most 20.0 % of lru's more, 25.0 points of the gap to tail-belady-ends"
    assert leads(paid, 0.0).endswith(told)


def test_the_optimum_is_looked_for_where_tlru_is_ahead() -> None:
    behind = against_lru(KINDS[2], 2, [Arm("tlru", 0.0), ALONE])
    assert (OPTIMUM in behind) == (behind[ALONE].tel > behind[Arm("tlru", 0.0)].tel)
    assert OPTIMUM not in against_lru(KINDS[0], 0, [ALONE])


def test_a_p95_that_rises_is_counted_and_whether_it_is_beyond_the_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unseen", "--kinds", "1", "--seeds", "2", "--median-weight", "0", "load", "1"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    counted = {" ".join(line.split()[:2]): line.split()[-4:] for line in lines if " of 1  " in line}
    # With these weights below 1 it rises, but not beyond ξ; tlru with w = 1 is lru.
    raised, held = ["1", "of", "1", "0"], ["0", "of", "1", "0"]
    assert [counted[f"{policy} w={w}"] for policy in ("tlru", "etlru") for w in ("0", "load")] == [raised] * 4
    assert counted["tlru w=1"] == held


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--kinds", "0"], f"--kinds 0: must be 1 to {len(KINDS)}"),
        (["--jobs", "0"], "--jobs 0: must be 1 or more"),
        (["--seeds", "-1"], "--seeds -1: must be 0 or more"),
        (["--median-weight", "2"], "--median-weight 2: must be a number from 0 to 1"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unseen", *flags]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"eval unseen: {line}")
