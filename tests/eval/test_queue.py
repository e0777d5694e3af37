"""Requests that wait for each other: what their time to first token is, and that what they wait for stays cached."""

from __future__ import annotations

import pytest

from eval.__main__ import main
from eval.caches.knowledge import TraceKnowledge
from eval.caches.simulator import SimulatedCache
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for
from eval.simulate.timing import Timing
from eval.studies.queue_model import MOST_REFRESHED, REFRESH, line_for, serve
from eval.traces import open_trace
from eval.traces.request import Path, Request
from radix_tlru import Config, policy_for
from radix_tlru.learning.records import Conversation
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.policy.models import Leaf
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, OfflineCache, cache_params

THRESHOLD = 201  # one more than Q̂: one token of a context is beyond its budget


def request(arrival_s: float, name: int, tokens: int) -> Request:
    """A prompt that shares nothing with another, and no answer."""
    path = Path((name,), (tokens,))
    return Request(arrival_s, None, path, path, tokens, 0)


def no_cache() -> SimulatedCache:
    return SimulatedCache(policy_for(Config("lru")), 0)


def test_who_comes_while_another_prefills_waits_for_it() -> None:
    # 100 ms and 1 ms a token: 1 s, 0.5 s and 0.3 s of prefill.
    requests = [request(0.0, 1, 900), request(0.25, 2, 400), request(10.0, 3, 200)]
    served = serve(no_cache(), requests, Timing(1.0, 100.0, "a test"))
    assert served.uncached.tolist() == [900, 400, 200]
    assert served.ttft_s.tolist() == pytest.approx([1.0, 1.0 - 0.25 + 0.5, 0.3])
    assert served.busy == pytest.approx((1.0 + 0.5 + 0.3) / 10)


def test_a_load_is_what_the_baseline_would_be_busy_with() -> None:
    requests = [request(0.0, 1, 900), request(4.0, 2, 400), request(10.0, 3, 200)]
    line = line_for(0.5, 100.0, requests, 1_500)
    assert (line.alpha, line.beta) == ((5_000 - 300) / 1_500, 100.0)
    assert serve(no_cache(), requests, line).busy == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"--beta 2000: 3 requests are more than --load 0.5 by that alone"):
        line_for(0.5, 2_000.0, requests, 1_500)


def test_what_waits_is_used_at_every_32nd_prefill_the_head_of_the_queue_last() -> None:
    class Told(SimulatedCache):
        def __init__(self) -> None:
            super().__init__(policy_for(Config("lru")), 0)
            self.told: list[list[int]] = [[]]

        def touch(self, request: Request) -> None:
            self.told[-1].append(request.context.ids[0])

        def request(self, request: Request) -> int:
            self.told.append([])
            return super().request(request)

    cache = Told()
    serve(cache, [request(0.0, name, 10) for name in range(200)], Timing(1.0, 1.0, "a test"))
    assert [number for number, names in enumerate(cache.told) if names] == list(range(0, 200, REFRESH))
    assert cache.told[0] == list(range(MOST_REFRESHED))[::-1]
    assert cache.told[96] == list(range(96, 200))[::-1]


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize(
    "config", [Config("tlru", THRESHOLD), Config("etlru", THRESHOLD), Config("tlru", THRESHOLD, 200)]
)
@pytest.mark.parametrize("waits", [True, False])
def test_what_a_request_waits_for_is_not_evicted_before_what_was_used_later(
    core: Core, config: Config, waits: bool
) -> None:
    cache = OfflineCache(build_cache(cache_params(3_000, core=core), config))
    contexts = [range(1_000 * name, 1_000 * name + 900) for name in range(1, 4)]
    for stamp, context in enumerate(contexts):
        cache.request(context, 800, float(stamp))
    if waits:
        cache.touch([*contexts[0], 1, 2, 3])  # its owner is back, and others prefill before it
    cache.request(range(9_000, 9_900), 800, 3.0)  # 600 tokens are missing
    kept = [cache.touch(context) for context in contexts]
    # A token of each is TEL-safe, but w > 0 has it cost something; the rest is of the least recent.
    assert (kept[0] >= 899) is waits
    assert (kept[1] >= 899) is not waits
    assert kept[2] >= 899


