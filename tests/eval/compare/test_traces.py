"""Which traces are compared on, how large a working set is, and which capacities follow."""

from __future__ import annotations

import random
from pathlib import Path

from eval.compare.settings import size
from eval.compare.traces import QUICK_SEEDS, SUITE, SUITE_SEEDS
from eval.traces import GENERATORS, open_trace
from eval.traces.facts import facts
from eval.traces.request import Path as Context
from eval.traces.request import Request
from eval.traces.working_set import working_set
from tests.helpers.block_traces import BLOCK, write_blocks


def test_the_suite_has_every_kind_but_the_example_of_four_requests() -> None:
    assert {name.partition(":")[0] for name in SUITE} == set(GENERATORS) - {"figure1"}
    assert all("seed=" not in name for name in SUITE)
    assert set(QUICK_SEEDS) < set(SUITE_SEEDS)


def test_a_token_is_in_the_working_set_from_its_first_request_to_its_last(tmp_path: Path) -> None:
    #   request       0       1       2       3          4
    prompts = [[1, 2, 3], [7, 8], [1, 2, 4], [7, 8, 9], [5]]
    # 1, 2 from 0 to 2 and 7, 8 from 1 to 3: four blocks between 1 and 2. No later prompt has 3, 4, 5 or 9.
    trace = open_trace(str(write_blocks(tmp_path / "t.jsonl", prompts)))
    assert working_set(trace.requests) == 4 * BLOCK


def test_a_working_set_counts_what_each_moment_still_needs() -> None:
    rng = random.Random(3)
    contexts = [[rng.randrange(4)] for _ in range(6)]
    requests = []
    for number in range(60):
        chosen = rng.choice(contexts)
        chosen.append(chosen[-1] * 7 + rng.randrange(2) + 10)
        if len(chosen) > 6:
            del chosen[1:]
        ends = [30 * (place + 1) for place in range(len(chosen))]
        path = Context(tuple(chosen), tuple(ends))
        requests.append(Request(float(number), None, path, path, len(path), 0))

    def needed(number: int) -> int:
        seen = {unit for request in requests[: number + 1] for unit in request.context.ids}
        later = {unit for request in requests[number + 1 :] for unit in request.prompt.ids}
        return 30 * len(seen & later)

    assert working_set(requests) == max(map(needed, range(len(requests)))) > 0


def test_a_capacity_is_tokens_or_a_share_of_the_working_set() -> None:
    assert size("500k").of(1_000_000, 64) == 500_000
    assert size("25%").of(1_000_000, 64) == 250_000
    assert size("5%").of(100, 64) == 64  # at least a page


def test_a_block_trace_tells_conversations_by_the_turns_that_they_continue(tmp_path: Path) -> None:
    prompts = [[1, 2], [5, 6], [1, 2, 3], [5, 6, 7], [1, 2, 3, 4], [8, 9]]
    requests = open_trace(str(write_blocks(tmp_path / "t.jsonl", prompts))).requests
    assert list(facts(requests).conversation_of) == [0, 1, 0, 1, 0, 2]
