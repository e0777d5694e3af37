"""Shapes of caches, audited random steps on each of them, and requests by the million through one cache."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import psutil

from eval.caches.real import RealCache
from eval.soak.audit import AuditedCache
from eval.soak.hybrids import audited as audited_cache
from eval.soak.shape import Shape
from eval.traces import GENERATORS
from radix_tlru.sglang.offline import Core

SHAPES = (
    Shape("rust", 1),
    Shape("rust", 16),
    Shape("python", 1),
    Shape("python", 16),
    Shape("rust", 16, is_eagle=True),
    Shape("python", 16, is_eagle=True),
    Shape("rust", 128, median_weight=0.3),
    Shape("python", 128, median_weight=0.3),
    Shape("rust", 16, trim_pages=5),
    Shape("python", 16, trim_pages=5),
    Shape("python", 1, sessions=6),
    Shape("python", 16, median_weight=0.3, sessions=6),
)

HYBRIDS = (
    Shape("python", 1, hybrid=("swa",)),
    Shape("python", 16, hybrid=("swa",)),
    Shape("python", 1, hybrid=("mamba",)),
    Shape("python", 16, hybrid=("mamba",)),
    Shape("python", 1, hybrid=("swa", "mamba")),
    Shape("python", 16, hybrid=("swa", "mamba"), trim_pages=5),
    Shape("python", 16, hybrid=("swa",), sessions=6),
    Shape("python", 16, hybrid=("mamba",), sessions=6),
)
"""Caches of hybrid models, whose leaves are evicted whole."""

WEIGHTS = {
    "start": 30.0,
    "match": 8.0,
    "prefill": 30.0,
    "decode": 10.0,
    "finish": 14.0,
    "abort": 4.0,
    "press": 6.0,
    "evict": 10.0,
    "threshold": 3.0,
    "flush": 0.5,
}
"""How often each step is taken, relative to the others."""


class Lines:
    """A table that is printed as it grows: steps done, cost of a step since the line before, memory."""

    def __init__(self, done: str, cost: str, *others: str) -> None:
        self._columns = (done, cost, "× the first", "resident memory", *others)
        self._widths = [max(len(column), 12) for column in self._columns]
        self._first = self._count = 0.0
        self._start = time.process_time()
        self._print(*self._columns)

    def add(self, done: int, *others: str) -> None:
        """One more line, timed from the line before it."""
        now = time.process_time()
        cost = (now - self._start) / (done - self._count) * 1e6
        self._first = self._first or cost
        memory = psutil.Process().memory_info().rss / 2**20
        self._print(f"{done:,}", f"{cost:.1f}", f"{cost / self._first:.2f}", f"{memory:,.0f} MiB", *others)
        self._start, self._count = time.process_time(), done

    def _print(self, *cells: str) -> None:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True)), flush=True)


POOL, PAGE, THRESHOLD, NEXT_PROMPT = 200_000, 16, 1024, 200
"""The cache that serves requests; lengths in tokens."""


def steps_of(audited: AuditedCache, seed: int, count: int) -> Iterator[Callable[[], None]]:
    """So many random steps of a cache, the same for the same seed."""
    rng, page = Random(seed), audited.page_size
    weights = {**WEIGHTS, "close": 6.0} if audited.shape.sessions else WEIGHTS
    for kind in rng.choices(list(weights), list(weights.values()), k=count):
        number = rng.randrange(10**6)
        likely: dict[str, Callable[[], None]] = {
            "start": partial(audited.start, number, rng.choice([4, 4, 4, 8, 2 * audited.shape.pages])),
            "match": partial(audited.look_up, number, 4),
            "prefill": partial(audited.prefill, number, 8),
            "decode": partial(audited.decode, number),
            "finish": partial(audited.finish, number),
            "abort": partial(audited.abort, number),
            "press": partial(audited.press, number % 40),
            "evict": partial(audited.evict_some, number % (9 * page)),
            "threshold": partial(audited.move_threshold, number % 12),
            "flush": audited.flush,
            "close": partial(audited.close_one, number),
        }
        yield likely[kind]


def soak(steps: int, seed: int) -> None:
    """Take audited steps, a hundredth of them at a time on a new cache of the next shape."""
    lines = Lines("audited steps", "µs of CPU / step", "tokens evicted", "splits")
    counts: Counter[str] = Counter()
    shapes = (*SHAPES, *HYBRIDS)
    for part in range(100):
        shape = shapes[part % len(shapes)]
        audited = audited_cache(shape)
        done, wanted = part * steps // 100, (part + 1) * steps // 100
        own_seed = 100 * seed + part  # of each part another one, whatever --seed says
        for number, step in enumerate(steps_of(audited, own_seed, wanted - done)):
            try:
                step()
            except BaseException as error:
                error.add_note(f"step {number} of {shape}, seed {own_seed}")
                raise
        counts += audited.cache.tail.counts
        if part % 10 == 9:
            evicted = counts["tel_safe"] + counts["lru"]
            lines.add(wanted, f"{evicted:,}", f"{counts['splits']:,}")


class Names(dict[int, int]):
    """Numbers for units without remembering units, so that only the cache grows. Two of millions may be equal."""

    def setdefault(self, unit: int, number: int = 0, /) -> int:
        return unit % (1 << 38)


def serve(requests: int, core: Core) -> None:
    """Serve synthetic conversations through one real cache under tlru, without an audit. Their cost must stay flat."""
    sizes: dict[str, Any] = {"threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT, "page_size": PAGE}
    cache = RealCache("tlru", POOL, core=core, trim_chunk=None, units=Names(), **sizes)
    stream = islice(GENERATORS["synthetic"](f"conversations={requests}"), requests)
    lines = Lines("requests", "µs of CPU / request", "entries / leaf", "leaves")
    for tenth in range(10):
        done, wanted = tenth * requests // 10, (tenth + 1) * requests // 10
        for request in islice(stream, wanted - done):
            cache.request(request)
        order = cache.cache.tail.order
        lines.add(wanted, f"{order.entries / max(len(order), 1):.2f}", f"{len(order):,}")
