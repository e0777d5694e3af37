"""The working set of a trace: how large a cache has to be before hindsight loses nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval.traces.request import Request

__all__ = ["working_set"]


def working_set(requests: Sequence[Request]) -> int:
    """The most tokens that are worth keeping at any one time: served before, and in a later prompt.

    Tokens that no later prompt has do not count, so this is less than all distinct tokens of a trace: 4.2 M of 87.5 M
    in the Mooncake conversation trace. Under lru a cache of this size still misses: it also holds what never returns.
    """
    first: dict[int, int] = {}  # number of the request that brings a unit, and of the last whose prompt has it
    last: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for number, request in enumerate(requests):
        for unit in request.prompt.ids:
            if unit in first:
                last[unit] = number
        start = 0
        for unit, end in zip(request.context.ids, request.context.ends, strict=True):
            if unit not in first:
                first[unit], tokens[unit] = number, end - start
            start = end
    changes = np.zeros(len(requests) + 1, dtype=np.int64)
    for unit, number in last.items():
        changes[first[unit]] += tokens[unit]
        changes[number] -= tokens[unit]
    return int(np.cumsum(changes).max())
