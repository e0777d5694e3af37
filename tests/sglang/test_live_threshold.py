"""ξ that moves while a cache serves: what it is learned from, what the order makes of it, and two ranks that agree."""

from __future__ import annotations

import json
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.arg_groups.serving_hook import handle_missing_default_values
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.utils import HEALTH_CHECK_RID_PREFIX
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from radix_tlru import Config, ConfigError
from radix_tlru.objective.calibration import EVERY, PrefillBatch
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, Recency
from radix_tlru.policy.order import REPRICED, EvictionOrder
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import keep_within_budget
from radix_tlru.sglang.requests.first_tokens import FirstToken, dump_first_tokens
from radix_tlru.sglang.requests.metadata import KEY
from radix_tlru.sglang.scheduler.batches import batch_launched, batch_processed, install, prefill_of
from radix_tlru.sglang.scheduler.stopwatch import Stopwatch
from tests.helpers import rank
from tests.helpers.caches import Driver, our_cache
from tests.helpers.examples import examples
from tests.helpers.leaves import unbounded_decisions
from tests.helpers.reference import PageTrie
from tests.helpers.runs import Run
from tests.helpers.scripts import CAPACITY_PAGES, PAGE_SIZES, Step, contexts, steps

# ---- the order ----

NEXT_PROMPT = 100


def tlru(threshold: int) -> Policy:
    return Policy(Recency(), FixedPrompt(NEXT_PROMPT), threshold, median_weight=0.0)


@given(
    leaves=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 100)), min_size=1, max_size=REPRICED),
    moves=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 600)), min_size=1, max_size=20),
)
def test_after_a_move_the_next_victim_is_that_of_a_scan_of_all_leaves(
    leaves: list[tuple[int, int]], moves: list[tuple[int, int]]
) -> None:
    page = 16
    held = {i: Leaf(0, end * page, (end + cut) * page, float(i)) for i, (end, cut) in enumerate(leaves)}
    order = EvictionOrder(tlru(600), page, held.get)
    for leaf_id in held:
        order.add_leaf(leaf_id)
    for threshold, tokens in moves:
        order.switch_policy(tlru(threshold))

        def keep(leaf: Leaf, threshold: int = threshold) -> int:
            return keep_within_budget(leaf.history, NEXT_PROMPT, threshold, page)

        assert len(order) == len(held)
        victim = order.choose_victim(tokens)
        assert order.over_budget == sum(max(leaf.end - keep(leaf), 0) for leaf in held.values())
        if victim is None:
            assert not held
            return
        expected = min(held, key=lambda i: (keep(held[i]) >= held[i].end, held[i].last_access))
        assert victim.leaf_id == expected
        order.remove_leaf(expected)
        leaf = held.pop(expected)
        if victim.keep:
            held[1_000 + len(moves) + expected] = leaf._replace(end=victim.keep)
            order.add_leaf(1_000 + len(moves) + expected)
        order.renew_prices()


def test_a_policy_with_other_levels_is_followed_as_if_it_had_been_there_from_the_start() -> None:
    held = {n: Leaf(0, 100 * n, 100 * n, float(10 - n)) for n in range(1, 9)}
    moved, fresh = (EvictionOrder(policy, 1, held.get) for policy in (tlru(600), tlru(300)))
    lru = EvictionOrder(Policy(Recency(), AnyPrompt(), 600, median_weight=1.0), 1, held.get)
    for order in (moved, fresh, lru):
        for leaf_id in held:
            order.add_leaf(leaf_id)
    moved.switch_policy(Policy(Recency(), AnyPrompt(), 600, median_weight=1.0))  # one level instead of two
    assert moved.choose_victim(50) == lru.choose_victim(50)
    assert moved.choose_victim(50) != fresh.choose_victim(50)
    moved.switch_policy(tlru(300))
    assert moved.choose_victim(50) == fresh.choose_victim(50)
    assert moved.over_budget == fresh.over_budget > 0


