"""What a decoded token costs while the pool is full, beside stock SGLang, by trim chunk."""

from __future__ import annotations

import argparse
import time
from typing import Any

from eval.cost.eviction import BASELINE
from eval.terminal import show, table, track

CHUNKS = (1, 16, 64, 256, None)  # None: the default, a share of the pool
DECODED, BATCH, CONVERSATIONS, HISTORY = 4_000, 8, 64, 4_000


def run(args: argparse.Namespace) -> None:
    """Print the table. At each step every request of the batch needs a page of one token."""
    title = (
        f"{DECODED:,} decoded tokens in batches of {BATCH}, page size 1, into a pool full of {CONVERSATIONS} "
        f"conversations of {HISTORY:,} tokens"
    )
    columns = ("cache", "evictions / 1,000 tokens", "splits / 1,000 tokens", "CPU µs / token", f"× {BASELINE}")
    result = table(title, columns)
    caches = decoding_caches()
    spent, evictions = dict.fromkeys(caches, 0.0), dict.fromkeys(caches, 0)
    for _ in track(range(DECODED // BATCH), "decode"):
        for name, cache in caches.items():
            evictions[name] += cache.allocator.available_size() < BATCH
            start = time.thread_time()
            cache.allocate(BATCH)  # and not freed: the running requests hold what they decode
            spent[name] += time.thread_time() - start
    for name, cache in caches.items():
        tail = getattr(cache.cache, "tail", None)
        splits = f"{1000 * tail.counts['splits'] / DECODED:.1f}" if tail else "–"
        micro = spent[name] / DECODED * 1e6
        ratio = f"{spent[name] / spent[BASELINE]:.2f}"
        result.add_row(name, f"{1000 * evictions[name] / DECODED:.1f}", splits, f"{micro:.2f}", ratio)
    show(result)


def decoding_caches() -> dict[str, Any]:
    """Full caches by name: stock, and radix-tlru with each trim chunk."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    capacity = CONVERSATIONS * HISTORY
    caches = {BASELINE: stock_cache(capacity, core="rust")}
    for chunk in CHUNKS:
        config = Config(trim_chunk=chunk).for_pool(capacity)
        name = f"radix-tlru, trim chunk {config.trim_chunk}" + (", the default" if chunk is None else "")
        caches[name] = build_cache(cache_params(capacity), config)
    filled = {name: OfflineCache(cache) for name, cache in caches.items()}
    for cache in filled.values():
        for conversation in range(CONVERSATIONS):
            cache.request(range(conversation * HISTORY, (conversation + 1) * HISTORY))
    return filled
