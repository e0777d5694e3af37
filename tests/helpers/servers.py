"""The servers that tests ask: their sizes, their flags, and what must be so of each of them whatever it was asked.

An idle server sleeps (`--sleep-on-idle`), so that those that wait do not take the processor from the one under test.
And all but stock ones check SGLang's books: after every step, that each slot of the pool is free, evictable, locked or
in a request, and that no page has two owners. A server that finds otherwise raises, and dies.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import requests

from eval.live.server import Server, cpu_flags

POOL = 4_000
PAGED_POOL, PAGE_SIZE = 4_096, 16
THRESHOLD, NEXT_PROMPT = 600, 100

# The plain priority that is the highest one of a hint, on `our_server`.
PRIORITY = 10

# Prompts up to this length are prefilled, and inserted into the tree, in one piece.
CHUNK, PAGED_CHUNK = 2_048, 256

REAL_WEIGHTS = ("--load-format", "auto")

OURS = (
    *("--radix-eviction", "tlru", "--tlru-threshold", str(THRESHOLD)),
    *("--tlru-next-prompt-estimate", str(NEXT_PROMPT)),
)

# What SGLang copies with where there is no GPU, and a host tier that holds one and a half of the pool.
TIERS = (
    *("--enable-hierarchical-cache", "--hicache-ratio", "1.5"),
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
)

ALL_CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
UNCHECKED = dict.fromkeys(ALL_CHECKS, "0")
"""For stock servers, whose books are not what is tested: a step takes three quarters of the time."""

# In the log: any error, and what SGLang's checks of its pool say when idle and when busy.
COMPLAINTS = ("Traceback", "leak detected!", "Mem Leak Detected!", "KV double free", "KV page use-after-free")


def flags(model: Path, pool: int, page_size: int, chunk: int) -> list[str]:
    return [*cpu_flags(model, pool, page_size), *("--chunked-prefill-size", str(chunk)), "--sleep-on-idle"]


def serve(
    model: Path,
    name: str,
    *given: str,
    pool: int = POOL,
    page_size: int = 1,
    chunk: int = CHUNK,
    **environment: str,
) -> Server:
    """A server of a model with weights, and these flags."""
    shape = [*flags(model, pool, page_size, chunk), *REAL_WEIGHTS, *given]
    process = os.environ.get("PYTEST_XDIST_WORKER", "alone")  # each may have a server of this name
    return Server(shape, name=f"test-{name}-{process}", environment={**ALL_CHECKS, **environment}, grace_s=0)


def complaints(server: Server, start: int = 0) -> list[str]:
    """What the log has, from a byte of it on, of what no log of ours should have."""
    log = server.log_path.read_bytes()[start:].decode(errors="replace")
    return [complaint for complaint in COMPLAINTS if complaint in log]


def evicted(server: Server) -> float:
    """Tokens that ours evicted since the server started."""
    return server.get_metrics()["sglang:tlru_evicted_tokens_total"]


def total(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = server.metrics_text().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def assert_all_is_given_back(server: Server, pool: int) -> None:
    """By the scheduler's own account: no request is left, and every token of the pool is free or evictable.

    The account is of the scheduler's last step, which may be one on the way there: what must come is waited for. Each
    replica has a pool of its own.
    """
    names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        loads = requests.get(f"{server.base_url}/v1/loads", timeout=30).json()["loads"]
        if not any(load[name] for load in loads for name in names):
            break
        time.sleep(0.05)
    assert loads
    for load in loads:
        assert {name: load[name] for name in names} == dict.fromkeys(names, 0)
        assert load["max_total_num_tokens"] == pool


def assert_unharmed(server: Server, pool: int) -> None:
    assert_all_is_given_back(server, pool)
    assert server.alive()
    assert complaints(server) == []
