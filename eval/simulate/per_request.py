"""The requests of a cell on the disk: one Parquet file a cell, one row a request.

Columns: ``arrival_s``; ``prompt_tokens``, ``cached_tokens``, ``uncached_tokens``; ``evicted_tel_safe`` and
``evicted_lru``, the tokens that each phase evicted while the request was served; 0 where the cache does not count them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.simulate.cells import uncached_tokens
from eval.traces.request import Request


def requests_file(folder: Path, cell: str) -> Path:
    """Where the requests of a cell of that name are kept."""
    return folder / f"{cell}.parquet"


def write_requests(
    path: Path, requests: Sequence[Request], cached: Sequence[int], evicted: Sequence[tuple[int, int]]
) -> None:
    """Write the requests of a cell.

    Args:
        cached: tokens that each request found cached.
        evicted: tokens evicted so far, after each request, by phase: (TEL-safe, LRU).
    """
    import pyarrow
    import pyarrow.parquet

    phases = np.diff(np.asarray(evicted, dtype=np.int64), axis=0, prepend=0)
    table = pyarrow.table(
        {
            "arrival_s": [request.arrival_s for request in requests],
            "prompt_tokens": [request.prompt_tokens for request in requests],
            "cached_tokens": pyarrow.array(cached, pyarrow.int64()),
            "uncached_tokens": uncached_tokens(requests, cached),
            "evicted_tel_safe": phases[:, 0],
            "evicted_lru": phases[:, 1],
        }
    )
    part = path.with_suffix(".part")  # a run that is cut off leaves no file that looks whole
    pyarrow.parquet.write_table(table, part)
    part.replace(path)
