"""A real server that learns its threshold from the times of its prefills.

Prefills and first tokens are made to take longer than a machine's load can change: each token of a prompt is slept for,
and so is each answer on its way out. What is asserted of times is that none is shorter than what was slept.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from eval.live.replay.client import Request, RequestResult, session
from eval.live.replay.client import send as send_one
from eval.live.server import Server
from radix_tlru.config import START_THRESHOLD
from radix_tlru.objective.calibration import EVERY, time_for_prefill
from radix_tlru.objective.prefill_latency import Line
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.plugins import slow, write_plugin
from tests.helpers.servers import complaints, serve

pytestmark = pytest.mark.live

SLO_MS, NEXT_PROMPT = 100.0, 20
POOL, CHUNK = 8_192, 1_024
PER_TOKEN_MS, PER_ANSWER_MS = 0.1, 20.0


@pytest.fixture
def slow_server(weighted_model: Path, tmp_path: Path) -> Iterator[Server]:
    """With overlap scheduling, as by default."""
    ours = (
        "--radix-eviction",
        "tlru",
        "--tlru-ttft-slo",
        f"{SLO_MS:g}",
        "--tlru-next-prompt-estimate",
        f"{NEXT_PROMPT}",
    )
    path = write_plugin(tmp_path, slow(PER_TOKEN_MS, PER_ANSWER_MS))
    with serve(weighted_model, "slo", *ours, pool=POOL, chunk=CHUNK, PYTHONPATH=path) as server:
        yield server


def send(server: Server, prompts: list[tuple[int, ...]], at_once: int = 1) -> list[RequestResult]:
    """So many prompts at a time, each for one token; in the order in which they were answered."""
    answered: list[RequestResult] = []

    async def all_of_them() -> None:
        turns = asyncio.Semaphore(at_once)
        async with session() as connection:

            async def one(number: int, prompt: tuple[int, ...]) -> None:
                async with turns:
                    answered.append(await send_one(connection, server.base_url, Request(number, 0, prompt, 1)))

            await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))

    asyncio.run(all_of_them())
    assert [result.error for result in answered] == [None] * len(prompts)
    return answered


def prompts_of(lengths: list[int], seed: int) -> list[tuple[int, ...]]:
    """Random, so that nothing of one is cached for another."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCABULARY) for _ in range(length)) for length in lengths]


def test_the_threshold_becomes_what_prefills_and_first_tokens_leave_of_the_objective(slow_server: Server) -> None:
    assert slow_server.get_metrics()["sglang:tlru_threshold_tokens"] == START_THRESHOLD
    rng = random.Random(1)
    # Twice as many as make a line, so that the first, which pay for allocations, are few. Up to three chunks.
    lengths = [int(32 * 64 ** rng.random()) for _ in range(2 * EVERY)]
    send(slow_server, prompts_of(lengths, seed=2))
    metrics = slow_server.get_metrics()
    line = Line(metrics["sglang:tlru_alpha_ms_per_token"], metrics["sglang:tlru_beta_ms"])
    overhead, late = metrics["sglang:tlru_overhead_ms"], metrics["sglang:tlru_prefill_late_ratio"]
    assert overhead >= PER_ANSWER_MS
    assert late >= 1.0
    threshold = metrics["sglang:tlru_threshold_tokens"]
    # No prefill took less than was slept for its tokens; between sizes the time is interpolated.
    slept = (SLO_MS - PER_ANSWER_MS) / PER_TOKEN_MS
    assert NEXT_PROMPT < threshold < 1.1 * slept < START_THRESHOLD
    # A machine that is so busy that no prefill meets the objective has the least that there is.
    in_metrics = max(line.tokens(time_for_prefill(SLO_MS, overhead) / late), NEXT_PROMPT + 1)
    assert threshold == pytest.approx(in_metrics, rel=0.11)  # it moves for more than a tenth
    assert metrics["sglang:tlru_threshold_samples"] == pytest.approx(len(lengths), abs=8)  # and SGLang's warm-up

    # In a crowd nearly all of TTFT is waiting for others, and none of that is in the line or the overhead.
    crowd = send(slow_server, prompts_of(lengths, seed=3), at_once=16)
    metrics = slow_server.get_metrics()
    line = Line(metrics["sglang:tlru_alpha_ms_per_token"], metrics["sglang:tlru_beta_ms"])
    waited = median(result.ttft_ms or 0.0 for result in crowd)
    assert line.ms(median(lengths)) + metrics["sglang:tlru_overhead_ms"] < waited
    log = slow_server.log_path.read_text(errors="replace")
    assert f"radix_tlru: evicting by tlru (ttft_slo={SLO_MS:g} ms, next_prompt_estimate={NEXT_PROMPT} tokens" in log
    assert complaints(slow_server) == []
