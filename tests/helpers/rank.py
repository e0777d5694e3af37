"""One rank of two: a real cache that serves what the other serves, and measures other times than the other does.

Run as ``python -m tests.helpers.rank RANK FILE`` in a process of its own; FILE is where the ranks meet. Prints JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru import Config
from radix_tlru.objective.calibration import EVERY, PrefillBatch
from radix_tlru.objective.prefill_latency import Line, PrefillTimes, Sample
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import cache_params
from radix_tlru.sglang.scheduler.batches import batch_launched, batch_processed
from tests.helpers.caches import Driver, our_cache
from tests.helpers.rules import InTurn

SLO_MS, POOL, PAGE, REQUESTS = 100.0, 8_192, 16, 12 * EVERY

# Rank 1 is slower, and for a while has nothing to say: (100 - 20) / 0.1 = 800 tokens decide.
LINES = (Line(alpha=0.05, beta=10.0), Line(alpha=0.1, beta=20.0))
SILENT_UNTIL = 3 * EVERY

FAULTY_AT = 3 * EVERY + 5


def one_of_two() -> Driver:
    """A cache that agrees on ξ with that of the other rank."""
    params = cache_params(POOL, PAGE)
    params.tp_cache_group = dist.group.WORLD
    return Driver(build_cache(params, Config(ttft_slo_ms=SLO_MS, next_prompt_estimate=20)))


def evict_by_what_is_learned() -> dict[str, Any]:
    """Rates of return are learned alike, though this process hashes strings as no other does."""
    driver = Driver(our_cache(POOL, PAGE, policy="etlru", threshold=600, next_prompt_estimate=20))
    learner = driver.cache.tail.learner
    learner.rule = InTurn(list(learner.candidates), 40)
    requests, cached, in_force = random.Random(2), [], []
    for number in range(REQUESTS):
        in_force.append(learner.in_force)
        history = driver.histories.setdefault(f"{requests.randrange(30)}", [])
        if len(history) > 2_000:
            history.clear()
        history += driver.fresh(requests.randrange(10, 600))
        cached.append(driver.request(history, prompt=len(history) - 5, stamp=float(number)))
    return {
        "in_force": in_force,
        "cached": cached,
        "resident": [driver.cached(name) for name in sorted(driver.histories)],
        "evicted": dict(sorted(driver.cache.tail.counts.items())),
    }


def evict_while_one_measures_no_more(rank: int) -> dict[str, Any]:
    """From a batch on the times of prefills cannot be taken on rank 1. Rank 0 still waits for it where they agree."""
    driver = one_of_two()
    driver.cache.tail.breaker.is_armed = True
    scheduler = SimpleNamespace(tree_cache=driver.cache, device="cpu")
    requests, thresholds, cached = random.Random(3), [], []
    for number in range(FAULTY_AT + 4 * EVERY):
        history = driver.histories.setdefault(f"{requests.randrange(30)}", [])
        if len(history) > 2_000:
            history.clear()
        history += driver.fresh(requests.randrange(10, 900))
        cached.append(driver.request(history))
        uncached = len(history) - cached[-1]
        ids, asked = array("q", history), SamplingParams()
        req = Req(rid=f"{number}", origin_input_text="", origin_input_ids=ids, sampling_params=asked)
        launched = time.monotonic() - LINES[rank].ms(uncached) / 1_000
        batch = SimpleNamespace(launch_ts=launched, forward_iter=number, forward_mode=ForwardMode.EXTEND)
        batch.reqs, batch.decoding_reqs, batch.extend_num_tokens = [req], None, uncached
        if rank == 1 and number >= FAULTY_AT:
            batch.launch_ts = "no time"
        batch_launched(None, scheduler, batch)
        batch_processed(lambda *_: None, scheduler, batch)
        thresholds.append(driver.cache.tail.policy.threshold)
    return {"thresholds": thresholds, "cached": cached, "evicted": dict(sorted(driver.cache.tail.counts.items()))}


def main(rank: int, meeting_point: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    driver = one_of_two()
    live = driver.cache.live_threshold
    requests, clock, alone = random.Random(1), random.Random(100 + rank), PrefillTimes()
    thresholds, cached = [], []
    for number in range(REQUESTS):
        name, tokens = f"{requests.randrange(30)}", requests.randrange(10, 900)
        if len(driver.histories.get(name, ())) > 2_000:
            driver.histories[name].clear()
        found = driver.turn(name, tokens)
        uncached = len(driver.histories[name]) - found
        ms = LINES[rank].ms(uncached) * clock.uniform(0.97, 1.03) * (4.0 if clock.random() < 0.2 else 1.0)
        known = rank == 0 or number >= SILENT_UNTIL
        live.count_batch(PrefillBatch((f"{number}",), None, uncached), ms if known else None)
        if known:
            alone.add(Sample(uncached, ms))
        cached.append(found)
        thresholds.append(driver.cache.tail.policy.threshold)
    own = alone.near(SLO_MS)
    assert own is not None
    print(
        json.dumps(
            {
                "thresholds": thresholds,
                "cached": cached,
                "resident": [driver.cached(name) for name in sorted(driver.histories)],
                "evicted": dict(sorted(driver.cache.tail.counts.items())),
                "line": live.estimate.line,
                "alone": own.line.tokens(SLO_MS / own.late),
                "etlru": evict_by_what_is_learned(),
                "faulty": evict_while_one_measures_no_more(rank),
            }
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
