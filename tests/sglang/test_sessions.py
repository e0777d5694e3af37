"""Sessions that clients name and close (``--enable-session-radix-cache``): what none refers to goes first."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey

from eval.caches.real import REAL_CACHES, RealCache
from eval.traces import open_trace
from radix_tlru import Config
from radix_tlru.hints.schema import Hints
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Turn
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import REPRICED
from radix_tlru.policy.policy import policy_for
from radix_tlru.policy.preview import preview
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.cache.radix_cache import TailRadixCache
from radix_tlru.sglang.cache.sessions import SessionOrder
from radix_tlru.sglang.offline import cache_params, stock_cache_of
from radix_tlru.sglang.releases import host_tier_refusal
from radix_tlru.sglang.requests.turns import fingerprint_of
from radix_tlru.sglang.scheduler.batches import batch_processed
from tests.helpers.caches import Driver
from tests.helpers.examples import examples
from tests.helpers.rules import InTurn
from tests.helpers.tiers import TieredDriver

POOL, THRESHOLD, NEXT_PROMPT = 4_000, 600, 100
TLRU = Config("tlru", THRESHOLD, NEXT_PROMPT)
ENDED = Hints(conversation_ends=True)


class Clients(Driver):
    """Conversations, each a session of its own if it has a name that begins with an `s`."""

    def __init__(self, config: Config | str = TLRU) -> None:
        params = replace(cache_params(POOL), enable_session_radix_cache=True)
        stock = isinstance(config, str)
        super().__init__(stock_cache_of(params, config) if stock else build_cache(params, config))
        self._now = 0.0

    def turn(self, conversation: str, tokens: int, begins_with: str | None = None) -> int:
        """As of a driver; ``begins_with``: a conversation that a new one has the first 500 tokens of."""
        if begins_with is not None:
            self.histories[conversation] = self.histories[begins_with][:500]
        history = self.histories.setdefault(conversation, [])
        history += self.fresh(tokens)
        self._now += 1.0
        session = conversation if conversation.startswith("s") else None
        stamp = self._now if isinstance(self.cache, TailRadixCache) else None
        cached = self.request(history, prompt=len(history) - 10, stamp=stamp, session=session)
        self.cache.sanity_check()
        return cached


def clients(config: Config | str = TLRU) -> Clients:
    return Clients(config)


@pytest.mark.parametrize("config", [TLRU, Config("etlru", THRESHOLD), Config("tlru", median_weight=0.5), "lru"])
def test_what_no_open_session_refers_to_goes_before_what_one_does(config: Config | str) -> None:
    served = clients(config)
    served.turn("s1", 1_500)
    served.turn("x", 1_500)
    served.turn("s2", 1_000)
    served.evict(1_400)
    assert (served.cached("s1"), served.cached("s2")) == (1_500, 1_000), "the newest and the oldest, both open"
    assert served.cached("x") <= 100


def test_within_either_part_tails_beyond_the_budget_go_first() -> None:
    served = clients()
    served.turn("s1", 1_000)
    served.turn("x", 700)
    served.turn("s2", 1_200)
    served.turn("y", 900)
    served.evict(200 + 400)  # to L + Q̂ - ξ = L - 500 of x and y: x is the older
    assert (served.cached("x"), served.cached("y")) == (200, 800)
    served.evict(800)  # all that is left of them, a tail first
    assert served.cached("x") + served.cached("y") == 200
    assert (served.cached("s1"), served.cached("s2")) == (1_000, 1_200)
    served.evict(200 + 300 + 500)
    assert served.cached("x") + served.cached("y") == 0
    assert (served.cached("s1"), served.cached("s2")) == (500, 900), "the tail of the older one first"


@pytest.mark.parametrize(("config", "left"), [(TLRU, (1_000, 100)), ("lru", (0, 1_000))])
def test_a_closed_session_is_evicted_before_an_older_conversation_unlike_in_stock(
    config: Config | str, left: tuple[int, int]
) -> None:
    served = clients(config)
    for name in ("x", "s1", "s2"):
        served.turn(name, 1_000)
    served.close_session("s1")
    served.evict(900)
    assert (served.cached("x"), served.cached("s1")) == left
    assert served.cached("s2") == 1_000


def test_a_session_is_closed_whose_turn_waits_to_be_recorded_among_many() -> None:
    """To close it does not take longer because of them. Once it is recorded it goes before what is older."""
    served = clients(Config("etlru", THRESHOLD))
    learner = served.cache.tail.learner

    def end_many() -> None:
        for number in range(40):
            served.turn(f"x{number}", 50)
        served.turn("s1", 500)
        served.turn("s2", 500)

    batch_processed(lambda *_: end_many(), SimpleNamespace(tree_cache=served.cache), SimpleNamespace(launch_ts=None))
    before = learner.served.requests
    served.close_session("s1")
    assert learner.served.requests == before < 42
    while served.cache.has_work:
        served.cache.use_idle_time()
    assert learner.served.requests == 42
    ended = {leaf.end for leaf in served.cache.tail.leaves() if leaf.conversation.hints == ENDED}
    assert ended == {500}
    served.evict(400)
    assert (served.cached("s1"), served.cached("s2"), served.cached("x0")) == (100, 500, 50)


@pytest.mark.parametrize("turns", [(1, 3), (3, 1)])
def test_of_closed_sessions_the_one_that_was_used_first_goes_first(turns: tuple[int, int]) -> None:
    """Whatever is thought of conversations of their kind: of what is left the newest is the likeliest to be shared."""
    served = clients(Config("etlru", THRESHOLD))
    served.cache.tail.learner.rule = InTurn(["etlru"])
    for number in range(110):  # as many as it takes for etlru to be in force
        served.turn(f"s{number // 2}", 17)
    for name, count in zip(("s-older", "s-newer"), turns, strict=True):
        for _ in range(count):
            served.turn(name, 900 // count)
    assert served.cache.tail.learner.in_force == "etlru"
    served.close_session("s-newer")
    served.close_session("s-older")
    served.evict(800)
    assert served.cached("s-older") < served.cached("s-newer")
    assert served.cached("s-older") + served.cached("s-newer") == 1_000


def test_what_a_closed_session_shares_stays_for_the_others() -> None:
    served = clients()
    served.turn("s1", 1_500)
    served.turn("s2", 500, begins_with="s1")
    served.turn("x", 500)
    served.close_session("s2")
    served.evict(500)
    assert (served.cached("s2"), served.cached("x")) == (500, 500), "its own tokens, and no more"
    served.close_session("s1")
    served.evict(1_000)
    assert (served.cached("s1"), served.cached("x")) == (500, 500), "what two began with is worth what x is"


def test_what_a_closed_session_shared_does_not_go_first() -> None:
    """Neither as a leaf of its own nor, where it was evicted and came back, as the front of one."""
    served = clients(replace(TLRU, median_weight=0.5))
    served.turn("x", 1_000)
    served.turn("s1", 1_500)
    served.turn("s2", 500, begins_with="s1")
    for name in ("s1", "s2"):
        served.close_session(name)
    served.evict(1_500 + 100)
    assert (served.cached("s1"), served.cached("x")) == (500, 900)
    served.evict(POOL)
    served.turn("y", 1_000)
    served.turn("s3", 1_000, begins_with="s1")
    served.close_session("s3")
    served.evict(1_000 + 100)
    assert (served.cached("s3"), served.cached("y")) == (500, 900)


@pytest.mark.parametrize(
    ("older", "equal", "closed"),
    [
        pytest.param("x", "y", "s1", id="without a session"),
        pytest.param("s0", "s2", "s2", id="of another session"),
    ],
)
def test_closing_a_session_does_not_end_an_equal_conversation(older: str, equal: str, closed: str) -> None:
    served = clients()
    served.turn(older, 1_000)
    served.turn("s1", 1_000)
    served.histories[equal] = served.histories["s1"]
    served.turn(equal, 0)
    served.close_session(closed)
    served.evict(500)
    assert (served.cached(older), served.cached(equal)) == (500, 1_000)


def test_closing_a_session_does_not_end_an_equal_conversation_that_waits_to_be_recorded() -> None:
    served = clients(Config("etlru", THRESHOLD))

    def end_many() -> None:
        for number in range(40):
            served.turn(f"x{number}", 50)
        served.turn("s1", 500)
        served.histories["y"] = served.histories["s1"]
        served.turn("y", 0)

    batch_processed(lambda *_: end_many(), SimpleNamespace(tree_cache=served.cache), SimpleNamespace(launch_ts=None))
    served.close_session("s1")
    while served.cache.has_work:
        served.cache.use_idle_time()
    assert not [leaf for leaf in served.cache.tail.leaves() if leaf.conversation.hints == ENDED]


def test_a_session_that_goes_on_after_it_was_closed_is_open_again() -> None:
    served = clients()
    served.turn("s1", 1_000)
    served.close_session("s1")
    assert served.turn("s1", 100) == 1_000
    served.turn("x", 1_000)
    served.evict(1_000)
    assert (served.cached("s1"), served.cached("x")) == (1_100, 0)


def test_a_flush_forgets_sessions() -> None:
    served = clients()
    served.turn("s1", 1_000)
    served.cache.reset()
    served.allocator.clear()
    served.histories["x"] = served.histories["s1"]
    served.turn("x", 0)
    served.turn("s2", 1_000)
    served.close_session("s1")
    served.evict(900)
    assert (served.cached("x"), served.cached("s2")) == (100, 1_000)


def test_leaves_that_changed_sides_stay_there_when_the_order_is_sorted_anew() -> None:
    leaves = {number: Leaf(0, 100 * number, 100 * number, float(number)) for number in range(1, 9)}
    referred = {1, 2, 3, 4}
    order = SessionOrder(policy_for(TLRU), 1, leaves.get, referred.__contains__)
    for number in leaves:
        order.add_leaf(number)
    assert order.choose_victim(1).leaf_id == 5  # of 5 to 8
    for number, now_referred in ((2, False), (6, True), (6, False), (7, True)):
        order.remove_leaf(number)
        (referred.add if now_referred else referred.discard)(number)
        order.add_leaf(number)
    order.switch_policy(replace(policy_for(TLRU), threshold=10_000))
    order.renew_prices()
    assert order.over_budget == sum(leaf.end for leaf in leaves.values())
    went = []
    while (victim := order.choose_victim(10_000)) is not None:
        foreseen = next(iter(preview(order.parts, 3)))
        assert (foreseen.victim.leaf_id, foreseen.price) == (victim.leaf_id, order.price_of(victim))
        order.remove_leaf(victim.leaf_id)
        went.append(victim.leaf_id)
    assert went == [2, 5, 6, 8, 1, 3, 4, 7]
    assert len(order) == order.over_budget == 0
    order.switch_policy(policy_for(Config("lru")))
    assert order.over_budget is None, "lru sees no threshold"


def test_after_a_move_of_the_threshold_both_parts_get_new_prices_with_each_turn() -> None:
    leaves = {number: Leaf(0, 100, 3_000, float(number)) for number in range(4 * REPRICED)}
    order = SessionOrder(policy_for(TLRU), 1, leaves.get, lambda number: number % 2 == 0)
    for number in leaves:
        order.add_leaf(number)
    order.choose_victim(1)
    order.switch_policy(replace(policy_for(TLRU), threshold=10_000))
    for turns in range(4):
        waiting = [len(part._pricings) for part in order.parts]
        assert waiting == [2 if turns < 3 else 1] * 2, turns
        order.renew_prices()


def test_time_passes_for_both_parts() -> None:
    """A leaf that nobody refers to is as old as it is, though only sessions were used since."""
    order = SessionOrder(policy_for(replace(TLRU, median_weight=0.5)), 1, LEAVES.get, {9}.__contains__)
    order.add_leaf(1)
    assert preview(order.parts, 1)[0].price.return_rate == 1.0
    order.add_leaf(9)
    assert order.choose_victim(1) is not None
    assert preview(order.parts, 1)[0].price.return_rate == 1 / 1_000


LEAVES = {1: Leaf(0, 100, 100, 1.0), 9: Leaf(0, 100, 100, 1_000.0)}


class Tiers(TieredDriver):
    """Sessions on a device and a host."""

    def _cache_params(self, pool: int, page_size: int) -> Any:
        return replace(super()._cache_params(pool, page_size), enable_session_radix_cache=True)

    def request(self, tokens: Any, *said: Any, **more: Any) -> int:
        cached = super().request(tokens, *said, **more)
        self.cache.check_hicache_events()
        return cached


@pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))
@pytest.mark.parametrize("write_policy", [pytest.param("write_through", marks=pytest.mark.long), "write_back"])
def test_both_tiers_know_what_sessions_refer_to(write_policy: Any) -> None:
    driver, rng = Tiers(600, 1_200, write_policy, Config(threshold=120, next_prompt_estimate=20), 4), random.Random(3)
    referred = 0
    steps = examples(1_000)
    for _ in range(steps):
        name = f"s{rng.randrange(14)}"
        if rng.random() < 0.75:
            if len(driver.histories.get(name, ())) > 240:
                driver.histories[name] = driver.histories[name][: 4 * rng.randrange(20)]
            driver.turn(name, 4 * rng.randrange(1, 12))
            if rng.random() < 0.7:
                driver.name_session(name, driver.match_conversation(name).best_match_node)
        elif rng.random() < 0.5:
            driver.close_session(name)
        elif name in driver.histories:
            driver.load_back(driver.histories[name])
        driver.audit()
        tail, core = driver.cache.tail, driver.cache.tree_core
        tiers = (tail.order, core.evictable_device_leaves), (tail.host.order, core.evictable_host_leaves)
        for order, leaves in tiers:
            assert order.referred == {node.id for node in leaves if tail.session_ref(node)}
            referred += len(order.referred)
    assert min(tail.counts[count] for count in ("lru", "tel_safe", "host_lru", "host_tel_safe")) > 0
    assert referred > steps * 5 / 3


def test_agents_that_close_their_sessions_leave_room_for_the_others() -> None:
    requests = open_trace("agents:runs=300,arrival_span_s=300,templates=8,template_median=400,wait_median_s=8").requests
    assert sum(request.closes for request in requests) == 300

    def excess(policy: str) -> int:
        cache: RealCache = REAL_CACHES[policy](48_000, 1_024, None if policy.startswith("real") else 200, 16)
        return sum(max(request.prompt_tokens - cache.request(request) - 1_024, 0) for request in requests)

    told, untold = excess("sglang-lru-sessions"), excess("sglang-lru")
    assert told < untold
    assert excess("real-tlru-sessions") < told
    assert excess("real-etlru-sessions") < told


def test_caches_without_sessions_have_one_order() -> None:
    cache = build_cache(cache_params(POOL, core="python"), TLRU)
    assert not isinstance(cache.tail.order, SessionOrder)


def test_who_is_said_to_be_over_is_not_waited_for_any_more() -> None:
    """Nor do shadows keep it, whether its client said so with its last request or closed its session later."""
    learner = Learner(Config("etlru", THRESHOLD), 10_000, 1)
    said = [learner.record_turn(told(number, Hints(conversation_ends=number == 3))) for number in range(60)]
    assert [conversation.hints == ENDED for conversation in said[:5]] == [False, False, False, True, False]
    learner.end_conversation(said[1])
    assert said[1].hints == ENDED
    served = [learner.record_turn(told(number)) for number in range(60, 64)]
    shadow = learner.selector._shadows["etlru"]
    learner.end_conversation(served[2])
    victim = shadow.order.choose_victim(10_000)
    assert (victim.leaf.conversation, victim.keep) == (served[2], 0)
    learner.record_turn(told(61, tokens=200))
    learner.record_turn(told(62, tokens=200))
    returned = learner._log.intervals().returned
    assert returned.nonzero()[0].tolist() == [61], "of the two one was over"


def told(number: int, hints: Hints | None = None, tokens: int = 100) -> Turn:
    """A turn of a conversation that has so many tokens then."""
    context = array("q", range(1_000 * number, 1_000 * number + tokens))
    return Turn(float(number), tokens - 10, 10, tokens, 0, fingerprint_of(RadixKey(context)), hints)
