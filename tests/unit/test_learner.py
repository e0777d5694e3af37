"""What watches the turns of a server: until it knows, what it prefers by its shadows, and the weight it chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import uncached_tokens
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config
from radix_tlru.config import MedianWeight
from radix_tlru.learning.conversations import Conversation, Conversations
from radix_tlru.learning.hazards import Hazards
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.learning.shadow_cache import Shadows
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Policy, Recency
from radix_tlru.policy.tel import Tally
from tests.helpers.paths import MOONCAKE
from tests.helpers.random_traces import tel
from tests.unit.test_return_model import NEXT_PROMPT, PAGE, THRESHOLD, turn

# ---- the learner ----


def synthetic(conversations: int, parameters: str = "") -> list[Request]:
    return open_trace(f"synthetic:conversations={conversations}{parameters}").requests


def learning(capacity: int, page_size: int = PAGE, threshold: int = 1024) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=threshold, next_prompt_estimate=200, page_size=page_size)


def test_until_enough_is_known_it_is_tlru_decision_by_decision() -> None:
    requests = synthetic(40)
    sizes = {"threshold": 1024, "next_prompt_estimate": 200, "page_size": PAGE}
    tlru, learned = simulated_cache("tlru", 10_000, **sizes), learning(10_000)
    for request in requests:
        if learned._learner.policy is not learned._learner._policies[1]:  # type: ignore[union-attr]
            break
        assert learned.request(request) == tlru.request(request)
        assert learned.evicted == tlru.evicted
    assert tlru.evicted["lru"] > 10_000


def test_two_that_are_told_the_same_evict_the_same() -> None:
    requests = synthetic(1500, ",turn_rate_sigma=1")
    one, other = learning(100_000), learning(100_000)
    assert simulate(one, requests) == simulate(other, requests)
    assert one._learner._returns.version > 2  # type: ignore[union-attr]
    assert one.evicted == other.evicted


def test_time_that_runs_backwards_is_time_that_stands_still() -> None:
    requests = synthetic(800)
    shaken = [
        replace(request, arrival_s=request.arrival_s - 30 * (number % 2)) for number, request in enumerate(requests)
    ]
    cache = learning(50_000)
    assert len(simulate(cache, shaken)) == len(requests)


def test_memory_is_bounded_by_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radix_tlru.learning.conversations._MOST_REMEMBERED", 50)
    monkeypatch.setattr("radix_tlru.learning.hazards._MOST_WATCHED", 80)
    cache = learning(50_000)
    learner = cache._learner
    assert learner is not None
    for request in synthetic(1500):
        cache.request(request)
        assert len(learner._conversations._known) <= 50
        assert len(learner._conversations._contexts) <= 50 * 12
        assert sum(map(len, learner._returns.hazards._bands)) <= 80


def test_a_shadow_trims_by_as_large_a_share_as_the_cache_does() -> None:
    tlru = Policy(Recency(), FixedPrompt(NEXT_PROMPT), THRESHOLD, median_weight=0.0, trim_chunk=40 * PAGE)
    shadows = Shadows([tlru], capacity=64_000 * PAGE, page_size=PAGE, one_in=4)
    (shadow,) = shadows._shadows
    context = shadow.capacity // 4
    shadow.request(Conversation((), 0.0, 1, 0, context, 0), turn(0.0, context, context))
    victim = shadow.order.victim(1)
    assert victim is not None
    assert context - victim.keep == 10 * PAGE


def test_the_shadows_prefer_what_was_better_on_the_same_stream() -> None:
    # ξ = 600, Q̂ = 100: T-LRU trims long conversations to within the budget, LRU drops the oldest whole.
    learner = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT, median_weight=0.0), 10_000, PAGE)
    _, tlru, lru = learner._policies
    shadows = Shadows((lru, tlru), 10_000, PAGE, one_in=1)
    conversations = Conversations(Hazards())
    for cycle in range(20):
        for name in range(1, 13):  # 12 · 960 do not fit in 10,000; trimmed to 460 they do
            told = turn(cycle * 100.0 + name, 960 + cycle * PAGE, 960 + cycle * PAGE, name)
            shadows.observe(conversations.turn(told, alone=True), told)
    assert shadows.tel[1] < shadows.tel[0]
    assert shadows.best == 1
    assert shadows.sampled == 20 * 12
    assert shadows.excess[1] == 12 * (960 - THRESHOLD) < shadows.tel[0] < shadows.excess[0]  # the first turns alone


def test_what_stands_before_others_is_left_for_more_than_chance_and_taken_again_for_less() -> None:
    learner = Learner(Config("etlru", THRESHOLD, NEXT_PROMPT, median_weight=0.0), 10_000, PAGE)

    def preferred(chance: tuple[float, float]) -> list[int]:
        shadows = Shadows(learner._policies[-2:], 10_000, PAGE, one_in=1, chance=chance)
        shadows._squares = [[0.0, 64.0], [64.0, 0.0]]  # a standard deviation of 8 tokens
        found = []
        for first in (107.0, 110.0, 117.0, 100.0, 99.0, 91.0):
            shadows.tel = [first, 100.0]
            shadows._compare()
            found.append(shadows.best)
        return found

    assert preferred((2.0, 0.0)) == [0, 0, 1, 1, 0, 0]
    assert preferred((1.0, 1.0)) == [0, 1, 1, 1, 1, 0]


def test_what_was_served_is_tallied_by_the_threshold_of_its_time() -> None:
    learner = Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE)
    learner.observe(turn(0, 900, 900))  # 300 tokens beyond 600
    learner.use_threshold(800)
    learner.observe(turn(1, 900, 900, name=2)._replace(cached=64))  # 36 beyond 800
    learner.observe(turn(2, 800, 800, name=3))
    assert learner.served == Tally(requests=3, violations=2, excess=300 + 36)
    assert learner.in_force == "tlru"


def test_what_other_policies_would_have_cost_is_counted_where_it_is_asked_for() -> None:
    for config, watched, counted in (
        (Config("tlru", THRESHOLD, NEXT_PROMPT), True, True),
        (Config("tlru", THRESHOLD, NEXT_PROMPT), False, False),
        (Config("tlru", THRESHOLD, NEXT_PROMPT, "auto"), False, True),  # the weight is chosen by it
        (Config("tlru", THRESHOLD), False, True),  # Q is learned, and may be put aside
        (Config("etlru", THRESHOLD, NEXT_PROMPT), False, True),
    ):
        learner = Learner(config, 10_000, PAGE, watched)
        for name in range(60):
            learner.observe(turn(name, 900, 900, name))
        assert (learner.shadows is not None) is counted, config
        assert learner.served.requests == 60


def test_a_next_prompt_that_was_given_is_not_learned() -> None:
    requests = synthetic(300)
    for estimate, kept in ((NEXT_PROMPT, True), (None, False)):
        cache = simulated_cache("etlru", 10_000, threshold=1024, next_prompt_estimate=estimate, page_size=PAGE)
        simulate(cache, requests)
        learner = cache._learner
        assert learner is not None
        assert learner._returns.version > 0, "enough was seen to learn from"
        assert (learner._policies[0].prompts == FixedPrompt(NEXT_PROMPT)) is kept


def tail_of(requests: list[Request], capacity: int, threshold: int, estimate: int | None, policy: str = "tlru") -> int:
    sizes = {"threshold": threshold, "next_prompt_estimate": estimate, "page_size": PAGE}
    return tel(requests, simulate(simulated_cache(policy, capacity, **sizes), requests), threshold)


def test_tlru_learns_how_long_next_prompts_are_unless_it_is_told() -> None:
    long = synthetic(1500, ",prompt_mean=1000")
    learned, pinned = (tail_of(long, 300_000, 4096, estimate) for estimate in (None, 200))
    assert learned < 0.95 * pinned < pinned < tail_of(long, 300_000, 4096, None, "lru")
    learner = simulated_cache("tlru", 300_000, threshold=4096, page_size=PAGE)._learner
    assert learner is not None
    assert learner.names == ("tlru", "tlru Q=200", "lru")
    assert not learner._returns.version, "who comes back it does not ask"
    assert Learner(Config("tlru", THRESHOLD, NEXT_PROMPT), 10_000, PAGE).names == ("tlru", "lru")


def test_where_nearly_everything_fits_tlru_is_lru_unless_it_is_told() -> None:
    requests = synthetic(1500)
    lru = tail_of(requests, 300_000, 2048, None, "lru")
    learned, pinned = (tail_of(requests, 300_000, 2048, estimate) for estimate in (None, 200))
    assert lru <= learned < 1.05 * lru
    assert pinned > 1.3 * lru


def test_etlru_falls_back_to_what_tlru_has_learned() -> None:
    cache = simulated_cache("etlru", 50_000, threshold=THRESHOLD, page_size=PAGE)
    requests = synthetic(800)
    simulate(cache, requests)
    learner = cache._learner
    assert learner is not None
    learned, tlru, lru = learner._policies
    assert learned.prompts is tlru.prompts
    assert isinstance(tlru.returns, RecentTurns)
    assert (tlru.threshold, tlru.median_weight, lru.median_weight) == (THRESHOLD, 0.0, 1.0)


def test_recency_by_turns_is_one_by_the_turns_served_since() -> None:
    recent = RecentTurns()
    for served, rate in ((3, 1 / 9), (7, 1 / 5)):
        conversation = Conversation((), 0.0, 1, 0, PAGE, 0)
        conversation.served = served
        leaf = Leaf(0, PAGE, PAGE, 1_000.0, conversation)
        assert recent.rate(0, recent.key(leaf), 11.0) == rate
        assert recent.stamp(leaf) == served
    assert recent.key(leaf._replace(known=None)) == 0.0, "of whose turn nobody knows"


# ---- the weight ----


def shadows_of(learner: Learner, tel: list[float], p50: list[int], late: list[float] | None = None) -> Shadows:
    shadows = learner._shadowed()
    shadows.tel = [*tel, tel[-1]]
    late = late or [0.0] * (len(tel) - 1) + [100.0, 0.0]  # of lru alone
    shadows.late = [late, late]
    for quantile, usual in zip(shadows.quantiles, [*p50, p50[-1]], strict=True):
        for _ in range(100):
            quantile.add(usual)
    return shadows


def test_auto_takes_the_lowest_median_that_the_tail_does_not_pay_for() -> None:
    learner = Learner(Config("etlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    assert learner.names == ("etlru", "etlru w=0.2", "etlru w=0.6", "tlru", "lru")
    learned = shadows_of(learner, [1000.0, 1009.0, 1011.0, 1500.0, 2000.0], [50, 40, 30, 50, 50])
    learned.best = 0
    assert learner._chosen(learned) == 1  # 1,011: 1.1 % above 1,000

    def of(tel: list[float], p50: list[int], best: int = 0) -> int:
        shadows = shadows_of(learner, tel, p50)
        shadows.best = best
        return learner._chosen(shadows)

    # Where none of those has a median as low as lru's, the tail may lose up to 5 %.
    tel = [1000.0, 1009.0, 1049.0, 1500.0, 2000.0]
    assert of(tel, [50, 40, 30, 50, 40]) == 1
    assert of(tel, [50, 40, 30, 50, 39]) == 2
    tel[2] = 1051.0
    assert of(tel, [50, 40, 30, 50, 39]) == 1
    level = [1000.0] * 5
    assert of(level, [50, 40, 30, 50, 50]) == 2
    assert of(level, [30, 40, 50, 50, 50]) == 0
    assert of(level, [50] * 5) == 4, "of what is alike in all, lru raises no p95"
    assert of([2000.0, 2000.0, 2000.0, 1000.0, 1500.0], [50, 40, 30, 50, 40], best=3) == 3
    assert of([2000.0, 2000.0, 2000.0, 1000.0, 1004.0], [50, 40, 30, 50, 40], best=3) == 4
    assert of([1500.0, 1500.0, 1500.0, 1500.0, 1000.0], [50, 40, 30, 50, 40], best=4) == 4


def test_auto_keeps_the_p95_below_that_of_lru() -> None:
    learner = Learner(Config("etlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)

    def of(*late: float, before: tuple[float, ...] = (), turns: int = 2_048) -> int:
        """With so many turns beyond lru's p95 under each, and under what was in force."""
        shadows = shadows_of(learner, [1000.0, 1009.0, 1011.0, 1500.0, 2000.0], [50, 40, 30, 50, 50], [*late])
        shadows.sampled = turns
        shadows.late[1] = [*(before or late)]
        shadows.best = 0
        return learner._chosen(shadows)

    # Of 100, two and two more in reserve.
    assert of(150, 150, 150, 150, 100, 96) == 1, "is ahead, and may spend it"
    assert of(150, 150, 150, 150, 100, 96.1) == 4
    # And four more at the start, two half of the way.
    assert of(150, 150, 150, 150, 100, 96, turns=1_024) == 4
    assert of(150, 150, 150, 150, 100, 94, turns=1_024) == of(150, 150, 150, 150, 100, 92, turns=0) == 1
    assert of(150, 150, 150, 150, 100, 92.1, turns=0) == 4
    assert of(90, 96.1, 150, 150, 100, 96.1) == 0, "is ahead itself"
    assert of(90, 80, 150, 150, 100, 96.1) == 1, "further"
    assert of(96.1, 96.1, 150, 150, 100, 99) == 4
    assert of(150, 150, 150, 90, 100, 99) == 4, "tlru is no setting"
    # What was in force has lost three turns, by one count or the other: twice as many have to be won.
    assert of(89.9, 150, 150, 150, 100, 103) == 0
    assert of(90.1, 150, 150, 150, 100, 103) == 4
    assert of(90.1, 150, 150, 150, 100, 99, before=(90.1, 150, 150, 150, 100, 103)) == 4
    # Beyond the p95 of late, and of longer: neither may be higher.
    ahead, behind = (90, 80, 150, 150, 100, 90), (150, 85, 150, 150, 100, 98)
    assert of(*ahead, before=ahead) == 1
    assert of(*ahead, before=behind) == of(*behind, before=ahead) == 1, "as it is ahead itself by either"
    assert of(*ahead, before=(150, 150, 80, 150, 100, 98)) == 4


