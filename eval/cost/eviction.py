"""What one eviction costs, beside stock SGLang, as a function of the number of leaves.

Every arm is a real cache that holds the same leaves. A sample is one eviction of 64 tokens, as long as a leaf, and
then one new leaf in its place, so that the number of leaves stays. Arms take turns, some samples at a time: what
disturbs the machine disturbs all of them, and the ratios of one run can be compared where the microseconds of two
cannot. More than one, as after an eviction of stock, which looks at every leaf, nothing of the others is left in the
processor's caches. Times are CPU time of the thread.
"""

from __future__ import annotations

import json
import statistics
import time
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

OUTPUT = Path(".out/bench")
LEAF_TOKENS = 64
BASELINE = "stock rust lru"
OURS, OURS_PYTHON, OURS_TAILS = "radix-tlru", "radix-tlru, python core", "radix-tlru, two tails"

# Stock on the Python core sorts all leaves in Python for each eviction: with many of them nobody would wait for it. Nor
# for the memory of a Python tree with a million; nor, with so many, for a third tree in Rust.
STOCK_PYTHON_LEAVES, OURS_PYTHON_LEAVES, STOCK_TLRU_LEAVES = 10_000, 200_000, 200_000

# A leaf is a conversation of 64 tokens. With this ξ all of it is beyond its budget of 64 + 16 - 80 = 0, and an eviction
# takes a leaf, as one of stock does. With half of it beyond, it takes two tails of 32 tokens, which are two cuts.
THRESHOLD, TAILS_THRESHOLD, NEXT_PROMPT = 80, 48, 16

SAMPLES_A_TURN = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """Median of the samples of one arm at one number of leaves."""

    arm: str
    leaves: int
    evict_us: float
    ratio: float  # to the baseline at the same number of leaves, in the same run
    growth: float  # to the same arm at the first number of leaves
    heap_entries: float | None  # a leaf, of ours
    samples: int


def run(leaves: list[int], samples: int, console: Console) -> None:
    """Measure, print the table and write `.out/bench/evict.jsonl`."""
    costs: list[Cost] = []
    for number in leaves:
        costs += measure(number, samples, {cost.arm: cost.evict_us for cost in costs if cost.leaves == leaves[0]})
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "evict.jsonl").write_text("".join(json.dumps(asdict(cost)) + "\n" for cost in costs))
    console.print(table(costs, leaves))
    console.print(f"{costs[0].samples} evictions each, arms in turn. The rows are in {OUTPUT}/evict.jsonl.\n")


def measure(leaves: int, samples: int, first: dict[str, float]) -> list[Cost]:
    """The cost of one eviction in every arm, all holding ``leaves`` leaves; ``first``: what it was with the fewest."""
    caches = arms(leaves)
    conversations = count()
    filled = islice(conversations, leaves)
    stderr = Console(stderr=True)
    for number in track(filled, f"{leaves:>9,} leaves", total=leaves, console=stderr, transient=True):
        for cache in caches.values():
            fill(cache, leaf_of(number))
    spent: dict[str, list[float]] = {name: [] for name in caches}
    names = list(caches)
    for turn in range(-(-samples // SAMPLES_A_TURN)):
        new = [leaf_of(next(conversations)) for _ in range(SAMPLES_A_TURN)]
        first_arm = turn % len(names)
        for name in names[first_arm:] + names[:first_arm]:
            cache = caches[name]
            for leaf in new:
                spent[name].append(timed_eviction(cache))
                cache.request(leaf)
    medians = {name: statistics.median(times) * 1e6 for name, times in spent.items()}
    base = medians[BASELINE]
    return [
        Cost(name, leaves, us, us / base, us / first.get(name, us), heap_entries(caches[name]), len(spent[name]))
        for name, us in medians.items()
    ]


def leaf_of(conversation: int) -> range:
    """Tokens that no other conversation has."""
    return range(conversation * LEAF_TOKENS, (conversation + 1) * LEAF_TOKENS)


def fill(cache: Any, tokens: Iterable[int]) -> None:
    """Put a leaf into a cache that has room, as quickly as can be."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    key = RadixKey(array("q", tokens))
    cache.cache.insert(InsertParams(key=key, value=cache.allocate(len(key))))


def arms(leaves: int) -> dict[str, Any]:
    """Empty caches by name, each with room for so many leaves and some more."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline.caches import OfflineCache, cache_params, stock_cache

    capacity = (leaves + 4) * LEAF_TOKENS
    ours = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    stock_tlru = {"threshold": TAILS_THRESHOLD, "next_prompt_estimate": NEXT_PROMPT}
    caches = {BASELINE: stock_cache(capacity, core="rust")}
    if leaves <= STOCK_TLRU_LEAVES:
        caches["stock rust tlru"] = stock_cache(capacity, policy="tlru", policy_config=stock_tlru, core="rust")
    caches[OURS] = build_cache(cache_params(capacity, core="rust"), ours)
    caches[OURS_TAILS] = build_cache(
        cache_params(capacity, core="rust"), Config(threshold=TAILS_THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    )
    if leaves <= OURS_PYTHON_LEAVES:
        caches[OURS_PYTHON] = build_cache(cache_params(capacity, core="python"), ours)
    if leaves <= STOCK_PYTHON_LEAVES:
        caches["stock python lru"] = stock_cache(capacity)
        caches["stock python tlru"] = stock_cache(capacity, policy="tlru", policy_config=stock_tlru)
    return {name: OfflineCache(cache) for name, cache in caches.items()}


def timed_eviction(cache: Any) -> float:
    """CPU seconds of one eviction of a leaf's worth of tokens."""
    start = time.thread_time()
    cache.evict(LEAF_TOKENS)
    return time.thread_time() - start


def heap_entries(cache: Any) -> float | None:
    """Entries in the heaps of our order for each leaf in it."""
    tail = getattr(cache.cache, "tail", None)
    return None if tail is None else tail.order.entries / max(len(tail.order), 1)


def table(costs: list[Cost], leaves: list[int]) -> Table:
    """Arms down, leaves across; microseconds, and the ratio to stock's default in the same column."""
    title = f"One eviction of {LEAF_TOKENS} tokens: median µs (× {BASELINE}; × itself at {leaves[0]:,} leaves)"
    result = Table(title=title, title_justify="left")
    result.add_column("evictable leaves")
    for number in leaves:
        result.add_column(f"{number:,}", justify="right")
    for arm in dict.fromkeys(cost.arm for cost in costs):
        cells = {cost.leaves: cost for cost in costs if cost.arm == arm}
        result.add_row(
            arm, *(_cell(cells[number]) if number in cells else "–" for number in leaves), end_section=arm == BASELINE
        )
    ours = [cost for cost in costs if cost.arm == OURS]
    result.add_section()
    result.add_row("heap entries of ours / leaf", *(f"{cost.heap_entries:.2f}" for cost in ours))
    return result


def _cell(cost: Cost) -> str:
    return f"{cost.evict_us:,.0f} (× {cost.ratio:.2f}; × {cost.growth:.2f})"
