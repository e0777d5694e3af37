"""Our plugin and a patched SGLang, given the same trace: do they find the same tokens cached, request by request?

Each replays the trace in a process of its own, ours on the SGLang that is installed. Run as
``python -m patches.check.agreement CACHE CAPACITY THRESHOLD NEXT_PROMPT PAGE_SIZE TRACE OUT``, this module is that
process; CACHE is a name of ``eval.caches.real.REAL_CACHES``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from patches.check.tree import run

__all__ = ["Cell", "cells", "compare"]

OURS, PATCHED = "real-tlru", "sglang-tlru-python"


class Cell(NamedTuple):
    """What to replay with, in tokens."""

    capacity: int
    threshold: int
    next_prompt_estimate: int
    page_size: int

    def __str__(self) -> str:
        return f"capacity {self.capacity:,}, ξ {self.threshold:,}, Q̂ {self.next_prompt_estimate}, page {self.page_size}"


def cells() -> list[Cell]:
    """Those of the README's table; chunks of prefill, which only nodes taken whole depend on, are 8,192 tokens."""
    return [Cell(2_000_000, threshold, 200, 512) for threshold in (4_096, 8_192, 16_384)]


def compare(cell: Cell, trace: Path, repository: Path, plain: Mapping[str, str], patched: Mapping[str, str]) -> str:
    """Replay in both environments; a line that says what agreed.

    Raises:
        AssertionError: a request found another number of cached tokens.
        CommandError: a replay ended early.
    """
    cached = []
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        for cache, environment in ((OURS, plain), (PATCHED, patched)):
            out = Path(folder) / f"{cache}.json"
            words = [cache, *map(str, tuple(cell)), str(trace), str(out)]
            run([sys.executable, "-m", __name__, *words], cwd=repository, environment=environment)
            cached.append(json.loads(out.read_text()))
    ours, theirs = cached
    assert len(ours) == len(theirs), f"{len(ours):,} and {len(theirs):,} requests"
    differ = [index for index, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    assert not differ, (
        f"{len(differ):,} of {len(ours):,} requests differ; the first is number {differ[0]}: "
        f"{ours[differ[0]]:,} tokens cached with our plugin, {theirs[differ[0]]:,} in the patched tree"
    )
    return f"{len(ours):,} requests, {sum(ours):,} cached tokens in both"


def _replay(cache: str, sizes: tuple[int, int, int, int], trace: str) -> list[int]:
    from eval.caches.real import REAL_CACHES
    from eval.caches.simulator import simulate
    from eval.traces import open_trace

    return simulate(REAL_CACHES[cache](*sizes), open_trace(trace).requests)


if __name__ == "__main__":
    name, capacity, threshold, next_prompt, page_size, source, target = sys.argv[1:]
    sizes = (int(capacity), int(threshold), int(next_prompt), int(page_size))
    Path(target).write_text(json.dumps(_replay(name, sizes, source)))