def test_turns_are_late_beyond_the_p95_of_lru_as_it_was_when_they_came() -> None:
    lru = Policy(Recency(), AnyPrompt(), THRESHOLD, 1.0)
    shadows = Shadows((lru, lru, lru), 100_000, PAGE, one_in=1, bar=1)
    for _ in range(1_500):  # every tenth turn is of 1,000 tokens under all: lru's p95
        for tenth in range(10):
            shadows._count_late([1_000 if tenth == 0 else 100] * 3)
    assert shadows.late == [[0.0] * 3, [0.0] * 3]
    for _ in range(1_100):  # a quiet hour under lru, and not under the first
        shadows._count_late([500, 10, 10])
    of_late, for_longer = shadows.late
    assert of_late[0] > 500, "after half of 1,024 turns the p95 was 100"
    assert for_longer[0] == 0.0, "of 4,096 turns it still is 1,000"
    assert of_late[1] == of_late[2] == for_longer[1] == 0.0
    shadows.sampled = 16_100
    assert shadows.ahead(0) == -2.0 - of_late[0]
    assert shadows.ahead(2) == -2.0, "the reserve"
    assert shadows.behind(0) == of_late[0]
    assert shadows.behind(2) == 0.0


def test_auto_begins_with_lru() -> None:
    for policy in ("tlru", "etlru"):
        learner = Learner(Config(policy, THRESHOLD, median_weight="auto"), 10_000, PAGE)
        assert learner.in_force == "lru"
        shadows = learner._shadowed()
        assert learner._chosen(shadows) == learner.names.index("lru"), "no turn was seen"


