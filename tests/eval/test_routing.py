"""Replicas behind a router: where requests go, and that each replica is the cache that it would be alone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path as File
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.__main__ import main
from eval.caches.knowledge import PartOfTrace, TraceKnowledge
from eval.caches.policies import POLICIES, simulated_cache
from eval.caches.prefix_aware import CacheAware, PrefixAware, PrefixTree
from eval.caches.routing import (
    ROUTINGS,
    LeastLoaded,
    RoundRobin,
    RoutedCache,
    Router,
    Service,
)
from eval.caches.simulator import Cache, simulate
from eval.render.report.rows import read_rows
from eval.render.report.scene import groups
from eval.simulate.cells import Cell
from eval.traces.request import Path, Request
from tests.helpers.examples import examples
from tests.helpers.random_traces import Turn, conversations_in_line, random_tree, random_turns

BUSY = Service(alpha_ms=100, beta_ms=500, tpot_ms=200)  # a second or two for requests that come a second apart


def one_cache(policy: str, knowledge: TraceKnowledge, capacity: int) -> Cache:
    return simulated_cache(
        policy, capacity, threshold=6, next_prompt_estimate=2, knowledge=knowledge, death_rate=0.1, forced=True
    )


def fleet(policy: str, requests: list[Request], capacity: int, replicas: int, router: Router) -> RoutedCache:
    knowledge = TraceKnowledge(requests)
    return RoutedCache(
        lambda numbers: one_cache(policy, PartOfTrace(knowledge, numbers), capacity), replicas, router, BUSY
    )


seeds = st.integers(0, 2**32).map(Random)
property_test = settings(max_examples=examples(50))


# ---- the replicas ----


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("policy", POLICIES)
@property_test
@given(random=seeds, capacity=st.integers(1, 40))
def test_one_replica_is_the_cache_itself(policy: str, routing: str, random: Random, capacity: int) -> None:
    requests = random_tree(random, longest=20, whole_messages=True)
    alone = one_cache(policy, TraceKnowledge(requests), capacity)
    routed = fleet(policy, requests, capacity, 1, ROUTINGS[routing]())
    assert simulate(routed, requests) == simulate(alone, requests)
    assert routed.evicted == alone.evicted


@pytest.mark.parametrize("policy", POLICIES)
@property_test
@given(random=seeds, capacity=st.integers(1, 40))
def test_what_a_replica_knows_of_the_trace_is_of_the_requests_that_it_was_sent(
    policy: str, random: Random, capacity: int
) -> None:
    # Two traces that share nothing, request by request in turn: replica 0 is sent the first, replica 1 the second.
    length = random.randint(5, 20)
    traces = [conversations_in_line(random_turns(random, longest=60)[:length]) for _ in range(2)]
    length = min(map(len, traces))
    traces[1] = [moved(request, by=1_000) for request in traces[1]]
    both = list(chain.from_iterable(zip(*(trace[:length] for trace in traces), strict=True)))
    routed = fleet(policy, both, capacity, 2, RoundRobin())
    cached = simulate(routed, both)
    for replica, trace in enumerate(traces):
        alone = one_cache(policy, TraceKnowledge(trace[:length]), capacity)
        assert cached[replica::2] == simulate(alone, trace[:length])


def moved(request: Request, by: int) -> Request:
    """The same request with other tokens."""
    prompt, context = (
        Path(tuple(unit + by for unit in path.ids), path.ends) for path in (request.prompt, request.context)
    )
    return replace(request, prompt=prompt, context=context)


@pytest.mark.parametrize("routing", ROUTINGS)
@property_test
@given(random=seeds, capacity=st.integers(1, 30), replicas=st.integers(1, 5))
def test_each_replica_serves_its_requests_as_if_it_were_alone(
    routing: str, random: Random, capacity: int, replicas: int
) -> None:
    requests = random_tree(random, longest=40)
    routed = fleet("tlru", requests, capacity, replicas, ROUTINGS[routing]())
    cached = simulate(routed, requests)
    assert sorted(chain.from_iterable(routed.sent)) == list(range(len(requests)))
    for numbers in routed.sent:
        mine = [requests[number] for number in numbers]
        alone = one_cache("tlru", TraceKnowledge(mine), capacity)
        assert [cached[number] for number in numbers] == simulate(alone, mine)


# ---- round-robin, least-loaded ----


@property_test
@given(requests=st.integers(1, 30), replicas=st.integers(1, 5))
def test_round_robin_sends_request_i_to_replica_i_modulo_n(requests: int, replicas: int) -> None:
    trace = conversations_in_line([Turn(0, 1, 0)] * requests)
    routed = fleet("lru", trace, 100, replicas, RoundRobin())
    simulate(routed, trace)
    assert routed.sent == [list(range(replica, requests, replicas)) for replica in range(replicas)]


@property_test
@given(random=seeds, replicas=st.integers(1, 5), service=st.sampled_from([BUSY, Service(), Service(0, 10_000, 0)]))
def test_least_loaded_goes_where_the_fewest_are_in_flight(random: Random, replicas: int, service: Service) -> None:
    requests = random_tree(random, longest=40)
    knowledge = TraceKnowledge(requests)
    router = LeastLoaded()
    routed = RoutedCache(lambda _: one_cache("lru", knowledge, 20), replicas, router, service)
    stays: list[tuple[float, int]] = []  # until when, where
    for request in requests:
        before = [len(numbers) for numbers in routed.sent]
        cached = routed.request(request)
        (went,) = (replica for replica in range(replicas) if len(routed.sent[replica]) > before[replica])
        busy = [sum(until > request.arrival_s and where == it for until, where in stays) for it in range(replicas)]
        assert busy[went] == min(busy)
        assert before[went] == min(sent for sent, load in zip(before, busy, strict=True) if load == min(busy))
        ms = service.beta_ms + service.alpha_ms * (request.prompt_tokens - cached)
        stays.append((request.arrival_s + (ms + service.tpot_ms * request.output_tokens) / 1000, went))


def test_a_request_stays_for_its_prefill_and_its_answer() -> None:
    # 1,000 uncached tokens at 0.1 ms, 40 tokens of answer at 20 ms and 100 ms for being there: a second.
    service = Service(alpha_ms=0.1, beta_ms=100, tpot_ms=20)
    assert service.seconds(uncached=1_000, output=40) == pytest.approx(1.0)
    prompt = Path((1,), (1_000,))
    requests = [Request(at_s, None, prompt, prompt, 1_000, 40) for at_s in (0.0, 0.5, 1.1, 1.3)]
    routed = RoutedCache(lambda _: one_cache("lru", TraceKnowledge(requests), 2_000), 2, LeastLoaded(), service)
    assert simulate(routed, requests) == [0, 0, 1_000, 1_000]
    # At 1.1 s replica 0 is free; its prompt is cached, so it stays for 0.9 s. At 1.3 s both have one and were sent two
    # and one.
    assert routed.sent == [[0, 2], [1, 3]]


def test_an_answer_that_ends_as_a_request_comes_is_over() -> None:
    service = Service(alpha_ms=0, beta_ms=0, tpot_ms=1_000)
    prompt = Path((1,), (100,))
    turns = [(0.0, 1), (0.5, 3), (1.5, 1), (3.5, 1)]  # when, and s of its answer
    requests = [Request(at_s, None, prompt, prompt, 100, answer) for at_s, answer in turns]
    routed = RoutedCache(lambda _: one_cache("lru", TraceKnowledge(requests), 200), 2, LeastLoaded(), service)
    simulate(routed, requests)
    assert routed.sent == [[0, 2], [1, 3]], "at 3.5 s both are idle, and replica 1 was sent less"


# ---- prefix-aware ----


def text(number: int, tokens: int = 100, known: int = 0, of: int = 0) -> Path:
    """Prompt number so, of which the first ``known`` tokens are those of prompt number ``of``."""
    return Path([10_000 * (of if i < known else number) + i for i in range(tokens)], range(1, tokens + 1))


def request(prompt: Path, at_s: float = 0.0) -> Request:
    return Request(at_s, None, prompt, prompt, len(prompt), 0)


def test_a_conversation_stays_on_its_replica_while_load_is_balanced() -> None:
    turns = [Turn(conversation, prompt=40, answer=5) for _ in range(6) for conversation in range(8)]
    requests = [replace(request, arrival_s=request.arrival_s / 4) for request in conversations_in_line(turns)]
    routed = fleet("lru", requests, 10_000, 3, PrefixAware())
    cached = simulate(routed, requests)
    homes = [{int(requests[number].conversation or "") for number in numbers} for numbers in routed.sent]
    assert sum(map(len, homes)) == 8
    assert all(homes)
    # The second turn finds the 45 tokens of the first, the third 90, …: all that was ever said.
    assert cached == [45 * (number // 8) for number in range(len(requests))]


def test_round_robin_tears_conversations_apart() -> None:
    turns = [Turn(conversation, prompt=40, answer=5) for _ in range(6) for conversation in range(8)]
    requests = conversations_in_line(turns)
    torn = simulate(fleet("lru", requests, 10_000, 3, RoundRobin()), requests)
    assert sum(torn) < sum(simulate(fleet("lru", requests, 10_000, 3, PrefixAware()), requests))


def owner(router: PrefixAware, path: Path, in_flight: tuple[int, ...]) -> int:
    return router.route(request(path), in_flight)


def test_more_than_three_tenths_of_a_prompt_must_be_known() -> None:
    router = PrefixAware()
    assert owner(router, text(0), in_flight=(1, 0)) == 1
    assert owner(router, text(1, known=30), in_flight=(0, 1)) == 0
    assert owner(router, text(2, known=31), in_flight=(0, 1)) == 1


def test_load_decides_only_beyond_both_thresholds() -> None:
    def where(*in_flight: int) -> int:
        router = PrefixAware()
        owner(router, text(0), in_flight=(0, 1))
        return owner(router, text(0), in_flight=in_flight)

    assert where(64, 0) == 0  # 64 is not more than 64
    assert where(65, 0) == 1
    assert where(290, 200) == 0  # 90 more, but not more than 1.5 × 200
    assert where(301, 200) == 1


def test_what_load_sent_elsewhere_comes_back_to_who_had_it_first() -> None:
    router = PrefixAware()
    assert owner(router, text(0), in_flight=(0, 1)) == 0
    longer = text(1, tokens=150, known=100)
    assert owner(router, longer, in_flight=(65, 0)) == 1  # its first 100 tokens are now known as sent to both
    assert owner(router, longer, in_flight=(0, 1)) == 1  # its end was sent to 1 first ...
    assert owner(router, text(0), in_flight=(1, 0)) == 0  # ... and what comes before it to 0


class PlainRouter:
    """The rule on a dictionary: the first replica that was sent each unit, without eviction."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}

    def route(self, request: Request, in_flight: tuple[int, ...]) -> int:
        chosen = in_flight.index(min(in_flight))
        known = [unit for unit in request.prompt.ids if unit in self.first]
        rate = request.prompt.ends[len(known) - 1] / request.prompt_tokens if known else 0.0
        difference = max(in_flight) - min(in_flight)
        if not (difference > 64 and max(in_flight) > 1.5 * min(in_flight)) and rate > 0.3:
            chosen = self.first[known[-1]]
        for unit in request.prompt.ids:
            self.first.setdefault(unit, chosen)
        return chosen