# ---- the real cache ----


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@given(script=steps, thresholds=st.lists(st.floats(0.2, 50), min_size=1, max_size=8))
@settings(max_examples=examples(40))
def test_with_a_threshold_that_moves_the_cache_is_still_algorithm_1(
    page_size: int, script: list[Step], thresholds: list[float]
) -> None:
    """If each decision may give as many leaves their new price as need one: here no turn ends, after which some do."""
    capacity = CAPACITY_PAGES * page_size
    model = PageTrie(capacity, page_size, 1, 0)
    with unbounded_decisions():
        real = Driver(our_cache(capacity, page_size, threshold=1, next_prompt_estimate=0))
        for number, context in enumerate(contexts(script, page_size)):
            if number % 3 == 0:
                model.threshold = max(1, round(thresholds[number // 3 % len(thresholds)] * page_size))
                real.cache.tail.use_threshold(model.threshold)
            assert real.request(context) == model.request(context)
    assert real.cache.full_evictable_size() == len(model.pages) * page_size
    assert real.cache.tail.order.over_budget >= 0
    real.cache.sanity_check()


def prefill(driver: Driver, number: int, uncached: int, ms: float | None, *told: FirstToken) -> None:
    driver.cache.live_threshold.count_batch(PrefillBatch((f"{number}",), None, uncached, told), ms)


def test_an_objective_moves_the_threshold_at_the_32nd_prefill_across_flushes() -> None:
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    for number in range(EVERY):
        assert driver.cache.tail.policy.threshold == 2_048
        prefill(driver, number, 50 * (number + 1), 5.0 + 0.1 * 50 * (number + 1))
    assert driver.cache.tail.policy.threshold == 950  # (100 - 5) / 0.1
    assert driver.cache.live_threshold.estimate.line == (pytest.approx(0.1), pytest.approx(5.0))
    driver.turn("A", 1_000)
    driver.turn("B", 500)
    assert driver.cache.tail.order.over_budget == (950 - 200) + 500  # of A what exceeds 1,000 + 200 - 950, all of B
    driver.cache.reset()
    driver.allocator.clear()
    assert driver.cache.tail.policy.threshold == 950
    driver.histories.clear()
    driver.turn("A", 1_000)
    assert driver.cache.tail.order.over_budget == 750


@pytest.mark.parametrize(
    ("overhead_ms", "threshold"),
    [
        (20.0, 750),  # (100 - 20 - 5) / 0.1
        (80.0, 450),  # (50 - 5) / 0.1: half of the objective is left to prefill
    ],
)
def test_what_else_first_tokens_wait_for_is_taken_off_the_objective(overhead_ms: float, threshold: int) -> None:
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    told: list[FirstToken] = []
    for number in range(EVERY):
        ms = 5.0 + 0.1 * 50 * (number + 1)
        prefill(driver, number, 50 * (number + 1), ms, *told)
        told = [FirstToken(f"{number}", ms + overhead_ms)]  # with the next one
    assert driver.cache.tail.policy.threshold == threshold
    assert driver.cache.live_threshold.estimate.overhead_ms == pytest.approx(overhead_ms)


def test_prefills_that_are_late_now_and_then_leave_a_margin() -> None:
    """By turns 10 % more and less than 0.1 ms a token: 100 ms / 1.1 are 909 tokens."""
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    for number in range(EVERY):
        prefill(driver, number, 50 * (number + 1), 0.1 * 50 * (number + 1) * (1.1 if number % 2 else 0.9))
    assert driver.cache.tail.policy.threshold == pytest.approx(909, rel=0.05)


def test_leaves_that_were_there_before_a_move_are_judged_by_the_new_threshold() -> None:
    driver = Driver(our_cache(3_000, ttft_slo_ms=100))
    driver.turn("A", 1_500)
    driver.turn("B", 1_000)
    assert driver.cache.tail.order.over_budget == 1_500 + 1_000  # both are within 2,048 - 200
    for number in range(EVERY):
        prefill(driver, number, 50 * (number + 1), 0.1 * 50 * (number + 1))  # ξ = 1,000: 800 of each
    driver.cache.tail.renew_prices()  # at the end of a turn
    assert driver.cache.tail.order.over_budget == 800 + 800
    assert driver.turn("C", 1_400) == 0  # 900 too many: 800 of A, which are free, and 100 of B
    assert (driver.cached("A"), driver.cached("B")) == (700, 900)


def test_prefills_of_unknown_time_count_as_events_and_teach_nothing() -> None:
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    for number in range(3 * EVERY):
        prefill(driver, number, 50 * (number % 32 + 1), None)
    assert driver.cache.live_threshold.samples == 0
    assert driver.cache.tail.policy.threshold == 2_048
    for number in range(
        2 * EVERY
    ):  # other ranks know the times of all: they agree after the 64th, and wait for this one
        assert driver.cache.tail.policy.threshold == 2_048
        tokens = 50 * (number % 32 + 1)
        prefill(driver, number, tokens, None if number < 16 else 5.0 + 0.1 * tokens)
    assert driver.cache.tail.policy.threshold == 950  # (100 - 5) / 0.1


def test_an_objective_that_no_prefill_meets_leaves_the_least_threshold() -> None:
    driver = Driver(our_cache(4_000, 16, ttft_slo_ms=10, next_prompt_estimate=100))
    for number in range(EVERY):
        prefill(driver, number, 50 * (number + 1), 20.0 + 0.1 * 50 * (number + 1))
    assert driver.cache.tail.policy.threshold == 112  # the first whole page above Q̂


def test_a_pinned_threshold_is_learned_from_nothing() -> None:
    for config in ({"threshold": 600}, {"policy": "lru"}):
        assert our_cache(4_000, **config).live_threshold is None


# ---- the stopwatch ----


def stopwatch() -> Stopwatch:
    live = our_cache(4_000, ttft_slo_ms=100).live_threshold
    assert live is not None
    return live.stopwatch


def ms(value: float) -> object:
    return pytest.approx(value)


def test_a_batch_that_was_launched_while_another_ran_began_when_that_was_done() -> None:
    watch = stopwatch()
    watch.run_returned(1, 10.001)
    watch.run_returned(2, 10.006)  # overlap scheduling: launched at 10.005, long before the first is done
    assert watch.batch_ms(1, launched=10.0, now=10.1, in_step=False) == ms(100)
    assert watch.batch_ms(2, launched=10.005, now=10.25, in_step=False) == ms(150)
    watch.run_returned(3, 11.001)  # after a pause
    assert watch.batch_ms(3, launched=11.0, now=11.03, in_step=False) == ms(30)


def test_on_a_device_in_step_with_the_host_a_batch_is_done_when_it_was_run() -> None:
    watch = stopwatch()
    watch.run_returned(1, 10.1)
    watch.run_returned(2, 10.25)  # overlap scheduling: the first is processed only after the second was run
    assert watch.batch_ms(1, launched=10.0, now=10.251, in_step=True) == ms(100)
    assert watch.batch_ms(2, launched=10.1, now=10.252, in_step=True) == ms(150)
    assert watch.batch_ms(9, launched=10.2, now=10.3, in_step=True) is None  # nobody saw it run


def test_in_stages_a_batch_takes_until_the_last_stage_is_done() -> None:
    watch = Stopwatch(stages=2)
    watch.run_returned(1, 10.05)  # the first stage is done with it, and with the next, before the second is
    watch.run_returned(2, 10.1)
    assert watch.batch_ms(1, launched=10.0, now=10.1, in_step=True) == ms(100)
    assert watch.batch_ms(2, launched=10.05, now=10.15, in_step=True) == ms(100)


@pytest.mark.parametrize(
    ("device", "needed"), [("cpu", "no_such_launch"), ("cpu:0", "no_such_launch"), ("cuda", "no_such_step")]
)
def test_an_sglang_whose_prefills_cannot_be_timed_is_refused(
    device: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a batch was launched is of interest only where it is done then: each token waits for a hook.

    Which device it is, SGLang decides; the flag may name one of several, or none.
    """
    record = ServerArgs(model_path="dummy", device=device)
    handle_missing_default_values(record)
    gone = [f"sglang.srt.managers.scheduler.Scheduler.{name}" for name in ("no_such_launch", "no_such_step")]
    monkeypatch.setattr("radix_tlru.sglang.scheduler.batches.HOOKED", gone)
    try:
        with pytest.raises(ConfigError, match=f"--tlru-ttft-slo: prefill cannot be timed, .*{needed}"):
            install(Config(), record)
        assert sum(name in HookRegistry._hooks for name in gone) == 1
    finally:
        for name in gone:
            HookRegistry._hooks.pop(name, None)


# ---- batches ----


def asked(rid: str, *told: FirstToken, **fields: Any) -> Req:
    """A request of a client that reports these first tokens; ``fields`` of it are set as they are."""
    metadata = {"stamp": 0.0, "hints": None, "first_tokens": dump_first_tokens(told)}
    params = SamplingParams(max_new_tokens=8, custom_params={KEY: metadata})
    req = Req(rid=rid, origin_input_text="", origin_input_ids=array("q", [1]), sampling_params=params)
    for name, value in fields.items():
        setattr(req, name, value)
    return req


def batch_of(*reqs: Req, mode: ForwardMode = ForwardMode.EXTEND, **fields: Any) -> ScheduleBatch:
    return ScheduleBatch(reqs=list(reqs), forward_mode=mode, extend_num_tokens=100, **fields)


X, Y, Z = (FirstToken(name, 50.0) for name in "xyz")


def test_a_prefill_is_of_the_prompts_in_a_batch_and_not_of_those_that_decode_in_it() -> None:
    decodes = asked("c", Z)
    mixed = batch_of(asked("a", X), asked("b", Y), decodes, mode=ForwardMode.MIXED, decoding_reqs=[decodes])
    assert prefill_of(mixed) == PrefillBatch(("a", "b"), None, 100 - 1, (X, Y))
    assert prefill_of(batch_of(decodes, mode=ForwardMode.DECODE)) is None


def test_a_step_of_decoding_that_runs_beside_the_prefill_of_another_replica_is_none() -> None:
    """With DP attention SGLang makes it one, of a token for each request. It takes as long as the other does."""
    decodes = asked("a", X), asked("b", Y)
    for request in decodes:
        request.output_ids.append(7)
    step = ScheduleBatch(reqs=[*decodes], forward_mode=ForwardMode.DECODE, seq_lens_cpu=torch.tensor([2, 2]))
    step.convert_decode_to_extend()
    assert (step.forward_mode, step.extend_num_tokens) == (ForwardMode.EXTEND, 2)
    assert prefill_of(step) is None


def test_the_answer_of_a_diffusion_model_cannot_be_told_from_a_prefill() -> None:
    """So there ξ has to be pinned (``support``)."""
    answered = asked("a", X)
    answered.output_ids.extend([1] * 32)
    assert prefill_of(batch_of(answered, mode=ForwardMode.DLLM_EXTEND)) == PrefillBatch(("a",), None, 100, (X,))


def test_a_prompt_reports_first_tokens_once_when_it_is_prefilled_to_its_end() -> None:
    """In chunks it is in several batches, and after it was retracted in another one."""
    begun = asked("a", X, inflight_middle_chunks=1)
    assert prefill_of(batch_of(begun, asked("b", Y))) == PrefillBatch(("a", "b"), "a", 100, (Y,))
    begun.inflight_middle_chunks = 0
    assert prefill_of(batch_of(begun)) == PrefillBatch(("a",), None, 100, (X,))
    again, left = asked("a", X, retracted_stain=True), asked("b", Y, finished_reason=FINISH_ABORT())
    assert prefill_of(batch_of(again, left, asked("c", Z))) == PrefillBatch(("a", "b", "c"), None, 100, (Z,))


def test_of_checks_of_health_nobody_waits_for_a_first_token() -> None:
    check = asked(f"{HEALTH_CHECK_RID_PREFIX}_1")
    assert prefill_of(batch_of(check)) is None
    assert prefill_of(batch_of(check, asked("a"))) == PrefillBatch((check.rid, "a"), None, 100)


def test_a_prefill_that_was_launched_while_tokens_were_decoded_began_when_these_were_done() -> None:
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    scheduler = SimpleNamespace(tree_cache=driver.cache, device="cuda")
    launched = time.monotonic()
    decoding = batch_of(asked("c"), mode=ForwardMode.DECODE, launch_ts=launched)
    batch_processed(lambda *_: None, scheduler, decoding)
    assert launched < driver.cache.live_threshold.stopwatch.done <= time.monotonic()


def test_a_prefill_is_timed_by_how_its_device_computes_until_that_cannot_be_done() -> None:
    """In step with the host it is done when it was run, which is seen first; else when its result is processed."""
    driver = Driver(our_cache(4_000, ttft_slo_ms=100))
    live = driver.cache.live_threshold

    def process(number: int, device: str, *, seen: bool = False, launched: bool = True) -> int:
        scheduler = SimpleNamespace(tree_cache=driver.cache, device=device)
        batch = batch_of(asked(f"{number}"), forward_iter=number, launch_ts=time.monotonic() if launched else None)
        if seen:
            batch_launched(None, scheduler, batch)
        assert batch_processed(lambda *_: "processed", scheduler, batch) == "processed"
        return int(live.samples)

    assert process(1, "cpu") == 0, "nobody saw it run"
    assert process(2, "cuda") == 1
    assert process(3, "cpu", seen=True) == 2
    assert process(4, "cuda", launched=False) == 2, "what the device did not compute"
    driver.cache.tail.breaker.is_armed = True
    live.stop_measuring(RuntimeError())
    assert process(5, "cuda") == 2


# ---- two ranks ----


def test_two_ranks_that_measure_different_times_keep_one_threshold_and_evict_the_same(tmp_path: Path) -> None:
    """For real: two processes, two caches, a gloo group. Each of them alone would have gone its own way.

    Also while one of them can measure no more.
    """
    meeting_point = str(tmp_path / "meet")
    both = [Run(tmp_path / str(number), "-m", "tests.helpers.rank", str(number), meeting_point) for number in range(2)]
    said = []
    for status, printed in [one.wait() for one in both]:
        assert status == 0, printed
        said.append(json.loads(printed.strip().splitlines()[-1]))
    first, second = said
    alone = first.pop("alone"), second.pop("alone")
    assert alone == (pytest.approx(1_800, rel=0.05), pytest.approx(800, rel=0.05))  # (100 - β) / α of each
    assert first == second
    assert set(first["thresholds"][: rank.SILENT_UNTIL]) == {2_048}  # the other rank knew nothing yet
    assert first["thresholds"][-1] == pytest.approx(alone[1], rel=0.12)  # the slower one decides
    for evicted in (first["evicted"], first["etlru"]["evicted"]):
        assert evicted["tel_safe"] > 0
        assert evicted["lru"] > 0
    assert len(set(first["etlru"]["in_force"])) == 3, "whatever was learned, and lru"
    thresholds = first["faulty"]["thresholds"]
    assert thresholds[0] > thresholds[rank.FAULTY_AT] == thresholds[-1], "it moved, and stays"
    assert first["faulty"]["evicted"]["tel_safe"] > 0
