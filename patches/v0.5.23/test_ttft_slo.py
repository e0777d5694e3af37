"""Two ranks of a server from the patched tree, given a TTFT objective, learn one threshold and evict by it alike."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from eval.live.server import Server, cpu_flags, ensure_demo_model
from eval.simulate.timing import Point, fit
from tests.helpers.ranks import CLIENTS, replay
from tests.helpers.servers import POOL
from tests.live.test_server import pytestmark
from tests.live.test_slo import prompts_of, send

STARTUP_S = 1_800.0
SLO_MS, CHUNK, INTERVAL = 300.0, 1_024, 32
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}
LEARNED = re.compile(r"TP(\d)\] T-LRU threshold is (\d+) tokens as of prefill batch (\d+)")

pytestmark = [pytestmark, pytest.mark.timeout(3_600)]


@pytest.fixture
def server() -> Iterator[Server]:
    """Without overlap scheduling: on a CPU, where a batch is done when it is launched, it adds the batch after to
    SGLang's count of a prefill's time."""
    tlru = ("--radix-eviction", "tlru", "--tlru-ttft-slo-ms", f"{SLO_MS:g}", "--tlru-next-prompt-estimate", "20")
    by_page = ("--radix-eviction-policy-config", '{"granularity": "page"}')
    schedule = ("--tp", "2", "--chunked-prefill-size", str(CHUNK), "--disable-overlap-schedule")
    given = [*cpu_flags(ensure_demo_model(), POOL), *schedule, *tlru, *by_page]
    with Server(given, name="test-patched-slo", environment=RANKS, startup_s=STARTUP_S) as server:
        yield server


def thresholds(server: Server) -> set[float]:
    """In force, of each rank that reports one."""
    families = text_string_to_metric_families(requests.get(f"{server.base_url}/metrics", timeout=30).text)
    found = [
        sample.value
        for family in families
        if family.name == "sglang:tlru_threshold_tokens"
        for sample in family.samples
    ]
    assert found
    return set(found)


def learned(server: Server) -> list[list[tuple[int, int]]]:
    """What each rank logged: the threshold, and after how many prefill batches."""
    said = LEARNED.findall(server.log_path.read_text(errors="replace"))
    return [[(int(tokens), int(batch)) for of, tokens, batch in said if of == rank] for rank in "01"]


def test_two_ranks_learn_one_threshold_and_evict_by_it_alike(server: Server) -> None:
    assert thresholds(server) == {0.0}
    rng = random.Random(1)
    lengths = [int(32 * 64 ** rng.random()) for _ in range(3 * INTERVAL)]  # up to two chunks
    answered = send(server, prompts_of(lengths, seed=2))
    client = fit([Point(result.uncached_tokens, result.ttft_ms or 0.0) for result in answered], "by the client")
    (threshold,) = thresholds(server)
    # The client also waits for HTTP and the tokenizer, which are in its β alone: the truth is between that and none.
    assert 0.6 * (SLO_MS - client.beta) / client.alpha < threshold < 1.5 * SLO_MS / client.alpha

    results = asyncio.run(replay(server, 160))
    assert [result.error for result in results] == [None] * (160 // CLIENTS * CLIENTS)
    assert server.get_metrics()["sglang:evicted_tokens_total"] > POOL
    first, second = learned(server)
    assert first == second
    assert all(tokens > 0 and batch % INTERVAL == 0 for tokens, batch in first)
    assert thresholds(server) == {float(first[-1][0])}
    assert server.alive()
    log = server.log_path.read_text(errors="replace")
    assert "Rank consensus checker is enabled" in log
    assert "Found rank divergence" not in log
    assert "Traceback" not in log
