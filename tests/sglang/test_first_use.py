"""What is cached before a turn of it is recorded, or for no turn at all, was used now: it is no first victim."""

from __future__ import annotations

from array import array
from http import HTTPStatus
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru.sglang.requests import turns
from radix_tlru.sglang.requests.metadata import KEY
from radix_tlru.sglang.scheduler.batches import batch_processed
from tests.helpers.caches import Driver, our_cache
from tests.helpers.served import served
from tests.helpers.turns import told

pytestmark = pytest.mark.usefixtures("tree_core")

POOL, OLD, TOKENS = 4_000, 20, 100
BOOT = 1e6  # s: stamps are of a machine that has been up for days


@pytest.fixture(params=["tlru", "etlru"])
def driver(request: pytest.FixtureRequest) -> Driver:
    """A cache of 20 conversations of 100 tokens, a minute apart."""
    weight = {"median_weight": 1.0} if request.param == "etlru" else {}
    driver = Driver(our_cache(POOL, policy=request.param, threshold=600, trim_chunk=1, **weight))
    for number in range(OLD):
        driver.request(driver.fresh(TOKENS), prompt=TOKENS - 10, stamp=BOOT + 60 * number)
    return driver


def test_turns_of_one_step_that_wait_to_be_recorded_do_not_go_before_older_ones(driver: Driver) -> None:
    contexts = [driver.fresh(TOKENS) for _ in range(16)]

    def serve(*_: object) -> None:
        for context in contexts:
            driver.request(context, prompt=TOKENS - 10, stamp=BOOT + 60 * OLD)

    scheduler = SimpleNamespace(tree_cache=driver.cache, device="cpu")
    batch_processed(serve, scheduler, SimpleNamespace(launch_ts=None))
    assert driver.cache.tail.has_work, "a step records four of them"
    driver.evict(1_200)
    assert [driver.resident(context) for context in contexts] == [TOKENS] * 16


@pytest.mark.parametrize(
    ("is_finished", "most"), [(False, 100), (True, 0)], ids=["a prompt that is retracted", "for no token"]
)
def test_a_prompt_without_a_turn_does_not_go_before_older_ones(driver: Driver, is_finished: bool, most: int) -> None:
    ids = array("q", driver.fresh(TOKENS))
    asked = SamplingParams(max_new_tokens=most)
    req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=asked)
    params = InsertParams(key=RadixKey(ids), value=driver.allocate(TOKENS))
    driver.cache.tail.cleanup_after_caching_req(req, is_finished, driver.cache.insert(params), params)
    driver.evict(1_200)
    assert driver.resident(ids) == TOKENS


def test_a_text_that_is_asked_for_no_token_again_and_again_stays_as_under_lru() -> None:
    """As one is that is scored: each time it was used then, and not when it was first cached."""
    driver = Driver(our_cache(POOL, policy="etlru", median_weight=1.0, threshold=600, trim_chunk=1))
    conversation: list[int] = []
    for number in range(300):  # every second turn is a return, and most return within seconds
        conversation = driver.fresh(TOKENS) if number % 2 else conversation + driver.fresh(TOKENS)
        driver.request(conversation, prompt=len(conversation) - 10, stamp=BOOT + 5 * number)
    ids, found = array("q", driver.fresh(TOKENS)), []
    req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=SamplingParams(max_new_tokens=0))
    for asked in range(6):
        found.append(slots := driver.slots(driver.match(ids).last_device_node))
        own = torch.cat([slots, driver.allocate(TOKENS - len(slots))])
        params = InsertParams(key=RadixKey(ids), value=own, prev_prefix_len=len(slots))
        driver.cache.tail.cleanup_after_caching_req(req, True, driver.cache.insert(params), params)
        for number in range(30):  # 3,000 tokens in 150 s
            stamp = BOOT + 1_500 + 150 * asked + 5 * number
            driver.request(driver.fresh(TOKENS), prompt=TOKENS - 10, stamp=stamp)
    assert [len(slots) for slots in found] == [0, *[TOKENS] * 5]


