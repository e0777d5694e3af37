"""A server with a host tier: what is demoted, cut and loaded back is what was computed, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from eval.live.server import Server
from tests.conftest import ALL_CHECKS, CHUNK, NEXT_PROMPT, POOL, REAL_WEIGHTS, THRESHOLD, flags
from tests.live.test_server import Conversation, answer_to, assert_all_is_given_back

pytestmark = pytest.mark.live

# What SGLang copies with where there is no GPU, and a host tier that holds one and a half of the pool.
TIERS = (
    *("--enable-hierarchical-cache", "--hicache-ratio", "1.5"),
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
)


@pytest.fixture(scope="module")
def tiered_server(weighted_model: Path) -> Iterator[Server]:
    ours = ("--radix-eviction", "tlru", "--tlru-threshold", str(THRESHOLD))
    estimate = ("--tlru-next-prompt-estimate", str(NEXT_PROMPT))
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS, *TIERS, *ours, *estimate]
    with Server(given, name="test-tiers", environment=ALL_CHECKS) as server:
        yield server


def total(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = requests.get(f"{server.base_url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def test_what_comes_back_from_the_host_is_what_was_computed(tiered_server: Server, stock_server: Server) -> None:
    conversations = [Conversation(number) for number in range(6)]
    for length in (900, 150, 150):
        for conversation in conversations:
            conversation.turn(tiered_server, length)
    for name in ("load_back_tokens", "tlru_splits", "tlru_host_dropped_tokens"):
        assert total(tiered_server, f"sglang:{name}_total") > 0, name
    stock_server.flush_cache()
    found = 0
    for conversation in conversations:
        prompt = tuple(conversation.ask(50))
        ours, stock = answer_to(tiered_server, prompt), answer_to(stock_server, prompt)
        assert ours.log_probabilities == pytest.approx(stock.log_probabilities, abs=1e-4)
        found += ours.cached_tokens
    assert found > POOL, "more than the device holds"
    assert_all_is_given_back(tiered_server, POOL)
