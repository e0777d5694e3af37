"""Continuous batching: steps that prefill and decode, and KV that running requests hold."""

from __future__ import annotations

import random
from pathlib import Path as FilePath

import numpy as np
import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache
from eval.simulate.timing import Timing
from eval.studies.batching import Engine, serve_batches
from eval.studies.queue_model import serve
from eval.traces import open_trace
from eval.traces.request import Path, Request
from radix_tlru import Config, policy_for
from tests.helpers.trace_files import write_lines

LINE = Timing(1.0, 100.0, "a test")
ENGINE = Engine(LINE, itl_ms=10.0, slope_ms=5.0, chunk=1_000)


def request(arrival_s: float, name: int, prompt: int, output: int) -> Request:
    """A prompt and an answer that share nothing with others."""
    path = Path((2 * name,), (prompt,))
    return Request(arrival_s, None, path, Path((2 * name, 2 * name + 1), (prompt, prompt + output)), prompt, output)


def cache(capacity: int) -> SimulatedCache:
    return SimulatedCache(policy_for(Config("lru")), capacity)


def test_a_prefill_stops_decoding() -> None:
    served = serve_batches(cache(10_000), [request(0.0, 1, 900, 11), request(0.5, 2, 400, 3)], ENGINE)
    # 1.00 s: 100 + 900 ms, the first token of the first answer. Ten are left.
    # 1.50 s: 100 + 400 ms for the second prompt.
    # 1.53 s: two steps of 15 ms with both, and the second answer ends. 1.61 s: eight of 10 ms, and the first ends.
    assert served.ttft_s.tolist() == pytest.approx([1.0, 1.5 - 0.5])
    assert served.itl_s.tolist() == pytest.approx([(1.61 - 1.0) / 10, 0.015])
    assert served.tokens_per_s == pytest.approx(14 / 1.61)
    assert served.busy == pytest.approx(1.0)


def test_what_does_not_fit_beside_a_running_request_waits_until_it_ends() -> None:
    # The first holds 911 of 1,000 tokens until 1.00 + 10 · 0.01 s; then the second takes 100 + 400 ms.
    served = serve_batches(cache(1_000), [request(0.0, 1, 900, 11), request(0.5, 2, 400, 3)], ENGINE)
    assert served.ttft_s.tolist() == pytest.approx([1.0, 1.1 + 0.5 - 0.5])


def test_a_prompt_beyond_a_chunk_takes_several_steps_and_shares_its_last_one() -> None:
    # Two steps: 1,000 tokens, then the other 200 and all 300 of the next: 1.1 s and 0.6 s.
    served = serve_batches(cache(10_000), [request(0.0, 1, 1_200, 1), request(0.0, 2, 300, 1)], ENGINE)
    assert served.ttft_s.tolist() == pytest.approx([1.7, 1.7])
    assert np.isnan(served.itl_s).all()


def test_no_more_requests_run_than_may() -> None:
    engine = Engine(LINE, itl_ms=10.0, chunk=1_000, most_running=1)
    served = serve_batches(cache(10_000), [request(0.0, 1, 900, 11), request(0.0, 2, 400, 1)], engine)
    assert served.ttft_s.tolist() == pytest.approx([1.0, 1.1 + 0.5])


def test_time_passes_while_nobody_is_there() -> None:
    served = serve_batches(cache(10_000), [request(3.0, 1, 400, 1), request(9.0, 2, 400, 1)], ENGINE)
    assert served.ttft_s.tolist() == pytest.approx([0.5, 0.5])
    assert served.busy == pytest.approx(1.0 / 6.5)


def test_an_answer_that_is_not_decoded_leaves_the_queue_alone() -> None:
    """With answers of one token and a chunk for each prompt it is the server that prefills one after the other."""
    requests = [request(0.3 * number, number, 100 + 90 * (number % 7), 1) for number in range(50)]
    batched = serve_batches(cache(3_000), requests, Engine(LINE, itl_ms=10.0, chunk=1, most_running=1))
    alone = serve(cache(3_000), requests, Timing(101.0, 0.0, "a test"))  # a step a token
    assert batched.ttft_s.tolist() == pytest.approx(alone.ttft_s.tolist())