@property_test
@given(random=seeds, whole_messages=st.booleans(), replicas=st.integers(1, 4))
def test_the_radix_tree_decides_as_a_dictionary_of_units(random: Random, whole_messages: bool, replicas: int) -> None:
    tree, plain = PrefixAware(), PlainRouter()
    for one in random_tree(random, longest=60, whole_messages=whole_messages, answers="ab"):
        in_flight = tuple(random.choice((0, 1, 2, 60, 70, 100)) for _ in range(replicas))
        assert tree.route(one, in_flight) == plain.route(one, in_flight)


def test_a_replica_that_was_sent_too_much_forgets_its_least_recent_prompts() -> None:
    settings = CacheAware(max_tree_tokens=250, eviction_interval_s=60)
    router = PrefixAware(settings)
    for number in range(3):  # 100 tokens each, all to replica 1
        assert router.route(request(text(number), at_s=number), (1, 0)) == 1
    assert router.tree.sizes == {1: 300}
    assert router.route(request(text(0), at_s=59), (0, 1)) == 1  # not a minute yet: all is known
    assert router.route(request(text(2), at_s=60), (0, 1)) == 1
    assert router.tree.sizes == {1: 200}  # of 1, which nobody asked for again, nothing is left
    assert router.route(request(text(1), at_s=61), (0, 1)) == 0
    assert router.tree.sizes == {0: 100, 1: 200}


