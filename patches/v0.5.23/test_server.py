"""Servers from the patched tree, without our plugin: they evict as ours does, and nothing is lost in a crowd.

The tests are those of ``tests/live/test_server.py``. These servers are given more time: a fresh tree is compiled first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval.live.server import Server, ensure_demo_model
from tests.conftest import weighted_model  # noqa: F401
from tests.helpers.servers import (
    ALL_CHECKS,
    CHUNK,
    NEXT_PROMPT,
    PAGE_SIZE,
    PAGED_CHUNK,
    PAGED_POOL,
    POOL,
    REAL_WEIGHTS,
    THRESHOLD,
    assert_all_is_given_back,
    complaints,
    flags,
)
from tests.live.test_server import (
    CLIENTS,
    TURNS,
    crowd,
    pytestmark,
    test_a_flush_empties_it,  # noqa: F401
    test_a_trim_is_whole_pages,  # noqa: F401
    test_a_trimmed_conversation_finds_what_was_not_taken,  # noqa: F401
    test_an_answer_on_a_trimmed_history_is_what_stock_answers,  # noqa: F401
    test_stock_lru_finds_nothing,  # noqa: F401
)

STARTUP_S = 900.0
TLRU = {
    "radix-eviction": "tlru",
    "tlru-threshold": THRESHOLD,
    "tlru-next-prompt-estimate": NEXT_PROMPT,
    "radix-eviction-policy-config": json.dumps({"granularity": "page", "trim_chunk": 1}),  # as ours in pools so small
}

pytestmark = [pytestmark, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def our_server(weighted_model: Path) -> Iterator[Server]:  # noqa: F811
    """By command-line flags: page size 1."""
    given = [word for name, value in TLRU.items() for word in (f"--{name}", str(value))]
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS, *given]
    with Server(given, name="test-patched", environment=ALL_CHECKS, startup_s=STARTUP_S) as server:
        yield server


@pytest.fixture(scope="module")
def stock_server(weighted_model: Path) -> Iterator[Server]:  # noqa: F811
    """The patched tree with none of the flags: `our_server` in all but the eviction."""
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS]
    with Server(given, name="test-patched-stock", environment=ALL_CHECKS, startup_s=STARTUP_S) as server:
        yield server


@pytest.fixture
def paged_server(tmp_path: Path) -> Iterator[Server]:
    """By a file of settings: page size 16, and prompts in chunks of 256 tokens."""
    settings = tmp_path / "server.yaml"
    settings.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in TLRU.items()))
    given = [*flags(ensure_demo_model(), PAGED_POOL, PAGE_SIZE, PAGED_CHUNK), *("--config", str(settings))]
    with Server(given, name="test-patched-paged", environment=ALL_CHECKS, startup_s=STARTUP_S) as server:
        yield server


def test_a_crowd_is_served_and_nothing_is_lost(our_server: Server) -> None:
    our_server.flush_cache()
    before = our_server.get_metrics()
    results = asyncio.run(crowd(our_server, CLIENTS))
    served = [result for result in results if result is not None]
    assert [result.error for result in served] == [None] * (CLIENTS * (TURNS - 1))
    assert_all_is_given_back(our_server, POOL)
    after = our_server.get_metrics()
    evicted = "sglang:evicted_tokens_total"
    assert after[evicted] > before.get(evicted, 0)
    assert any(result.cached_tokens for result in served)
    assert not [name for name in after if "tlru" in name]  # those are of our plugin
    assert complaints(our_server) == []