def test_what_is_prefilled_before_several_answers_counts_with_the_first_of_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang asks for no token first, and so each answer finds the prompt of 1,300 tokens cached; ξ is 600."""
    monkeypatch.setattr(turns, "_MOST_PREFILLS", 2)
    tail = driver.cache.tail
    beyond, ids = tail.learner.served.excess, array("q", driver.fresh(1_300))

    def serve(stamp: float, most: int, cached: int) -> int:
        asked = SamplingParams(max_new_tokens=most, custom_params={KEY: {"stamp": stamp, "hints": None}})
        req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=asked)
        req.cached_tokens = cached
        params = InsertParams(key=RadixKey(ids), value=driver.allocate(len(ids)))
        tail.cleanup_after_caching_req(req, True, driver.cache.insert(params), params)
        tail.record_served()
        return int(tail.learner.served.excess - beyond)

    assert serve(BOOT + 1.0, 0, cached=0) == 0
    assert [serve(BOOT + 1.0, 8, cached=1_299) for _ in range(3)] == [700, 700, 700]
    assert serve(BOOT + 2.0, 0, cached=100) == 700
    assert serve(BOOT + 3.0, 8, cached=1_299) == 700, "of another prompt"
    assert serve(BOOT + 2.0, 8, cached=1_299) == 1_300
    for other in (4.0, 5.0, 6.0):  # texts that are scored have no answers
        serve(BOOT + other, 0, cached=0)
    assert serve(BOOT + 4.0, 8, cached=1_299) == 1_300, "two are remembered here"
    assert serve(BOOT + 6.0, 8, cached=1_299) == 2_000
    assert serve(BOOT + 5.0, 8, cached=1_299) == 2_700


def test_what_was_prefilled_is_no_less_than_nothing_and_of_a_request_with_a_stamp() -> None:
    """One that was retracted is looked up again with what it had answered so far."""
    prefills = turns.Prefills()
    for stamp, cached in ((BOOT, 20), (BOOT + 1.0, 101), (None, 20)):
        prefills.add(served(range(100), [1], cached_tokens=cached), stamp)
    assert [prefills.take(stamp) for stamp in (BOOT, BOOT, BOOT + 1.0, None)] == [80, 0, 0, 0]


def test_a_context_that_is_asked_for_no_token_is_still_of_its_conversation(driver: Driver) -> None:
    ids = array("q", driver.fresh(TOKENS))
    driver.request(ids, prompt=TOKENS - 10, stamp=BOOT + 60 * OLD)
    req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=SamplingParams(max_new_tokens=0))
    node, tail = driver.match(ids).last_device_node, driver.cache.tail
    params = InsertParams(key=RadixKey(ids), value=driver.slots(node), prev_prefix_len=TOKENS)
    tail.cleanup_after_caching_req(req, True, driver.cache.insert(params), params)
    assert tail.conversation_at(node).number == OLD + 1


def test_what_is_prefilled_ahead_for_nobody_that_is_known_does_not_go_before_older_ones(driver: Driver) -> None:
    words = driver.fresh(TOKENS)
    driver.request(words)
    driver.cache.tail.record_prefill(driver.match(words).last_device_node, told(BOOT + 60 * OLD, words))
    driver.evict(1_200)
    assert driver.resident(words) == TOKENS


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_prefilled_ahead_is_no_request_that_has_come(dry_run: bool) -> None:
    """A template that repeats answers has it begin with all that is cached of its chat."""
    driver = Driver(our_cache(POOL, policy="etlru", threshold=600, dry_run=dry_run))
    tail, words, back = driver.cache.tail, driver.fresh(TOKENS), []
    driver.request(words, prompt=TOKENS - 10, stamp=BOOT)
    ids = array("q", [*words, *driver.fresh(1)])
    for marked in ({"made_ahead": True}, {}):
        asked = SamplingParams(custom_params={KEY: {"stamp": BOOT, "hints": None, **marked}})
        req = Req(rid="a", origin_input_text="", origin_input_ids=ids, sampling_params=asked)
        found = driver.cache.match_prefix(MatchPrefixParams(key=RadixKey(ids), req=req))
        assert found.device_prefix_len == TOKENS
        back.append(tail.conversation_at(found.last_device_node).queued_until > tail.learner.now)
    assert back == [False, True]


def test_a_prompt_whose_answer_was_evicted_is_of_the_conversation_that_had_it(driver: Driver) -> None:
    """SGLang caches the prompt before it decodes, and looks it up once more at the end."""
    context = driver.fresh(TOKENS)
    prompt = context[:-10]
    req = Req(rid="a", origin_input_text="", origin_input_ids=array("q", prompt), sampling_params=SamplingParams())
    params = InsertParams(key=RadixKey(array("q", prompt)), value=driver.allocate(len(prompt)))
    driver.cache.tail.cleanup_after_caching_req(req, False, driver.cache.insert(params), params)
    driver.request(context, prompt=len(prompt), stamp=BOOT + 60 * OLD)
    driver.match(prompt)
    of_all = OLD * TOKENS
    driver.evict(of_all + 15)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.conversation.number) == (len(context) - 15, OLD + 1)


def test_a_request_that_is_refused_is_no_turn_and_one_that_is_cut_short_is(driver: Driver) -> None:
    """SGLang serves one that it refuses, too: with one token for a prompt, the same for all of them.

    One whose client leaves was prefilled, and so was one that runs for longer than SGLANG_REQ_RUNNING_TIMEOUT.
    """
    tail = driver.cache.tail

    def turns_of(req: Req) -> int:
        params = InsertParams(key=RadixKey(req.origin_input_ids), value=driver.allocate(len(req.origin_input_ids)))
        tail.cleanup_after_caching_req(req, True, driver.cache.insert(params), params)
        tail.record_served()
        return tail.learner.served.requests

    before = tail.learner.served.requests
    refused = served(driver.fresh(TOKENS), [5], finished_reason=None)
    with get_parallel().override(tp_rank=0):
        refused.set_finish_with_abort("the prompt is too long")
    refused.update_finish_state(0)
    assert (len(refused.origin_input_ids), turns_of(refused)) == (1, before)
    assert turns_of(served(driver.fresh(TOKENS), [5], finished_reason=FINISH_ABORT())) == before + 1
    late = FINISH_ABORT("Request running timeout reached.", HTTPStatus.SERVICE_UNAVAILABLE)
    assert turns_of(served(driver.fresh(TOKENS), [5], finished_reason=late)) == before + 2
    assert turns_of(served(driver.fresh(1), [5], finished_reason=FINISH_ABORT())) == before + 3


def test_what_two_went_on_from_is_of_the_later_one_though_it_was_looked_up_since(driver: Driver) -> None:
    """A look-up uses what is shared, too, but is nobody's turn."""
    shared = driver.fresh(TOKENS)
    for number in range(2):
        driver.request(shared + driver.fresh(TOKENS), prompt=TOKENS, stamp=BOOT + 60 * (OLD + number))
    driver.match(shared + driver.fresh(1))
    driver.evict((OLD + 2) * TOKENS)
    (leaf,) = driver.cache.tail.leaves()
    assert (leaf.end, leaf.conversation.stamp) == (TOKENS, BOOT + 60 * (OLD + 1))


def test_a_request_of_less_than_a_page_is_nobodys_use() -> None:
    driver = Driver(our_cache(POOL, 16, policy="etlru", threshold=600))
    req = Req(rid="a", origin_input_text="", origin_input_ids=array("q", [1]), sampling_params=SamplingParams())
    params = InsertParams(key=RadixKey(array("q", [1])).page_aligned(16), value=driver.allocate(0))
    driver.cache.tail.breaker.is_armed = True
    for is_finished in (False, True):
        driver.cache.tail.cleanup_after_caching_req(req, is_finished, driver.cache.insert(params), params)
    assert not driver.cache.tail.breaker.has_tripped