@pytest.mark.parametrize(("matches", "kept"), [(4, [0, 100, 100]), (5, [100, 0, 100])])
def test_one_match_in_eight_is_a_use(matches: int, kept: list[int]) -> None:
    tree = PrefixTree()
    for number in range(3):
        tree.insert(text(number), 0)
    tree.match(text(9))  # what nobody was sent is no use of anything
    for _ in range(matches):  # the last of five is the ninth call
        assert tree.match(text(0)) == (100, 0)
    tree.evict(200)
    assert [tree.match(text(number)).tokens for number in range(3)] == kept


def test_a_prompt_whose_first_owner_forgot_it_is_of_the_first_replica_that_was_sent_it_too() -> None:
    tree = PrefixTree()
    for replica in (3, 2, 1):
        tree.insert(text(0), replica)
    tree.insert(text(1), 3)
    assert tree.match(text(0)) == (100, 3)
    tree.evict(150)
    assert tree.sizes == {3: 100, 2: 100, 1: 100}
    assert tree.match(text(0)) == (100, 1)
    tree.insert(text(0), 3)
    assert tree.match(text(0)) == (100, 1), "it is sent it again, and is not the first any more"


def test_the_beginning_that_two_prompts_share_is_as_recent_as_it_was() -> None:
    tree = PrefixTree()
    tree.insert(text(0), 0)
    tree.insert(text(1), 0)
    tree.insert(text(2, known=40, of=0), 1)  # splits the first prompt, which replica 1 was not sent whole
    assert tree.sizes == {0: 200, 1: 100}
    tree.evict(120)
    assert tree.sizes == {0: 100, 1: 100}
    assert tree.match(text(0)) == (40, 1), "what is left is what replica 1 was sent"
    assert tree.match(text(1)) == (100, 0)


