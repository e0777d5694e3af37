"""The patched RadixCache of SGLang 0.5.9 and this repository's simulator: do they find the same tokens cached?

Replayed request by request through the cache that ``--radix-eviction tlru`` builds, on a real allocator, chunk by chunk
as the scheduler prefills, with pages as tokens (``eval.caches.real``): a page of a path is one token of a pool of as
many tokens as there are pages. They agree on every request at a median weight of 0. With more, ages are weighed, which
the simulator counts in requests and the cache in walks of its tree (two for each chunk of a prefill, and one more): at
0.2 some 20 of Mooncake's 12,031 requests differ, and none with ages counted in requests. Runs on the patched tree:

    PYTHONPATH=TREE/python python patches/v0.5.9/agreement.py [--trace mooncake_conversation_trace.jsonl]

and as tests, on generated conversations, and on the Mooncake trace if MOONCAKE_TRACE says where it is.
Without libcuda the import of ``sgl_kernel``, and nothing else, is stubbed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))

from sglang.test.radix_cache_utils import (  # noqa: E402, I001 - stubs sgl_kernel before sglang.srt is imported
    InsertParams,
    MatchPrefixParams,
    RadixCache,
    RadixKey,
    make_cache,
)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from sglang.srt.mem_cache.common import alloc_token_slots  # noqa: E402
from sglang.srt.mem_cache.evict_policy import TLRUConfig  # noqa: E402
from sglang.srt.mem_cache.tlru_radix_cache import TLRURadixCache, TLRUTreeNode  # noqa: E402

from eval.simulate.cells import uncached_tokens  # noqa: E402
from eval.caches.policies import simulated_cache  # noqa: E402
from eval.caches.pages import page_ids  # noqa: E402
from eval.caches.real import CHUNK_TOKENS  # noqa: E402
from eval.caches.simulator import simulate  # noqa: E402
from eval.traces import Request, open_trace  # noqa: E402

MOONCAKE = Path(os.environ.get("MOONCAKE_TRACE") or REPOSITORY / "mooncake_conversation_trace.jsonl")
GENERATED = "synthetic:conversations=300,seed=3"
NEXT_PROMPT = 200


class Cell(NamedTuple):
    """What to replay with, in tokens."""

    trace: str
    capacity: int
    threshold: int
    page_size: int
    weight: float = 0.0


CELLS = [
    *(Cell(GENERATED, 60_000, threshold, page) for threshold in (1024, 4096) for page in (1, 16)),
    *(Cell(GENERATED, 60_000, 1024, page, weight=0.2) for page in (1, 16)),
    *(Cell(str(MOONCAKE), 2_000_000, threshold, 512) for threshold in (4096, 8192, 16384)),
    Cell(str(MOONCAKE), 2_000_000, 8192, 512, weight=0.2),
]


class AgesInRequests(TLRURadixCache):
    """Counts ages as the simulator does: in requests, up to the last one that left a leaf."""

    _newest = _now = 0

    def begin(self) -> None:
        """Count the request that is served next."""
        self._walks += 1
        self._now = self._newest

    def _age(self, leaf: TLRUTreeNode) -> int:
        age: int = self._now - leaf.last_use + 1
        return age

    def _update_leaf_status(self, node: TLRUTreeNode) -> None:
        super()._update_leaf_status(node)
        if node in self.evictable_leaves:
            self._newest = max(self._newest, node.last_use)

    _match_prefix_helper, _insert_helper = RadixCache._match_prefix_helper, RadixCache._insert_helper


class PatchedCache:
    """The cache of the patched release, behind the simulator's interface: requests in, cached tokens out."""

    def __init__(self, cell: Cell, cache_class: type[RadixCache] = TLRURadixCache) -> None:
        self._pages, self._page_size = cell.capacity // cell.page_size, cell.page_size
        self._chunk = max(CHUNK_TOKENS // cell.page_size, 1)
        # ⌈(L + Q̂ - ξ)⁺ / page⌉ pages: the same budgets in units of pages, as L is a whole number of them.
        slack = max(cell.threshold - NEXT_PROMPT, 0) // cell.page_size
        self._units: dict[int, int] = {}
        tlru = TLRUConfig(slack, 0, cell.weight, trim_chunk=1)
        self._cache = make_cache(cache_class, self._pages, tlru=tlru)

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""
        ids = page_ids(request.context, self._page_size, self._units)[: self._pages]
        cached = self._serve(ids) * self._page_size
        return min(cached, len(request.prompt) // self._page_size * self._page_size)

    def _serve(self, ids: list[int]) -> int:
        cache = self._cache
        if isinstance(cache, AgesInRequests):
            cache.begin()
        slots, node = self._match(ids)
        cache.inc_lock_ref(node)
        cached = done = len(slots)
        while done < len(ids):
            end = min(done + self._chunk, len(ids))
            slots = torch.cat([slots, alloc_token_slots(cache, end - done)])
            cache.insert(InsertParams(key=RadixKey(ids[:end]), value=slots))
            slots, last = self._match(ids[:end])
            cache.inc_lock_ref(last)
            cache.dec_lock_ref(node)
            done, node = end, last
        cache.dec_lock_ref(node)
        return cached

    def _match(self, ids: list[int]) -> tuple[torch.Tensor, Any]:
        match = self._cache.match_prefix(MatchPrefixParams(key=RadixKey(list(ids))))
        return match.device_indices, match.last_device_node


def replay(cell: Cell, cache_class: type[RadixCache] = TLRURadixCache) -> tuple[list[Request], list[int], list[int]]:
    """The requests of a cell, and the cached tokens of each in the patched cache and in the simulator."""
    requests = open_trace(cell.trace).requests
    sizes: dict[str, Any] = {"threshold": cell.threshold, "page_size": cell.page_size, "median_weight": cell.weight}
    simulated = simulated_cache("tlru", cell.capacity, next_prompt_estimate=NEXT_PROMPT, **sizes)
    return requests, simulate(PatchedCache(cell, cache_class), requests), simulate(simulated, requests)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{Path(cell.trace).stem}-{cell[2:]}")
def test_finds_cached_what_the_simulator_finds(cell: Cell) -> None:
    if cell.trace == str(MOONCAKE) and not MOONCAKE.is_file():
        pytest.skip(f"MOONCAKE_TRACE: {MOONCAKE} is not there")
    requests, patched, simulated = replay(cell, AgesInRequests if cell.weight else TLRURadixCache)
    differ = [number for number, (one, other) in enumerate(zip(patched, simulated, strict=True)) if one != other]
    assert not differ, f"{len(differ):,} of {len(requests):,} requests differ, the first is number {differ[0]}"
    assert 0 < sum(patched) < sum(len(request.prompt) for request in requests), "nothing was cached, or nothing evicted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default=str(MOONCAKE), help="as in `python -m eval simulate`")
    parser.add_argument("--capacity", type=int, default=2_000_000, help="tokens (default: %(default)s)")
    parser.add_argument("--threshold", type=int, nargs="+", default=[4096, 8192, 16384], help="tokens")
    parser.add_argument("--page-size", type=int, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--median-weight", type=float, default=0.0)
    args = parser.parse_args()
    print(
        f"{'ξ':>7} {'0.5.9':>6} {'p50':>8} {'p95':>8} {'over ξ':>8} {'TEL':>14} {'cached':>12}  differ from simulated"
    )
    for threshold in args.threshold:
        cell = Cell(args.trace, args.capacity, threshold, args.page_size, args.median_weight)
        requests, patched, simulated = replay(cell)
        differ = sum(one != other for one, other in zip(patched, simulated, strict=True))
        print(row(threshold, "lru", requests, simulate(PatchedCache(cell, RadixCache), requests)))
        print(row(threshold, "tlru", requests, patched), f" {differ:,} of {len(requests):,}")


def row(threshold: int, policy: str, requests: Sequence[Request], cached: list[int]) -> str:
    """Uncached tokens of a policy: median and 95th percentile, requests over the threshold, and what is over it."""
    uncached = uncached_tokens(requests, cached)
    p50, p95 = np.percentile(uncached, [50, 95])
    over = np.maximum(np.asarray(uncached) - threshold, 0)
    figures = f"{p50:>8,.0f} {p95:>8,.0f} {(over > 0).sum():>8,} {over.sum():>14,} {sum(cached):>12,}"
    return f"{threshold:>7,} {policy:>6} {figures}"


if __name__ == "__main__":
    main()
