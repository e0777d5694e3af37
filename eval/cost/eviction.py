"""What one eviction costs, beside stock SGLang, as a function of the number of leaves.

Every arm is a real cache that holds the same leaves. A sample is one eviction of 64 tokens, the length of a leaf, and
then one new leaf in its place, so the number of leaves stays. Arms take turns of some samples each: what disturbs the
machine disturbs all of them, so ratios of one run can be compared. A turn has several samples because stock looks at
every leaf, after which the processor's caches hold nothing of the others. Times are CPU time of the thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.table import Table

from eval.terminal import show, table, track

OUTPUT = Path(".out/bench")
LEAF_TOKENS = 64
BASELINE = "stock rust lru"
PLUGIN, PLUGIN_PYTHON, PLUGIN_TAILS = "radix-tlru", "radix-tlru, python core", "radix-tlru, two tails"

STOCK_PYTHON_LEAVES, PLUGIN_PYTHON_LEAVES, STOCK_TLRU_LEAVES = 10_000, 200_000, 200_000
"""Most leaves of an arm. Stock on the Python core sorts all leaves in Python for each eviction. A million leaves need
too much memory in a Python tree, or in a third tree in Rust."""

THRESHOLD, TAILS_THRESHOLD, NEXT_PROMPT = 80, 48, 16
"""With the first ξ all 64 tokens of a leaf are beyond its budget of 64 + 16 − 80 = 0: an eviction takes one leaf, as
stock does. With the second, 32 are: an eviction takes two tails, which are two splits."""

SAMPLES_A_TURN = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one arm at one number of leaves: the median of its samples."""

    arm: str
    leaves: int
    evict_us: float
    ratio: float  # to the baseline at the same number of leaves, in the same run
    growth: float  # ratio to the same arm at the first number of leaves
    entries_a_leaf: float | None  # with radix-tlru
    samples: int


def run(args: argparse.Namespace) -> None:
    """Measure, print the table and write `.out/bench/evict.jsonl`."""
    leaves: list[int] = args.leaves
    costs: list[Cost] = []
    for number in leaves:
        costs += measure(number, args.samples, {cost.arm: cost.evict_us for cost in costs if cost.leaves == leaves[0]})
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "evict.jsonl").write_text("".join(json.dumps(asdict(cost)) + "\n" for cost in costs))
    show(cost_table(costs, leaves))
    show(f"{costs[0].samples} evictions each, arms in turn. The rows are in {OUTPUT}/evict.jsonl.\n")


def measure(leaves: int, samples: int, first: dict[str, float]) -> list[Cost]:
    """The cost of one eviction in every arm.

    Args:
        leaves: that all arms hold.
        samples: evictions timed in each arm.
        first: µs of each arm at the first number of leaves.
    """
    caches = arms(leaves)
    conversations = count()
    filled = islice(conversations, leaves)
    for number in track(filled, f"{leaves:>9,} leaves", total=leaves):
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
        Cost(name, leaves, us, us / base, us / first.get(name, us), entries_a_leaf(caches[name]), len(spent[name]))
        for name, us in medians.items()
    ]


def leaf_of(conversation: int) -> range:
    """Tokens that no other conversation has."""
    return range(conversation * LEAF_TOKENS, (conversation + 1) * LEAF_TOKENS)


def fill(cache: Any, tokens: Iterable[int]) -> None:
    """Put a leaf into a cache that has room, without serving a request."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    key = RadixKey(array("q", tokens))
    cache.cache.insert(InsertParams(key=key, value=cache.allocate(len(key))))


def arms(leaves: int) -> dict[str, Any]:
    """Empty caches by name, each with room for so many leaves and four more."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    capacity = (leaves + 4) * LEAF_TOKENS
    config = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    stock_tlru = {"threshold": TAILS_THRESHOLD, "next_prompt_estimate": NEXT_PROMPT}
    caches = {BASELINE: stock_cache(capacity, core="rust")}
    if leaves <= STOCK_TLRU_LEAVES:
        caches["stock rust tlru"] = stock_cache(capacity, policy="tlru", policy_config=stock_tlru, core="rust")
    caches[PLUGIN] = build_cache(cache_params(capacity, core="rust"), config)
    caches[PLUGIN_TAILS] = build_cache(
        cache_params(capacity, core="rust"), Config(threshold=TAILS_THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    )
    if leaves <= PLUGIN_PYTHON_LEAVES:
        caches[PLUGIN_PYTHON] = build_cache(cache_params(capacity, core="python"), config)
    if leaves <= STOCK_PYTHON_LEAVES:
        caches["stock python lru"] = stock_cache(capacity)
        caches["stock python tlru"] = stock_cache(capacity, policy="tlru", policy_config=stock_tlru)
    return {name: OfflineCache(cache) for name, cache in caches.items()}


def timed_eviction(cache: Any) -> float:
    """CPU seconds of one eviction of a leaf's worth of tokens."""
    start = time.thread_time()
    cache.evict(LEAF_TOKENS)
    return time.thread_time() - start


def entries_a_leaf(cache: Any) -> float | None:
    """Entries in the buckets of the eviction order, old ones too, for each leaf in it; None for stock."""
    tail = getattr(cache.cache, "tail", None)
    return None if tail is None else tail.order.entries / max(len(tail.order), 1)


def cost_table(costs: list[Cost], leaves: list[int]) -> Table:
    """A row for each arm, a column for each number of leaves."""
    title = f"One eviction of {LEAF_TOKENS} tokens: median µs (× {BASELINE}; × itself at {leaves[0]:,} leaves)"
    result = table(title, ("evictable leaves", *(f"{number:,}" for number in leaves)))
    for arm in dict.fromkeys(cost.arm for cost in costs):
        cells = {cost.leaves: cost for cost in costs if cost.arm == arm}
        result.add_row(
            arm, *(_cell(cells[number]) if number in cells else "–" for number in leaves), end_section=arm == BASELINE
        )
    plugin = [cost for cost in costs if cost.arm == PLUGIN]
    result.add_section()
    result.add_row("entries / leaf, radix-tlru", *(f"{cost.entries_a_leaf:.2f}" for cost in plugin))
    return result


def _cell(cost: Cost) -> str:
    return f"{cost.evict_us:,.0f} (× {cost.ratio:.2f}; × {cost.growth:.2f})"