def test_one_shadow_of_auto_is_always_of_what_is_in_force() -> None:
    cache = simulated_cache(
        "etlru", 20_000, threshold=1024, next_prompt_estimate=None, page_size=PAGE, median_weight="auto"
    )
    learner = cache._learner
    assert learner is not None
    seen = set()
    for request in synthetic(1000):
        cache.request(request)
        seen.add(learner.in_force)
        if learner.shadows is not None:
            assert learner.shadows._shadows[-1].order.policy == learner.shadows._scaled(learner.policy)
            assert len(learner.shadows._shadows) == len(learner.names) + 1 == len(learner.shadow_names)
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("trace", "capacity", "threshold", "page_size"),
    [
        ("conversations=1000,seed=2", 200_000, 2048, 16),
        ("conversations=2000,seed=1", 150_000, 2048, 128),
        ("conversations=3000,seed=2", 400_000, 2048, 512),
    ],
)
def test_auto_does_not_raise_the_p95_where_the_tail_alone_would(
    trace: str, capacity: int, threshold: int, page_size: int
) -> None:
    requests = open_trace(f"synthetic:{trace}").requests

    def p95_of(policy: str, weight: MedianWeight = 0.0) -> float:
        cache = simulated_cache(
            policy,
            capacity,
            threshold=threshold,
            next_prompt_estimate=None if policy == "etlru" else 200,
            page_size=page_size,
            median_weight=weight,
        )
        return float(np.percentile(uncached_tokens(requests, simulate(cache, requests)), 95))

    lru = p95_of("lru")
    assert p95_of("etlru") > 1.02 * lru
    assert max(p95_of("etlru", "auto"), p95_of("tlru", "auto")) <= 1.01 * lru