@property_test
@given(random=seeds, most=st.integers(0, 60))
def test_eviction_leaves_no_more_than_the_limit_and_the_rest_as_it_was(random: Random, most: int) -> None:
    tree = PrefixTree()
    sent: list[list[Path]] = [[], [], []]
    for one in random_tree(random, longest=40):
        replica = random.randrange(3)
        tree.insert(one.prompt, replica)
        sent[replica].append(one.prompt)
    before = dict(tree.sizes)
    for replica, prompts in enumerate(sent):
        assert before.get(replica, 0) == len({unit for prompt in prompts for unit in prompt.ids})
    tree.evict(most)
    for replica in before:
        assert tree.sizes[replica] == before[replica] if before[replica] <= most else tree.sizes[replica] <= most
    known = sum(node.end - node.start for node in tree._nodes())
    assert known <= sum(tree.sizes.values())
    assert all(node.sent for node in tree._nodes())  # nobody's is not kept
    for node in tree._nodes():
        assert node.parent is tree._root or set(node.sent) <= set(node.parent.sent)  # type: ignore[union-attr]


# ---- the command ----


def rows(out: File) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


def run(out: File, *flags: str) -> list[dict[str, object]]:
    sizes = ("--capacity", "20k", "--threshold", "2048", "--page-size", "16", "--out", str(out))
    trace = ("--trace", "synthetic:conversations=40,seed=1", "--policy", "lru", "tlru")
    assert main(["simulate", *trace, *sizes, *flags]) == 0
    return rows(out)


def test_a_single_cache_keeps_its_name_and_its_row(tmp_path: File) -> None:
    # As they were before there were replicas: folders of then are gone on with.
    assert Cell("t", "lru", 1, 2, 3, 0.0, 5).name == "lru-c1-x2-p5-1c83dded"
    assert Cell("t", "tlru", 1, 2, 3, 0.5, 5, False).name == "tlru-c1-x2-p5-32e52a10"
    one, asked = run(tmp_path / "one"), run(tmp_path / "asked", "--replicas", "1", "--routing", *ROUTINGS)
    assert [{**row, "seconds": 0} for row in one] == [{**row, "seconds": 0} for row in asked]
    assert {(row["replicas"], row["routing"]) for row in one} == {(1, None)}


def test_replicas_and_routings_are_cells_of_their_own_and_groups_of_the_report(tmp_path: File) -> None:
    cells = run(tmp_path, "--replicas", "1", "3", "--routing", *ROUTINGS, "--per-request")
    told = [(row["policy"], row["replicas"], row["routing"]) for row in cells]
    fleets = [(1, None), *((3, routing) for routing in ROUTINGS)]
    assert sorted(told, key=str) == sorted(((policy, *one) for policy in ("lru", "tlru") for one in fleets), key=str)
    assert len({row["cell"] for row in cells}) == len(cells) == len(list(tmp_path.glob("*.parquet")))
    assert len({row["requests"] for row in cells}) == 1
    assert {(group.replicas, group.routing) for group in groups(read_rows(tmp_path))} == set(fleets)
    assert main(["report", str(tmp_path)]) == 0
    assert "3 replicas of the capacity, prefix-aware" in (tmp_path / "report.html").read_text()


def test_replicas_of_the_real_cache_agree_with_simulated_ones(
    tmp_path: File, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--policy", "real-tlru", "--replicas", "3", "--capacity", "20k", "--page-size", "16", "--limit", "100")
    trace = ("--trace", "synthetic:conversations=40,seed=1", "--out", str(tmp_path))
    assert main(["through-sglang", *trace, *flags]) == 0
    assert "0 of 100" in capsys.readouterr().out


def test_a_fleet_of_no_replicas_is_refused(tmp_path: File, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--trace", "synthetic", "--capacity", "1k", "--replicas", "0", "--out", str(tmp_path))
    assert main(["simulate", *flags]) == 2
    assert "--replicas 0: must be 1 or more" in capsys.readouterr().err
