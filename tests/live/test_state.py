"""A real server that is stopped and started again begins with what it had learned."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from eval.live.server import Server, cpu_flags
from radix_tlru.learning.state_file import Origin, StateFile, read_state
from radix_tlru.sglang.offline import cache_params
from tests.helpers.caches import Driver, our_cache_with_state
from tests.helpers.models import small_model

pytestmark = pytest.mark.live

POOL, PAGE, CONVERSATIONS, TURNS = 8_192, 16, 30, 4


def served(file: Path, name: str, seed: int) -> str:
    """Ask a server a few conversations, and let it shut down as SIGTERM has it; returns its log."""

    def converse(number: int) -> None:
        rng, history = random.Random(f"{seed} {number}"), list[int]()
        for _ in range(TURNS):
            history += [rng.randrange(256) for _ in range(rng.randrange(20, 120))]
            body = {"input_ids": history, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
            reply = requests.post(f"{server.base_url}/generate", json=body, timeout=60)
            history += reply.json()["output_ids"]

    ours = ("--radix-eviction", "etlru", "--tlru-threshold", "400", "--tlru-state", str(file), "--skip-server-warmup")
    with Server([*cpu_flags(small_model(), POOL, PAGE), *ours], name=name, grace_s=0) as server:
        with ThreadPoolExecutor(8) as clients:
            for _ in clients.map(converse, range(CONVERSATIONS)):
                pass
        os.kill(server.process_group, signal.SIGTERM)  # its first process alone: that one asks the others to end
        deadline = time.monotonic() + 90
        while server.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not server.alive()
        return server.log_path.read_text(errors="replace")


def taught(path: Path) -> int:
    """Turns of a cache in this process, which keeps its state in the file."""
    file = StateFile(path, Origin(str(small_model()), PAGE))
    file.check("2026-11-25 10:00:00+00:00")
    cache = our_cache_with_state(cache_params(POOL, PAGE), file, saves=True)
    driver = Driver(cache)
    for number in range(60):
        history = driver.histories.setdefault(f"{number % 20}", [])
        history += driver.fresh(50)
        driver.request(history, prompt=len(history) - 5, stamp=2.0 * number)
    cache.release_host_resources()
    return read_state(path).state.seen.turns


def test_a_server_begins_with_what_its_file_holds_and_adds_to_it(tmp_path: Path) -> None:
    file = tmp_path / "state.npz"
    turns = taught(file)
    in_force = read_state(file).state.verdict.preferred
    log = served(file, "test-state", 1)
    assert f"begins with what {turns} turns taught" in log
    assert f"radix_tlru: evicting by {in_force} as before" in log
    assert read_state(file).state.seen.turns == turns + CONVERSATIONS * TURNS


@pytest.mark.long
def test_a_server_that_is_started_again_begins_with_what_it_had_learned(tmp_path: Path) -> None:
    file = tmp_path / "state.npz"
    assert "begins with what 0 turns taught" in served(file, "test-state-first", 0)
    first = read_state(file)
    assert first.origin.page_size == PAGE
    turns, conversations, returns = first.state.seen
    assert turns == CONVERSATIONS * TURNS
    assert CONVERSATIONS <= conversations <= CONVERSATIONS + 2
    assert any(first.state.model.base), "hazards"
    log = served(file, "test-state-again", 1)
    assert f"begins with what {turns} turns taught, {returns} of them returns" in log
    assert read_state(file).state.seen.turns == 2 * turns
