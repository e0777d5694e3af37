"""Memory of a leaf, beside stock: by how much a process grows that fills one cache.

Each cache has a process of its own, which runs ``python -m eval.cost.memory ARM LEAVES``.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from itertools import count
from typing import Any

import psutil

from eval.cost.eviction import BASELINE, LEAF_TOKENS, NEXT_PROMPT, PLUGIN, PLUGIN_PYTHON, THRESHOLD
from eval.terminal import show, table, track

ARMS = (BASELINE, PLUGIN, "stock python lru", PLUGIN_PYTHON)
LEAVES = 20_000


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    title = f"Memory of {LEAVES:,} leaves of {LEAF_TOKENS} tokens, KV pool not counted"
    result = table(title, ("cache", "bytes / leaf", f"above {BASELINE}"))
    used = {arm: measured(arm) for arm in track(ARMS, "memory")}
    for arm, size in used.items():
        result.add_row(arm, f"{size:,.0f}", f"{size - used[BASELINE]:+,.0f}")
    show(result)


def measured(arm: str) -> float:
    """Bytes of a leaf of an arm."""
    command = [sys.executable, "-m", "eval.cost.memory", arm, str(LEAVES)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def grown(arm: str, leaves: int) -> float:
    """Bytes by which this process grows for each leaf that a new cache is filled with."""
    cache = built(arm, (leaves + 1_000) * LEAF_TOKENS)
    tokens = count()
    for _ in range(500):  # memory that is allocated only once
        cache.request([next(tokens) for _ in range(LEAF_TOKENS)])
    before = _resident()
    for _ in range(leaves):
        cache.request([next(tokens) for _ in range(LEAF_TOKENS)])
    return (_resident() - before) / leaves


def built(arm: str, capacity: int) -> Any:
    """An empty cache."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import Core, OfflineCache, cache_params, stock_cache

    cores: dict[str, Core] = {BASELINE: "rust", PLUGIN: "rust", "stock python lru": "python", PLUGIN_PYTHON: "python"}
    if arm.startswith("stock"):
        return OfflineCache(stock_cache(capacity, core=cores[arm]))
    config = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    return OfflineCache(build_cache(cache_params(capacity, core=cores[arm]), config))


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    print(grown(sys.argv[1], int(sys.argv[2])))