def one_step_after_the_other(requests: list[Request], engine: Engine, capacity: int) -> list[tuple[float, float]]:
    """By request the times of its first and its last token (s): each step is taken, none is worked out ahead."""
    now, coming, queue, begun = 0.0, list(requests), list[Request](), list[list[float]]()  # [number, tokens left]
    decoding: dict[int, int] = {}  # by number, tokens left
    found: dict[int, tuple[float, float]] = {}
    while coming or queue or begun or decoding:
        if not (queue or begun or decoding):
            now = max(now, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now:
            queue.append(coming.pop(0))
        budget, done = engine.chunk, list[int]()
        while budget and (begun or queue):
            running = [*decoding, *done]
            if not begun:
                held = sum(len(requests[number].context) for number in running)
                full = len(running) >= engine.most_running or held + len(queue[0].context) > capacity
                if running and full:
                    break
                begun.append([requests.index(queue[0]), len(queue.pop(0).prompt)])
            taken = min(budget, int(begun[0][1]))
            budget, begun[0][1] = budget - taken, begun[0][1] - taken
            if not begun[0][1]:
                done.append(int(begun.pop()[0]))
        if budget < engine.chunk:
            now += engine.line.ms(engine.chunk - budget) / 1000
        else:
            now += (engine.itl_ms + engine.slope_ms * (len(decoding) - 1)) / 1000
            decoding = {number: left - 1 for number, left in decoding.items()}
        decoding |= {number: requests[number].output_tokens - 1 for number in done}
        found |= dict.fromkeys(done, (now, now))
        found |= {number: (found[number][0], now) for number in decoding}
        decoding = {number: left for number, left in decoding.items() if left}
    return [found[number] for number in range(len(requests))]


@pytest.mark.parametrize("seed", range(25))
def test_steps_that_are_taken_at_once_are_as_long_as_one_after_the_other(seed: int) -> None:
    rng, arrival_s, requests = random.Random(seed), 0.0, list[Request]()
    for number in range(40):
        arrival_s += rng.random() * rng.choice([0.01, 0.1, 2.0])
        requests.append(request(arrival_s, number, rng.choice([1, 10, 50, 300]), rng.choice([1, 2, 5, 20])))
    line = Timing(rng.choice([0.1, 1.0, 3.0]), rng.choice([1.0, 40.0]), "a test", floor=rng.choice([0.0, 60.0]))
    steps = rng.choice([1.0, 30.0]), rng.choice([0.0, 2.0]), rng.choice([7, 64, 1_000]), rng.choice([1, 2, 5, 256])
    engine, capacity = Engine(line, *steps), rng.choice([320, 700, 10_000])
    served = serve_batches(cache(capacity), requests, engine)
    times = one_step_after_the_other(requests, engine, capacity)
    first, last = np.array(times).T
    more = np.array([one.output_tokens - 1 for one in requests])
    assert served.ttft_s.tolist() == pytest.approx((first - [one.arrival_s for one in requests]).tolist())
    assert served.itl_s[more > 0].tolist() == pytest.approx(((last - first)[more > 0] / more[more > 0]).tolist())
    seconds = last.max() - requests[0].arrival_s
    assert served.tokens_per_s == pytest.approx(sum(one.output_tokens for one in requests) / seconds)


def test_what_is_held_is_not_evicted_and_what_is_released_is() -> None:
    held = cache(1_000)
    first, second, third = (request(0.0, name, 400, 0) for name in (1, 2, 3))
    held.request(first)
    hold = held.hold(first)
    held.request(second)
    held.request(third)  # 200 tokens are missing: of the second, though the first is older
    assert held.request(first) == 400
    assert held.fits(second)
    assert not held.fits(request(0.0, 4, 700, 0))  # 400 are held
    held.release(hold)
    assert held.held == 0
    assert held.fits(request(0.0, 4, 700, 0))
    held.request(second)
    held.request(third)
    held.request(request(0.0, 5, 900, 0))
    assert held.request(first) < 400


@pytest.mark.parametrize("conversations", [40, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", ["lru", pytest.param("tlru", marks=pytest.mark.long), "etlru"])
def test_held_tokens_are_those_of_the_contexts_that_run(policy: str, conversations: int) -> None:
    """Random holds and releases on contexts that share prefixes, against sets of tokens."""
    requests = open_trace(f"synthetic:conversations={conversations},seed=4").requests
    rng = random.Random(2)
    tested = simulated_cache(policy, 30_000, threshold=1_024, next_prompt_estimate=None, median_weight=0.0)
    running: list[tuple[Request, object]] = []
    for one in requests:
        while running and (not tested.fits(one) or rng.random() < 0.3):
            _, hold = running.pop(rng.randrange(len(running)))
            tested.release(hold)  # type: ignore[arg-type]
        tested.request(one)
        running.append((one, tested.hold(one)))
        units = {
            unit: end - start
            for other, _ in running
            for unit, start, end in zip(other.context.ids, (0, *other.context.ends), other.context.ends, strict=False)
        }
        assert tested.held == sum(units.values()) <= tested.resident <= tested.capacity
        for other, _ in running:
            assert tested.request(other) == len(other.prompt)


def test_the_command_has_ttft_itl_and_tokens_a_second_of_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=60", "--capacity", "20k", "--threshold", "1024", "--page-size", "16"]
    assert main(["queue", *sizes, "--itl", "20", "--load", "0.5", "--median-weight", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[-5:] == ["p99", "ITL", "p50", "p95", "tokens/s"] for line in lines)
    rows = [line.split() for line in lines if "lru" in line]
    assert [row[1] if row[0] == "0.5" else row[0] for row in rows] == ["lru", "tlru", "etlru"]


def test_long_times_between_tokens_are_printed_in_whole_ms(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=10", "--capacity", "20k", "--threshold", "1024", "--policy", "lru"]
    assert main(["queue", *sizes, "--itl", "123456", "--alpha", "1e-9", "--beta", "0"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if " lru " in line)
    assert row[-5:-1] == ["123,456", "ms", "123,456", "ms"]


def test_where_no_answer_has_two_tokens_there_is_no_itl(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    rows = [{"timestamp": n * 1000, "input_length": 1024, "output_length": 1, "hash_ids": [n, -n]} for n in range(9)]
    sizes = ["--trace", write_lines(tmp_path / "t.jsonl", *rows), "--capacity", "2k", "--threshold", "600"]
    assert main(["queue", *sizes, "--itl", "20", "--load", "0.5", "--policy", "tlru"]) == 0
    rows_shown = [line.split() for line in capsys.readouterr().out.splitlines() if "lru" in line]
    assert [row[-3:-1] for row in rows_shown] == [["–", "–"], ["–", "–"]]
    assert not recwarn.list


def test_a_load_follows_where_alpha_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=60", "--capacity", "20k", "--threshold", "1024", "--policy", "lru"]
    requests = open_trace("synthetic:conversations=60").requests
    cached = cache(20_000)
    uncached = sum(one.prompt_tokens - cached.request(one) for one in requests)
    load = 0.5 * uncached / 1000 / (requests[-1].arrival_s - requests[0].arrival_s)
    assert main(["queue", *sizes, "--itl", "20", "--alpha", "0.5", "--beta", "0"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if " lru " in line)
    assert float(row[0]) == pytest.approx(load, abs=0.0005)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--alpha 1 --load 0.5", "--alpha 1: not together with --load"),
        ("--itl 0", "--itl 0: must be more than 0"),
        ("--chunk 512", "--chunk 512: needs --itl; without it only prefills take time"),
        ("--itl-slope 1", "--itl-slope 1: needs --itl; without it only prefills take time"),
        ("--most-running 2", "--most-running 2: needs --itl; without it only prefills take time"),
        ("--itl 5 --chunk 0", "--chunk 0: must be 1 or more"),
        ("--itl 5 --itl-slope -1", "--itl-slope -1: must be 0 or more"),
        ("--itl 5 --policy sglang-tlru", "--policy sglang-tlru: is a real cache, which --itl cannot run"),
    ],
)
def test_what_cannot_be_batched_is_said_in_one_line(flags: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=10", "--capacity", "20k", "--threshold", "1024"]
    assert main(["queue", *sizes, *flags.split()]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"eval queue: {said}")
    assert printed.count("\n") == 1
