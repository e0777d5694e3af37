"""What one eviction costs beside stock SGLang, by the number of evictable leaves.

Every arm is a real cache that holds the same leaves. A sample is one eviction of 64 tokens, as long as a leaf, and
then one new leaf in its place, so that the number of leaves stays. Arms take turns sample by sample: what disturbs the
machine disturbs all of them, and the ratios of one run can be compared where the microseconds of two cannot.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

OUTPUT = Path(".out/bench")
LEAF_TOKENS = 64
BASELINE = "stock rust lru"

# A leaf is a conversation of 64 tokens, half of it beyond its budget of 64 + 16 - 48 = 32: both classes of the order
# are in use, and an eviction may have to take two tails where stock takes a node.
THRESHOLD, NEXT_PROMPT = 48, 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Median of the samples of one arm at one number of leaves."""

    arm: str
    leaves: int
    evict_us: float
    ratio: float  # to the baseline at the same number of leaves, in the same run
    samples: int


def run(leaves: list[int], samples: int, console: Console) -> None:
    """Measure, print the table and write `.out/bench/evict.jsonl`."""
    costs = [cost for number in leaves for cost in measure(number, samples)]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "evict.jsonl").write_text("".join(json.dumps(asdict(cost)) + "\n" for cost in costs))
    console.print(table(costs, leaves))
    console.print(f"{samples} evictions each, arms in turn. The rows are in {OUTPUT}/evict.jsonl.\n")


def measure(leaves: int, samples: int) -> list[Cost]:
    """The cost of one eviction in every arm, all holding ``leaves`` leaves."""
    caches = arms(capacity=(leaves + 4) * LEAF_TOKENS)
    tokens = count()
    for _ in track(range(leaves), description=f"{leaves:>9,} leaves", console=Console(stderr=True), transient=True):
        leaf = [next(tokens) for _ in range(LEAF_TOKENS)]
        for cache in caches.values():
            cache.request(leaf)
    spent: dict[str, list[float]] = {name: [] for name in caches}
    for _ in range(samples):
        leaf = [next(tokens) for _ in range(LEAF_TOKENS)]
        for name, cache in caches.items():
            spent[name].append(timed_eviction(cache))
            cache.request(leaf)
    medians = {name: statistics.median(times) * 1e6 for name, times in spent.items()}
    return [Cost(name, leaves, us, us / medians[BASELINE], samples) for name, us in medians.items()]


def arms(capacity: int) -> dict[str, Any]:
    """Empty caches by name, each on a pool of ``capacity`` tokens."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    ours = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    stock_tlru = {"threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT}
    caches = {
        BASELINE: stock_cache(capacity, core="rust"),
        "stock rust tlru": stock_cache(capacity, policy="tlru", policy_config=stock_tlru, core="rust"),
        "stock python lru": stock_cache(capacity),
        "stock python tlru": stock_cache(capacity, policy="tlru", policy_config=stock_tlru),
        "radix-tlru": build_cache(cache_params(capacity), ours),
    }
    return {name: OfflineCache(cache) for name, cache in caches.items()}


def timed_eviction(cache: Any) -> float:
    """Seconds of one eviction of a leaf's worth of tokens."""
    start = time.perf_counter()
    cache.evict(LEAF_TOKENS)
    return time.perf_counter() - start


def table(costs: list[Cost], leaves: list[int]) -> Table:
    """Arms down, leaves across; microseconds, and the ratio to stock's default in the same column."""
    result = Table(title=f"One eviction of {LEAF_TOKENS} tokens: median µs (× {BASELINE})", title_justify="left")
    result.add_column("evictable leaves")
    for number in leaves:
        result.add_column(f"{number:,}", justify="right")
    for arm in dict.fromkeys(cost.arm for cost in costs):
        cells = [f"{cost.evict_us:,.0f} (× {cost.ratio:.2f})" for cost in costs if cost.arm == arm]
        result.add_row(arm, *cells)
    return result
