"""The policies of libCacheSim, to hold others against."""

from __future__ import annotations

from typing import Any

import libcachesim

__all__ = ["libcachesim_hits"]


def libcachesim_hits(kind: Any, ids: list[int], capacity: int) -> list[bool]:
    """Hits of objects of size 1 in a cache of libCacheSim, which caches every object it serves."""
    next_uses: list[int] = []
    later: dict[int, int] = {}
    for number in range(len(ids) - 1, -1, -1):
        next_uses.append(later.get(ids[number], 1 << 62))
        later[ids[number]] = number
    next_uses.reverse()
    theirs = kind(capacity, hashpower=10)
    return [
        theirs.get(libcachesim.Request(obj_id=block, obj_size=1, clock_time=number, next_access_vtime=next_use))
        for number, (block, next_use) in enumerate(zip(ids, next_uses, strict=True))
    ]
