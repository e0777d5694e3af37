"""Real servers that learn their threshold, from the times of their prefills."""

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
from eval.simulate.timing import Point, Timing, fit
from radix_tlru.config import START_THRESHOLD
from radix_tlru.objective.calibration import EVERY, time_for_prefill
from radix_tlru.objective.prefill_latency import Line
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.servers import ALL_CHECKS, REAL_WEIGHTS, flags

pytestmark = pytest.mark.live

SLO_MS, NEXT_PROMPT = 60.0, 20
POOL, CHUNK = 8_192, 1_024


def serve(model: Path, name: str, *ours: str) -> Server:
    given = [*flags(model, POOL, 1, CHUNK), *REAL_WEIGHTS, "--radix-eviction", "tlru", *ours]
    return Server([*given, "--tlru-next-prompt-estimate", str(NEXT_PROMPT)], name=name, environment=ALL_CHECKS)


@pytest.fixture
def slo_server(weighted_model: Path) -> Iterator[Server]:
    """With overlap scheduling, as by default."""
    with serve(weighted_model, "test-slo", "--tlru-ttft-slo", f"{SLO_MS:g}") as server:
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


def client_line(answered: list[RequestResult], ms: float) -> Timing:
    """TTFT by uncached tokens near ``ms``, by the clock of the client and by plain least squares, not the server's."""
    points = [Point(result.uncached_tokens, result.ttft_ms or 0.0) for result in answered]
    middle = fit(points, "by the client").tokens(ms)
    return fit([point for point in points if middle / 2 <= point.uncached <= 2 * middle], "by the client, near the SLO")


def prompts_of(lengths: list[int], seed: int) -> list[tuple[int, ...]]:
    """Random, so that nothing of one is cached for another."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCABULARY) for _ in range(length)) for length in lengths]


@pytest.mark.alone
def test_the_threshold_becomes_what_a_client_measures(slo_server: Server) -> None:
    assert slo_server.get_metrics()["sglang:tlru_threshold_tokens"] == START_THRESHOLD
    rng = random.Random(1)
    # Twice as many as make a line, so that the first, which pay for allocations, are few. Up to three chunks.
    lengths = [int(32 * 64 ** rng.random()) for _ in range(3 * EVERY)]
    answered = send(slo_server, prompts_of(lengths, seed=2))
    metrics = slo_server.get_metrics()
    client = client_line(answered, SLO_MS)

    line = Line(metrics["sglang:tlru_alpha_ms_per_token"], metrics["sglang:tlru_beta_ms"])
    overhead, late = metrics["sglang:tlru_overhead_ms"], metrics["sglang:tlru_prefill_late_ratio"]
    assert line.alpha == pytest.approx(client.alpha, rel=0.3)
    assert overhead > 0.0
    assert 1.0 < late <= 2.0
    # What the server knows of a first token is what a client waits for, but for the way between them.
    assert line.ms(client.tokens(SLO_MS)) + overhead == pytest.approx(SLO_MS, rel=0.25)
    assert line.beta + overhead < client.beta + 0.2 * SLO_MS
    threshold = metrics["sglang:tlru_threshold_tokens"]
    # With a margin for what is late; what is left is still a client's time, HTTP and all.
    left_ms = SLO_MS / late
    lowest, highest = 0.7 * (left_ms - client.beta) / client.alpha, 1.3 * left_ms / client.alpha
    assert lowest < threshold < highest
    assert highest < START_THRESHOLD, "the start value would have passed: this machine is too fast for the objective"
    in_metrics = line.tokens(time_for_prefill(SLO_MS, overhead, late))
    assert threshold == pytest.approx(in_metrics, rel=0.11)  # it moves for more than a tenth
    assert metrics["sglang:tlru_threshold_samples"] == pytest.approx(len(lengths), abs=8)  # and SGLang's warm-up

    # In a crowd nearly all of TTFT is waiting for others, and none of that is in the line or besides.
    crowd = send(slo_server, prompts_of(lengths, seed=3), at_once=16)
    metrics = slo_server.get_metrics()
    line = Line(metrics["sglang:tlru_alpha_ms_per_token"], metrics["sglang:tlru_beta_ms"])
    besides = metrics["sglang:tlru_overhead_ms"]
    assert line.ms(median(lengths)) + besides < median(result.ttft_ms or 0.0 for result in crowd) / 3
    assert besides == pytest.approx(overhead, rel=0.3)
    log = slo_server.log_path.read_text(errors="replace")
    assert f"radix_tlru: evicting by tlru (ttft_slo={SLO_MS:g} ms, next_prompt_estimate={NEXT_PROMPT} tokens" in log
    assert "Traceback" not in log
