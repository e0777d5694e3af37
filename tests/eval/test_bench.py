"""`python -m eval bench`: of live servers, who is played when, and what the table makes of it; whose time is taken."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from eval import cost
from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.cost.command import SECTIONS, USED
from eval.cost.decision import Clock, decisions
from eval.cost.latency import FIGURES as FIGURES_NOTICED
from eval.cost.latency import Noticed, asked, noticed
from eval.cost.longest import CALLS, LEAF_TOKENS, LEAST_LEAVES, longest
from eval.cost.longest import CANDIDATES as CANDIDATES_OF_LONGEST
from eval.cost.longest import TRACE as LONGEST_TRACE
from eval.cost.scheduler import AGAIN, LEAST_POOL, POOL, Cost, arms, cost_table, filling, order, ratio
from eval.cost.served import AGAIN as AGAIN_SERVED
from eval.cost.served import CANDIDATES, STOCK, caches_compared, context_of, played, served
from eval.cost.simulator import POLICIES, Setting, flatness
from eval.cost.trim import mean_and_worst
from eval.live.replay.load import load_from
from eval.live.replay.schedule import in_order
from eval.traces import open_trace
from radix_tlru import Config
from radix_tlru.config import CHUNKS_IN_POOL, MAX_CHUNK

COST = Cost("stock lru", 0, 1000, 100, 50, 2000, None, 0.01, 1.0, 4.0, (10.0, 20.0, 30.0), 0.5)


def test_every_arm_goes_first_in_some_repeat_and_all_of_them_run_in_each() -> None:
    compared = arms([1, 64])
    names = [arm.name for arm in compared]
    ours = f"radix-tlru, 1/{CHUNKS_IN_POOL} of the pool"
    assert names == ["stock lru", "stock tlru", ours, "trim chunk 1", "trim chunk 64", "etlru", AGAIN]
    parts = list(order(compared, repeats=7))
    assert [part[1].name for part in parts[::7]] == names
    assert all(sorted(arm.name for n, arm in parts if n == repeat) == sorted(names) for repeat in range(7))
    assert compared[4].flags[-2:] == ("--tlru-trim-chunk", "64")


def test_a_ratio_is_of_two_arms_in_one_repeat() -> None:
    slow = replace(COST, repeat=1, eviction_s=0.04)  # the machine was four times slower for a while
    ours = [replace(cost, arm="ours", eviction_s=cost.eviction_s / 2, splits=10) for cost in (COST, slow)]
    console = Console(width=120)
    with console.capture() as printed:
        console.print(cost_table([COST, slow, *ours]))
    lines = printed.get().splitlines()
    step = next(number for number, line in enumerate(lines) if "eviction, µs / step" in line)
    assert "250.0" in lines[step]  # (10 + 40) / 2 ms in 100 steps
    assert "125.0" in lines[step]
    assert "× 0.50 ± 0.00" in lines[step + 1]
    splits = next(line for line in lines if "splits / 1,000" in line)
    assert "–" in splits
    assert "10.0" in splits


@pytest.mark.long
def test_servers_that_are_asked_in_turn_answer_the_same_requests() -> None:
    requests, unmeasured = 8, 2
    found = {one.arm: one for one in noticed(0, requests, "4/12", LEAST_POOL)}
    assert list(found) == ["stock lru", "stock tlru", "etlru", AGAIN]
    (tokens,) = {one.tokens for one in found.values()}
    assert tokens >= 4 * (requests - unmeasured)
    for one in found.values():
        assert len(one.ttft_ms) == requests - unmeasured
        assert 0 < len(one.itl_ms) <= tokens - len(one.ttft_ms), "tokens of a first event have no time of their own"
        assert one.cpu_s > 0
        assert all(figure.of(one) > 0 for figure in FIGURES_NOTICED)


def test_turns_are_asked_by_when_they_come_and_each_after_the_one_before_it() -> None:
    load = load_from(open_trace("synthetic:conversations=20").requests)
    turns = [turn for _, turn, _ in in_order(load.conversations, speed=1.0)]
    assert len(set(turns)) == len(turns) == load.requests
    assert turns != sorted(turns), "conversations overlap"
    assert all(
        [turn.turn for turn in turns if turn.conversation == one] == list(range(len(conversation.turns)))
        for one, conversation in load.by_index().items()
    )


def test_an_interval_is_of_the_logarithms() -> None:
    assert ratio([2.0]) == "× 2.00"
    assert ratio([0.5, 2.0]).startswith("× 1.00 ± ")
    reach = math.exp(3.182 * math.log(1.25) * math.sqrt(4 / 3) / math.sqrt(4)) - 1  # t of three degrees of freedom
    assert ratio([0.8, 1.25, 0.8, 1.25]) == f"× 1.00 ± {reach:.2f}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "eviction", "--samples", "0"], "--samples 0: must be 1 or more"),
        (["--only", "eviction", "--leaves", "10", "0"], "--leaves 0: must be 1 or more"),
        (["--only", "simulator", "--turns", "9"], "--turns 9: must be 10 or more"),
        (["--only", "served", "--capacity", "511"], "--capacity 511: must be at least one page, --page-size 512"),
        (["--only", "decision", "--page-size", "0"], "--page-size 0: must be 1 or more"),
        (["--only", "scheduler", "--aging", "-1"], "--aging -1: must be 0 or more"),
        (["--answers", "9/3"], "--answers 9/3: must be LEAST/MOST, whole numbers of tokens from 1 to 1000000"),
        (["--answers", "5"], "--answers 5: must be LEAST/MOST, whole numbers of tokens from 1 to 1000000"),
        (["--answers", "0/5"], "--answers 0/5: must be LEAST/MOST, whole numbers of tokens from 1 to 1000000"),
        (["--only", "scheduler", "--repeats", "0"], "--repeats 0: must be 1 or more"),
        (["--only", "scheduler", "--chunks", "64", "0"], "--chunks 0: must be 1 or more"),
        (["--only", "eviction", "--pool", "64k"], "--pool: has no effect on --only eviction; leave it out"),
        (["--only", "served", "--turns", "5k"], "--turns: has no effect on --only served; leave it out"),
        (["--only", "decode", "--page-size", "16"], "--page-size: has no effect on --only decode; leave it out"),
        (
            ["--only", "scheduler", "--pool", "16k"],
            "--pool 16000: must be 16384 or more, so that 8 users alone do not fill it",
        ),
        (
            ["--only", "latency", "--pool", "1k"],
            "--pool 1000: must be 16384 or more, so that 8 users alone do not fill it",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert capsys.readouterr().err == f"eval bench: {said}\n"


def test_a_number_of_leaves_that_no_longest_call_is_timed_with_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "longest", "--leaves", str(LEAST_LEAVES - 1), "1000000"]) == 0
    few, many = filter(None, capsys.readouterr().out.splitlines())
    assert few == "--leaves 9: the longest calls are timed with 10 to 200000 leaves."
    assert many.startswith("--leaves 1000000: ")


def test_the_fewest_leaves_are_room_for_each_context_of_the_longest_calls() -> None:
    longest_context = max(len(request.context) for request in open_trace(LONGEST_TRACE).requests)
    assert longest_context < LEAST_LEAVES * LEAF_TOKENS


@pytest.mark.parametrize("requests", [4, 400, 401, 2_000])
def test_servers_that_are_asked_in_turn_are_asked_as_often_as_it_says(requests: int) -> None:
    assert [asked(repeat, requests, "4/12").requests for repeat in range(3)] == [requests] * 3


def test_each_section_names_the_flags_that_it_reads() -> None:
    assert set(USED) == set(SECTIONS)
    for name, flags in USED.items():
        source = (Path(cost.__file__).parent / f"{name}.py").read_text()
        sizes = {"capacity", "threshold", "page_size"} if "Setting.of(args)" in source else set()
        assert {*re.findall(r"\bargs\.(\w+)", source), *sizes} == set(flags), name


def test_a_change_from_nothing_counts_in_no_mean_and_is_no_change_of_0() -> None:
    assert mean_and_worst([0.1, math.nan, 0.3]) == (pytest.approx(0.2), 0.3)
    assert all(map(math.isnan, mean_and_worst([math.nan])))


def test_answers_of_one_token_have_no_inter_token_latency() -> None:
    assert [figure.of(Noticed("lru", 0, ttft_ms=[20.0], cpu_s=0.5)) for figure in FIGURES_NOTICED] == [
        *(None, None, None),
        *(20.0, 20.0, 20.0),
        500.0,
    ]


def test_the_tenths_of_a_long_trace_are_all_of_it() -> None:
    console = Console(width=120)
    with console.capture() as printed:
        console.print(flatness(15))
    done = [line.split()[0] for line in printed.get().splitlines() if "MiB" in line]
    assert done == ["1", "3", "4", "6", "7", "9", "10", "12", "13", "15"]


def test_earlier_conversations_fill_the_pool_and_the_default_trim_is_a_share_of_it() -> None:
    for pool in (LEAST_POOL, POOL, 4 * POOL):
        turns = [turn for conversation in filling(pool).conversations for turn in conversation.turns]
        tokens = sum(turn.output_tokens + sum(segment.tokens for segment in turn.segments) for turn in turns)
        assert pool < tokens < 2 * pool
        assert Config().for_pool(pool) == Config(trim_chunk=min(pool // CHUNKS_IN_POOL, MAX_CHUNK))


def test_a_cache_whose_decisions_are_timed_decides_as_it_would_and_each_turn_is_counted() -> None:
    requests = open_trace("synthetic:conversations=60").requests
    plain, timed = (simulated_cache("etlru", 8_000, threshold=600, page_size=16) for _ in range(2))
    clock = Clock(timed.order)
    for start in range(0, len(requests), 100):
        turn = requests[start : start + 100]
        assert simulate(timed, turn) == simulate(plain, turn)
        clock.turn()
    assert sum(timed.evicted.values()) > 0
    assert clock.decisions >= len(clock.turns) > 1
    assert all(ns > 0 for ns in clock.turns)


def test_each_policy_has_a_row_of_what_it_decided() -> None:
    drawn = Console(width=120)
    with drawn.capture() as shown:
        drawn.print(decisions("synthetic:conversations=30", Setting()))
    rows = [line.split() for line in shown.get().splitlines()]
    assert [row[:-3] for row in rows if row and row[0] in ("tlru", "tlru,", "etlru")] == [
        name.split() for name in POLICIES
    ]


def test_all_tokens_are_cached_and_radix_tlru_is_told_of_every_turn() -> None:
    requests, units = open_trace("synthetic:conversations=40").requests, dict[int, int]()
    contexts = [context_of(request, Setting(), units) for request in requests]
    caches = caches_compared(Setting())
    found = {
        name: played(cache, requests, contexts, Setting(), told=name in CANDIDATES)[1] for name, cache in caches.items()
    }
    assert all(each == found[STOCK] for each in found.values())  # there is room for all
    assert any(found[STOCK])
    for name in CANDIDATES:
        learner = caches[name].cache.tail.learner
        assert learner.served.requests == sum(map(bool, contexts)) > 50  # of no page there is nothing to tell


def test_every_cache_as_served_has_a_row() -> None:
    console = Console(width=160)
    with console.capture() as printed:
        console.print(served("synthetic:conversations=40", Setting()))
    lines = [line.strip() for line in printed.get().splitlines()]
    for name in (STOCK, *CANDIDATES, AGAIN_SERVED):
        assert any(line.startswith(f"{name} ") for line in lines), name


@pytest.mark.long
def test_every_call_of_the_schedulers_thread_is_timed_in_every_cache_that_has_it() -> None:
    drawn = Console(width=160)
    with drawn.capture() as shown:
        drawn.print(longest(60, LONGEST_TRACE.replace("conversations=3000", "conversations=120")))
    lines = [line for line in shown.get().splitlines() if line.split()]
    rows = [[cell for cell in re.split(r"\s{2,}", line.strip()) if cell] for line in lines[3:]]
    caches: dict[str, list[str]] = {}
    for row in rows:
        if len(row) == 6:
            call = row.pop(0)
        caches.setdefault(call, []).append(row[0])
        p50, high, worst = map(float, row[2:])
        assert 0 < p50 <= high <= worst
    both, of_stock = list(CANDIDATES_OF_LONGEST), ("match", "insert", "evict", "room")
    assert caches == {said: [STOCK, *both] if call in of_stock else both for call, said in CALLS.items()}
