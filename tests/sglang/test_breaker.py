"""A fault of ours leaves a server with stock lru, which says so once; one of what a rank does alone, with less."""

from __future__ import annotations

import logging
from array import array
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru.objective.calibration import EVERY, PrefillBatch
from radix_tlru.policy.models import Recency
from radix_tlru.sglang.scheduler.batches import batch_launched, batch_processed
from radix_tlru.sglang.scheduler.ranks import Rank
from tests.helpers.caches import Driver, our_cache
from tests.helpers.turns import told

pytestmark = pytest.mark.usefixtures("tree_core")

POOL = 4_000


class BrokenError(RuntimeError):
    """What a hook of ours raises."""


def broken(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise BrokenError


def learning(armed: bool = True) -> Driver:
    driver = Driver(our_cache(POOL, policy="etlru", median_weight=0.05, ttft_slo_ms=100, trim_chunk=1))
    driver.cache.tail.breaker.is_armed = armed
    return driver


def turn(driver: Driver, name: str, tokens: int) -> int:
    """A turn whose prompt is looked up again while it queues, and which is learned from."""
    history = driver.histories.setdefault(name, [])
    history += driver.fresh(tokens)
    return driver.request(history, prompt=len(history) - 10, stamp=float(len(driver.histories)))


HOOKS = {
    "record_turn": lambda driver: driver.cache.tail.learner,
    "learn": lambda driver: driver.cache.tail.learner,
    "mark_queued": lambda driver: driver.cache.tail.learner,
    "choose_victim": lambda driver: driver.cache.tail.order,
    "add_leaf": lambda driver: driver.cache.tail.order,
    "remove_leaf": lambda driver: driver.cache.tail.order,
    "has_children": lambda driver: driver.cache.tail,
}


def use(driver: Driver) -> None:
    """Six conversations of 800 tokens, where 5 fit; each is looked up once more before it goes on."""
    for name in "ABCDEF":
        turn(driver, name, 800)
        driver.match_conversation(name)


def check_lru(driver: Driver) -> None:
    """What was used longest ago goes first, and no slot is lost."""
    tail = driver.cache.tail
    assert tail.breaker.has_tripped
    assert (tail.learner, tail.policy.returns, tail.policy.median_weight) == (None, Recency(), 1.0)
    assert len(tail.order) == sum(1 for _ in tail.leaves())
    for name in "ABCDEFG":
        turn(driver, name, 10)
    driver.evict(driver.cache.full_evictable_size() - driver.cached("G") - driver.cached("F"))
    assert [name for name in "ABCDEFG" if driver.cached(name)] == ["F", "G"]
    assert driver.allocator.available_size() + driver.cache.full_evictable_size() == POOL
    driver.cache.sanity_check()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_leaves_stock_lru_and_one_line(
    hook: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = learning()
    use(driver)
    monkeypatch.setattr(HOOKS[hook](driver), hook, broken, raising=True)
    with caplog.at_level(logging.ERROR):
        use(driver)
        check_lru(driver)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert said[0].startswith("radix_tlru: to ")
    assert said[0].endswith("failed; from now on this cache evicts by lru, as stock")


def test_a_leaf_that_cannot_be_priced_while_its_turn_is_recorded_leaves_stock_lru(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The learner is gone then, in the midst of what it is told."""
    driver = learning()
    use(driver)
    tail = driver.cache.tail
    write_use = tail.write_use

    def write_what_cannot_be_priced(*use: Any) -> None:
        monkeypatch.setattr(tail.order, "add_leaf", broken)
        write_use(*use)

    monkeypatch.setattr(tail, "write_use", write_what_cannot_be_priced)
    use(driver)
    check_lru(driver)


@pytest.mark.parametrize("hook", ["end_conversation", "record_prefill"])
def test_so_does_what_a_client_seldom_asks_for(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = learning()
    use(driver)
    tail, node_id = driver.cache.tail, driver.match_conversation("F").last_device_node
    asked = tail.conversation_at(node_id)
    assert asked is not None
    monkeypatch.setattr(tail.learner, hook, broken)
    calls = {
        "end_conversation": lambda: tail.end_conversation(asked),
        "record_prefill": lambda: tail.record_prefill(node_id, told(9.0, driver.histories["F"])),
    }
    calls[hook]()
    check_lru(driver)
    for call in calls.values():
        call()  # nobody learns any more, and nothing fails


def test_so_does_a_flush_that_cannot_forget_what_clients_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = learning()
    use(driver)
    monkeypatch.setattr(driver.cache.tail.learner, "clear_claims", broken)
    driver.cache.reset()
    driver.allocator.clear()  # as a scheduler does
    driver.histories.clear()
    use(driver)
    check_lru(driver)


def test_a_request_that_cannot_be_read_leaves_stock_lru_and_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = learning()
    use(driver)
    ids = array("q", range(90_000, 90_100))
    req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=SamplingParams(max_new_tokens=1))
    params = InsertParams(key=RadixKey(ids), value=driver.allocate(len(ids)))
    result = driver.cache.insert(params)
    monkeypatch.setattr("radix_tlru.sglang.cache.learning_component.turn_of", broken)
    driver.cache.tail.cleanup_after_caching_req(req, True, result, params)
    assert driver.resident(ids) == 100
    check_lru(driver)


def test_metrics_that_cannot_be_reported_end_and_the_policy_stays(caplog: pytest.LogCaptureFixture) -> None:
    driver = learning()
    use(driver)
    tail = driver.cache.tail
    driver.cache.tail_metrics = SimpleNamespace(report=broken)
    with caplog.at_level(logging.ERROR):
        driver.cache.report()
        use(driver)
    assert (tail.breaker.has_tripped, driver.cache.tail_metrics) == (False, None), "on other ranks nothing has failed"
    assert tail.learner is not None
    assert tail.policy.median_weight == 0.05
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ["radix_tlru: to report metrics failed; from now on there are none"]


def test_prefills_that_cannot_be_looked_at_leave_stock_lru_and_the_batch_is_processed() -> None:
    driver = learning()
    use(driver)
    scheduler = SimpleNamespace(tree_cache=driver.cache, device="cpu")
    batch = SimpleNamespace(launch_ts=1.0)  # what the hook asks of it next is missing, on all ranks
    assert batch_processed(lambda *_: "processed", scheduler, batch) == "processed"
    assert batch_processed(lambda *_: "again", scheduler, batch) == "again"
    check_lru(driver)
    driver.cache.use_threshold(300)  # agreed on before


@pytest.mark.parametrize("hooked", ["launched", "processed"])
def test_prefills_that_cannot_be_timed_leave_the_policy_and_its_threshold(
    hooked: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other ranks may be able to: they evict as before, and wait for this one where they agree on a threshold."""
    driver = learning()
    use(driver)
    tail, live = driver.cache.tail, driver.cache.live_threshold
    before, scheduler = tail.policy.threshold, SimpleNamespace(tree_cache=driver.cache, device="cpu")
    req = Req(rid="a", origin_input_text="", origin_input_ids=array("q", [1]), sampling_params=SamplingParams())
    batch = SimpleNamespace(launch_ts=1.0, forward_iter=1, forward_mode=ForwardMode.EXTEND, reqs=[req])
    batch.decoding_reqs, batch.extend_num_tokens = None, 1
    with caplog.at_level(logging.ERROR):
        if hooked == "launched":
            batch_launched(None, scheduler, SimpleNamespace())
        else:
            batch.launch_ts = "no time"
        for _ in range(2):
            assert batch_processed(lambda *_: "processed", scheduler, batch) == "processed"
    for number in range(3 * EVERY):
        live.count_batch(PrefillBatch((f"{number}",), None, 100 + number), 10.0 + 0.1 * number)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ["radix_tlru: to time prefills failed; from now on the threshold stays as it is"]
    assert (tail.breaker.has_tripped, tail.policy.threshold, live.samples) == (False, before, 0)
    assert tail.learner is not None


def test_a_second_fault_is_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = learning()
    use(driver)
    monkeypatch.setattr(driver.cache.tail.order, "choose_victim", broken)
    driver.evict(10)
    monkeypatch.setattr(driver.cache.tail.order, "choose_victim", broken)
    with pytest.raises(BrokenError):
        driver.evict(10)


def test_where_nobody_is_served_a_fault_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = learning(armed=False)
    use(driver)
    driver.cache.tail_metrics = SimpleNamespace(report=broken)
    with pytest.raises(BrokenError):
        driver.cache.report()
    monkeypatch.setattr(driver.cache.tail.order, "choose_victim", broken)
    with pytest.raises(BrokenError):
        driver.evict(10)


def two_ranks(*failing: int) -> tuple[Driver, Driver]:
    """Four steps of two ranks. In the second no victim can be chosen on some of them.

    Raises:
        RuntimeError: what a rank ends with.
    """
    first, second = learning(), learning()
    one, other = Rank(0, first.cache.tail), Rank(1, second.cache.tail)
    for step in range(4):
        sent = one.share_requests(lambda _, received, own: [*received, *(own or ())], None, ["a request"])
        assert sent[0] == "a request"
        assert other.share_requests(lambda *_, sent=sent: sent, None, None) is sent
        for number, driver in enumerate((first, second)):
            if step == 1 and number in failing:
                driver.cache.tail.order.choose_victim = broken
            use(driver)
    assert sent == ["a request"], "it is told once"
    return first, second


def test_a_fault_that_all_ranks_meet_leaves_all_of_them_with_lru() -> None:
    for driver in two_ranks(0, 1):
        check_lru(driver)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_fault_that_one_rank_meets_alone_ends_another_before_their_batches_differ(failing: int) -> None:
    with pytest.raises(RuntimeError, match=rf"^radix_tlru: rank {failing} alone failed to choose what goes \(Broken"):
        two_ranks(failing)


def fallen_back(after: int) -> Driver:
    """A cache that evicts by lru since so many conversations."""
    driver = learning()
    use(driver)
    for number in range(after):
        turn(driver, f"{number}", 100)
    driver.cache.tail.order.choose_victim = broken
    use(driver)
    return driver


@pytest.mark.parametrize(("after", "alike"), [(1, True), (2, False)])
def test_ranks_that_fall_back_between_the_same_steps_must_have_evicted_alike_until_then(
    after: int, alike: bool
) -> None:
    one, other = Rank(0, fallen_back(1).cache.tail), Rank(1, fallen_back(after).cache.tail)
    sent = one.share_requests(lambda _, received, own: [*received, *(own or ())], None, ["a request"])

    def share(_receiver: Any, _received: Any, own: Any) -> list[Any]:
        assert own is None, "the first rank alone tells"
        return sent

    if alike:
        assert other.share_requests(share, None, None) is sent
        return
    with pytest.raises(RuntimeError, match=r"^radix_tlru: rank 1 alone failed to choose what goes"):
        other.share_requests(share, None, None)


def test_a_later_stage_of_a_pipeline_is_told_by_the_first_and_tells_nobody() -> None:
    """Its first rank is given what the stage before received, and sends it on to the others of its stage."""
    first, later = fallen_back(1), fallen_back(1)
    later.cache.pp_rank = 1
    sent = Rank(0, first.cache.tail).share_requests(lambda _, received, own: [*received, *own], None, ["a request"])
    assert len(sent) == 2
    given: list[Any] = []

    def share(_receiver: Any, received: list[Any], own: Any) -> list[Any]:
        given.append(own)
        return received

    assert Rank(2, later.cache.tail).share_requests(share, None, sent) is sent
    assert given == [None]