def test_auto_lets_w_count_from_the_median_of_lru_on_whatever_else_of_the_policy_changes() -> None:
    learner = Learner(Config("etlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    shadows = shadows_of(learner, [0.0] * 5, [0, 0, 0, 0, 320])
    learner._follow_median(shadows)
    learner.use_threshold(2 * THRESHOLD)
    assert [policy.median for policy in learner._policies] == [320, 320, 320, 0, 0]
    assert {policy.threshold for policy in learner._policies} == {2 * THRESHOLD}
    for quantile in shadows.quantiles:
        for _ in range(2_000):
            quantile.add(340)  # within a tenth of what it was: not worth to sort all leaves for
    learner._follow_median(shadows)
    assert [policy.median for policy in learner._policies] == [320, 320, 320, 0, 0]


def test_auto_is_a_choice_of_tlru_too() -> None:
    learner = Learner(Config("tlru", THRESHOLD, median_weight="auto"), 10_000, PAGE)
    assert learner.names == ("tlru", "tlru w=0.2", "tlru w=0.6", "tlru Q=200", "lru")
    assert [policy.median_weight for policy in learner._policies] == [0.05, 0.2, 0.6, 0.0, 1.0]
    for request in synthetic(40):
        end = len(request.context)
        learner.observe(turn(request.arrival_s, request.prompt_tokens, end, int(request.conversation or 0)))
    assert learner.in_force in learner.names


# ---- a real trace ----


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"needs the Mooncake conversation trace at {MOONCAKE}")
@pytest.mark.parametrize(("threshold", "closed"), [(4096, 0.366), (16384, 0.507)])
def test_the_gap_closed_on_the_second_half_of_a_real_trace(threshold: int, closed: float) -> None:
    requests = open_trace(str(MOONCAKE), format="mooncake").requests
    later = len(requests) // 2

    def tel_of(policy: str) -> int:
        cache = simulated_cache(policy, 2_000_000, threshold=threshold, next_prompt_estimate=200, page_size=512)
        return tel(requests[later:], simulate(cache, requests)[later:], threshold)

    optimum = {4096: 29_668_471, 16384: 11_575_650}[threshold]  # Tail-Optimized Belady
    lru = tel_of("lru")
    assert round((lru - tel_of("etlru")) / (lru - optimum), 3) == closed
