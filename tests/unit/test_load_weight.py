"""The weight w that follows the load: what it counts, that orders follow it, and that ranks would, too."""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.caches.knowledge import TraceKnowledge
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for
from eval.studies.queue_model import line_for, serve
from eval.traces import open_trace
from eval.traces.request import Path, Request
from radix_tlru import Config
from radix_tlru.config import LOWEST_WEIGHT
from radix_tlru.learning.learner import Learner
from radix_tlru.objective.load_weight import LoadWeight, PrefillLoad, QueueCounter
from radix_tlru.policy.models import FixedPrompt, Leaf, Recency
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.policy import Policy

THRESHOLD = 600


def after(prefills: int, tokens: int, waiting: int, load: LoadWeight | None = None) -> LoadWeight:
    load = load or LoadWeight()
    for _ in range(prefills):
        load.count_prefill(PrefillLoad(tokens, waiting))
    return load


def test_w_is_the_share_of_a_tokens_cost_that_others_wait_for() -> None:
    assert LoadWeight().weight == after(1_000, 500, 0).weight == LOWEST_WEIGHT
    for every, weight in ((2, 1 / 3), (3, 1 / 4), (1, 1 / 2)):  # of so many prefills somebody waits for one
        load = LoadWeight()
        for number in range(3_000):
            load.count_prefill(PrefillLoad(500, number % every == 0))
        assert load.waiting == pytest.approx(1 / every, rel=0.01)
        assert load.weight == pytest.approx(weight, rel=0.1)


def test_beyond_one_that_waits_w_is_a_half() -> None:
    assert [after(1_000, 500, waiting).weight for waiting in (1, 2, 9, 1_000)] == [0.5] * 4


def test_a_long_prefill_counts_as_its_tokens_do() -> None:
    load = LoadWeight()
    for _ in range(1_000):
        load.count_prefill(PrefillLoad(900, 2))
        load.count_prefill(PrefillLoad(100, 12))
    assert load.waiting == pytest.approx(3.0, rel=0.01)


class Told:
    """A cache that holds nothing, and what it is told."""

    def __init__(self) -> None:
        self.prefills: list[PrefillLoad] = []

    def request(self, request: Request) -> int:
        return 0

    def touch(self, request: Request) -> None:
        pass

    def count_prefill(self, load: PrefillLoad) -> None:
        self.prefills.append(load)


def poisson(count: int, random: Random) -> list[Request]:
    """Requests of lengths and gaps that are exponential."""
    arrivals = accumulate(random.expovariate(1.0) for _ in range(count))
    lengths = (1 + int(random.expovariate(1 / 500)) for _ in range(count))
    nothing = Path((), ())
    return [Request(at, None, nothing, nothing, tokens, 1) for at, tokens in zip(arrivals, lengths, strict=True)]


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_k_is_what_was_waited_however_low_the_load(load: float) -> None:
    requests = poisson(10_000, Random(1))
    tokens = sum(request.prompt_tokens for request in requests)
    line = line_for(load, 0.0, requests, tokens)
    told = Told()
    served = serve(told, requests, line)
    waits = (served.ttft_s.sum() - line.alpha_ms / 1000 * tokens) / (line.alpha_ms / 1000)  # in tokens
    assert waits / tokens == pytest.approx(load / (1 - load), rel=0.1), "as the theory has it"
    follows, k = LoadWeight(), 0.0
    for prefill in told.prefills:
        follows.count_prefill(prefill)
        k += follows.waiting * prefill.tokens / tokens
    assert k == pytest.approx(waits / tokens, rel=0.05)
    at_launches = sum(tokens * waiting for tokens, waiting, _ in told.prefills) / tokens
    assert at_launches == pytest.approx(load * waits / tokens, rel=0.1), "most come while another prefill runs"


def waited(queue: QueueCounter, tokens: int, present: int, left: int, after_idle: bool = False) -> float | None:
    load = queue.count_launch(tokens, present, left, after_idle)
    assert load is None or (load.tokens, load.waiting) == (tokens, present - 1)
    return None if load is None else load.waited


def test_who_comes_while_a_prefill_runs_waits_for_half_of_it() -> None:
    queue = QueueCounter()
    assert waited(queue, 600, present=3, left=1, after_idle=True) == 0
    assert waited(queue, 200, present=3, left=0) == 2 * 300
    assert waited(queue, 0, present=0, left=0) is None
    assert waited(queue, 500, present=1, left=0) == 0, "it came while others decoded"
    assert waited(queue, 500, present=4, left=0, after_idle=True) == 0, "nothing ran when they came"
    assert waited(queue, 0, present=1, left=1) is None, "there is no room for one yet"
    assert waited(queue, 100, present=1, left=0) == 250