def test_a_return_that_waits_is_certain_until_it_was_not_heard_of_for_a_while() -> None:
    conversation = Conversation(100.0, 1, 1, 500, 0)
    conversation.features = NOTHING_KNOWN
    leaf = Leaf(0, 500, 500, 1.0, conversation)
    returns = LearnedReturns()
    asleep = returns.group(leaf, 1_000.0)
    conversation.queued_until = 1_060.0
    queued = returns.group(leaf, 1_000.0)
    assert queued.expiry == 1_060.0
    assert returns.rate(queued.number, 1.0, 1_000.0) == 10.0 > 100 * returns.rate(asleep.number, 1.0, 1_000.0)
    assert returns.group(leaf, 1_060.0).number == returns.group(Leaf(0, 500, 500, 1.0, conversation), 1_060.0).number
    assert returns.rate(returns.group(leaf, 1_060.0).number, 1.0, 1_060.0) < 0.01
    before = RecentTurns().key(leaf)
    conversation.turn_index = 7.5
    assert RecentTurns().key(leaf) == 7.5 > before


@pytest.mark.parametrize("policy", ["tlru", "etlru"])
def test_real_cache_and_simulator_agree_where_requests_wait(policy: str) -> None:
    requests = open_trace("synthetic:conversations=400").requests
    line = line_for(0.98, 1.0, requests, sum(each.prompt_tokens for each in requests) // 2)

    def served(name: str) -> tuple[list[int], list[float]]:
        cell = Cell("synthetic", name, 40_000, 1024, None, 0.5, 64)
        cache = cache_for(cell, TraceKnowledge(requests))
        done = serve(cache, requests, line)  # type: ignore[arg-type]
        return done.uncached.tolist(), done.ttft_s.tolist()

    assert served(f"real-{policy}") == served(policy)


def test_the_command_holds_policies_against_stock_lru_at_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=60", "--capacity", "20k", "--threshold", "1024", "--page-size", "16"]
    assert main(["queue", *sizes, "--policy", "etlru", "--median-weight", "0", "0.3", "--load", "0.5", "0.9"]) == 0
    out = capsys.readouterr().out
    assert "load 0.5: 20 ms + " in out  # the line of TTFT, of which all seconds are
    rows = [line.split() for line in out.splitlines() if "lru" in line]
    assert [(row[:3] if row[0][0] == "0" else row[:2]) for row in rows] == [
        *(["0.5", "sglang-lru", "–"], ["etlru", "0"], ["etlru", "0.3"]),
        *(["0.9", "sglang-lru", "–"], ["etlru", "0"], ["etlru", "0.3"]),
    ]


def test_repeats_give_the_mean_change_and_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=60", "--capacity", "20k", "--threshold", "1024", "--page-size", "16"]
    flags = ["queue", *sizes, "--policy", "tlru", "--load", "0.9", "--itl", "5", "--beta", "1"]

    def rows(*more: str) -> list[str]:
        assert main([*flags, *more]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "lru" in line]

    once, often = rows(), rows("--repeats", "3")
    assert often[0].split() == once[0].split()  # the baseline's own figures are of the trace as it is
    assert "±" not in once[1]
    assert often[1].count(" ± ") == often[1].count("%") - 1 == 8  # every figure, and how busy the server was


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--load 0", "--load 0: must be more than 0"),
        ("--beta -1", "--beta -1: must be 0 or more"),
        ("--beta 1e9", "--beta 1e+09: 21 requests are more than --load 0.5 by that alone"),
        ("--page-size 0", "--page-size 0: must be 1 or more"),
        ("--page-size 20001", "--capacity 20000: must be at least one page, --page-size 20001"),
        ("--jobs 0", "--jobs 0: must be 1 or more"),
        ("--repeats 0", "--repeats 0: must be 1 or more"),
        ("--median-weight 2", "--median-weight 2: must be a number from 0 to 1"),
        ("--median-weight 0 --policy sglang-tlru", "--median-weight 0: has no effect on --policy sglang-tlru; leave"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(flags: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trace", "synthetic:conversations=10", "--capacity", "20k", "--threshold", "1024"]
    assert main(["queue", *sizes, *flags.split()]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"eval queue: {said}")
    assert printed.count("\n") == 1
