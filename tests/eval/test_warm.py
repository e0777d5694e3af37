"""`python -m eval warm`: prompts that are kept warm, on traces that can be worked out by hand."""

from __future__ import annotations

import math
import pathlib
from argparse import Namespace

import pytest

from eval.__main__ import main
from eval.studies.warm import WarmPath, beginnings, compare, serve, warm_paths
from eval.traces import open_trace
from eval.traces.request import Path, Request

SYSTEM, QUESTION, CAPACITY = 1_000, 500, 4_000
CONVERSATIONS, LONG_S = 9, 100.0


def conversation(number: int, begins_with: int) -> Request:
    """A single call, each 100 s: a beginning of 1,000 tokens, and 500 of its own."""
    path = Path((begins_with, 100 + number), (SYSTEM, SYSTEM + QUESTION))
    return Request(LONG_S * (1 + number), str(number), path, path, len(path), 1)


# Every fourth one begins with the prompt 1, the others with what nobody else does: 3 · 1,500 tokens come between.
REQUESTS = [conversation(number, 1 if number % 4 == 0 else 50 + number) for number in range(CONVERSATIONS)]
SIZES = CAPACITY, 600, 1


def test_what_several_begin_with_is_warm_the_most_seldom_used_first() -> None:
    prompt = WarmPath(Path((1,), (SYSTEM,)), 3)
    assert warm_paths(REQUESTS, 2, SYSTEM) == [prompt]
    assert warm_paths(REQUESTS, 4, SYSTEM) == []
    assert warm_paths(REQUESTS, 2, SYSTEM - 1) == []
    seldom = [conversation(10, 2), conversation(11, 2)]
    assert warm_paths([*REQUESTS, *seldom], 2, 2 * SYSTEM) == [WarmPath(Path((2,), (SYSTEM,)), 2), prompt]
    assert warm_paths([*REQUESTS, *seldom], 2, 2 * SYSTEM - 1) == [WarmPath(Path((2,), (SYSTEM,)), 2)]


@pytest.mark.parametrize(
    ("every_s", "found", "prefilled"),
    [
        (None, [0, 0, 0], 0),
        (math.inf, [SYSTEM, 0, 0], SYSTEM),  # 4,500 tokens later it is gone
        (LONG_S, [SYSTEM] * 3, SYSTEM),  # it is used again before 2,500 tokens came
        (4.5 * LONG_S, [SYSTEM] * 3, 3 * SYSTEM),  # it is gone each time, and back before somebody asks
    ],
)
def test_a_warm_prompt_is_found_by_who_begins_with_it(every_s: float | None, found: list[int], prefilled: int) -> None:
    served = serve(REQUESTS, "lru", warm_paths(REQUESTS, 2, SYSTEM), every_s, *SIZES)
    assert len(served.cached) == CONVERSATIONS
    assert [served.cached[number] for number in (0, 4, 8)] == found
    assert served.prefilled == prefilled


def test_what_warm_prompts_gain_and_cost() -> None:
    args = Namespace(policy=["lru"], capacity=CAPACITY, threshold=600, page_size=1, every=[LONG_S])
    found = compare(REQUESTS, warm_paths(REQUESTS, 2, SYSTEM), args)
    shown = {str(column.header): [*column.cells] for column in found.columns}
    # Of those that begin with it the first finds it, or all three do: 500 of 1,500 tokens are left to prefill.
    assert shown["mean of those that begin"] == ["1,500 (+0%)", "1,167 (-22%)", "500 (-67%)"]
    assert shown["mean"] == ["+0.0%", "-7.4%", "-22.2%"]  # of 13,500 tokens 1,000 or 3,000 less
    assert shown["prefilled for it"] == ["0.0%", "8.0%", "9.5%"]  # 1,000 beside 12,500 or 10,500
    assert "that 3 of them begin with: a prompt each 300 s" in str(found.title)


def test_a_first_prompt_of_less_than_a_block_begins_with_nothing() -> None:
    nothing = Path((), ())
    short = Request(50.0, "short", nothing, nothing, 100, 1)
    assert warm_paths([short, *REQUESTS], 2, SYSTEM) == warm_paths(REQUESTS, 2, SYSTEM)
    args = Namespace(policy=["lru"], capacity=CAPACITY, threshold=600, page_size=1, every=[LONG_S])
    assert f"{CONVERSATIONS + 1} requests; 1 warm prompts" in str(
        compare([short, *REQUESTS], warm_paths(REQUESTS, 2, SYSTEM), args).title
    )


def test_the_command_prints_a_row_for_each_policy_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    trace = ["--trace", "agents:runs=60,templates=3", "--capacity", "60k", "--threshold", "2048", "--uses", "2"]
    assert main(["warm", *trace, "--policy", "lru", "etlru", "--every", "60"]) == 0
    told = capsys.readouterr().out
    assert [told.count(row) for row in ("none", "at the start", "each 60 s")] == [2, 2, 2]


AGENTS = "agents:runs=60,templates=3"
CHATS = "chat-mix:conversations=9"


@pytest.mark.parametrize(("trace", "uses", "capacity"), [(AGENTS, 61, "60k"), (CHATS, 2, "60k"), (AGENTS, 2, "2k")])
def test_why_no_prompt_can_be_kept_warm_is_said_truly(
    trace: str, uses: int, capacity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = [each for each in beginnings(open_trace(trace).requests) if each.uses > 1]
    flags = ["--trace", trace, "--threshold", "600", "--uses", str(uses), "--capacity", capacity]
    assert main(["warm", *flags]) == 2
    told = capsys.readouterr().err.removeprefix("eval warm: ").strip()
    if capacity == "2k":
        shortest = min(len(each.path) for each in alike)
        assert told == (
            "--capacity 2000: warm prompts may take 25% of it, 500 tokens, and the shortest that 2 conversations begin "
            f"with has {shortest:,}"
        )
        return
    most = f"at most {max(each.uses for each in alike)}" if alike else "none do"
    assert told == f"--uses {uses}: must be at most the conversations that begin alike; {most} in this trace"
    assert bool(alike) == (trace == AGENTS)


def test_a_trace_that_tells_no_conversations_apart_is_said_to(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls.jsonl"
    record = '{{"timestamp": {0}, "input_length": 1024, "output_length": 1, "hash_ids": [1, {0}]}}\n'
    calls.write_text("".join(map(record.format, (2, 3))))
    assert main(["warm", "--trace", str(calls), "--threshold", "600", "--uses", "2", "--capacity", "8k"]) == 2
    assert f"eval warm: --trace {calls}: does not tell conversations apart" in capsys.readouterr().err