def test_where_launches_run_ahead_it_waits_for_all_that_was_launched_as_well() -> None:
    queue = QueueCounter(ahead=True)
    assert waited(queue, 600, present=1, left=0, after_idle=True) == 0
    assert waited(queue, 0, present=0, left=0) is None
    assert waited(queue, 200, present=1, left=0) == 300, "a step of decoding was launched before"
    assert waited(queue, 400, present=1, left=0) == 200, "what ran was that step"
    assert waited(queue, 400, present=1, left=0) == 400 + 100


def test_w_follows_the_load_up_and_down_again() -> None:
    load = after(1_000, 500, 4)
    assert load.weight == 0.5
    assert after(3_000, 500, 0, load).weight == LOWEST_WEIGHT


def test_w_moves_at_every_32nd_prefill_at_most_and_not_for_little() -> None:
    load = LoadWeight()
    moved = [number for number in range(1, 1_000) if load.count_prefill(PrefillLoad(500, 1))]
    assert moved == [32], "it is the same from then on"
    weights = [load.weight]
    for number in range(1_000, 3_000):
        if load.count_prefill(PrefillLoad(500, 0)):
            assert number % 32 == 0
            weights.append(load.weight)
    assert weights[-1] == LOWEST_WEIGHT
    assert all(after <= 0.9 * before for before, after in pairwise(weights[:-1]))


def leaves() -> dict[int, Leaf]:
    return {n: Leaf(0, 100 * n, 100 * n, float(7 * n % 11)) for n in range(1, 11)}


@given(weights=st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]), min_size=1, max_size=4), taken=st.integers(0, 9))
def test_an_order_that_follows_w_is_as_if_it_had_had_it_from_the_start(weights: list[float], taken: int) -> None:
    def policy(weight: float) -> Policy:
        return Policy(Recency(), FixedPrompt(100), THRESHOLD, weight)

    held = leaves()
    order, fresh = EvictionOrder(policy(0.5), 1, held.get), EvictionOrder(policy(weights[-1]), 1, held.get)
    for leaf_id in held:
        order.add_leaf(leaf_id)
        fresh.add_leaf(leaf_id)
    for weight in weights:
        order.choose_victim(1)
        order.switch_policy(policy(weight))
    for _ in range(taken):
        victim = order.choose_victim(10_000)
        assert victim == fresh.choose_victim(10_000)
        assert victim is not None
        order.remove_leaf(victim.leaf_id)
        fresh.remove_leaf(victim.leaf_id)
        rest = held.pop(victim.leaf_id)._replace(end=victim.keep)
        if victim.keep:
            held[100 + victim.leaf_id] = rest
            order.add_leaf(100 + victim.leaf_id)
            fresh.add_leaf(100 + victim.leaf_id)
        assert order.over_budget == fresh.over_budget


@pytest.mark.parametrize(
    "config",
    [Config(policy, THRESHOLD, estimate, "load") for policy in ("tlru", "etlru") for estimate in (None, 100)],
)
def test_all_that_could_be_in_force_but_lru_follows_it(config: Config) -> None:
    learner = Learner(config, 10_000, 16)
    others = len(learner.candidates) - 1
    assert [policy.median_weight for policy in learner.candidates.values()] == [*[LOWEST_WEIGHT] * others, 1.0]
    for _ in range(32):
        learner.count_prefill(PrefillLoad(500, 4))
    assert [policy.median_weight for policy in learner.candidates.values()] == [*[0.5] * others, 1.0]


def test_a_weight_that_was_given_stays_and_so_do_those_of_etlru() -> None:
    for weight in (0.0, 0.5, None):
        learner = Learner(Config("etlru", THRESHOLD, median_weight=weight), 10_000, 16)
        before = dict(learner.candidates)
        for _ in range(100):
            learner.count_prefill(PrefillLoad(500, 4))
        assert learner.candidates == before
        assert learner.load is None


@pytest.mark.parametrize("policy", ["tlru", "etlru"])
def test_real_cache_and_simulator_follow_the_same_load(policy: str) -> None:
    requests = open_trace("synthetic:conversations=400").requests
    line = line_for(0.95, 1.0, requests, sum(each.prompt_tokens for each in requests) // 3)

    def served(name: str) -> tuple[list[int], list[float]]:
        cell = Cell("synthetic", name, 40_000, 1024, None, "load", 64)
        cache = cache_for(cell, TraceKnowledge(requests))
        done = serve(cache, requests, line)  # type: ignore[arg-type]
        if policy == name:
            assert cache.learner.load.weight > LOWEST_WEIGHT  # type: ignore[attr-defined]
        return done.uncached.tolist(), done.ttft_s.tolist()

    assert served(f"real-{policy}") == served(policy)
