"""What a model thought is not asked for again: most chat templates leave it out of the next prompt.

No later prompt has the tokens behind the first thought of an answer as they are cached, so their return rate is 0,
whatever the rate of their conversation: they go before anything that costs something, and before what is TEL-safe.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

from radix_tlru.models import Group, Leaf, Policy, ReturnModel

__all__ = ["WithoutThoughts", "without_thoughts"]

_NEVER = Group(0, math.inf)


class WithoutThoughts:
    """A return model to which what no later prompt has does not return. ``leaf.known`` is a Conversation."""

    def __init__(self, returns: ReturnModel) -> None:
        self._returns = returns

    def __copy__(self) -> WithoutThoughts:
        return WithoutThoughts(copy.copy(self._returns))

    @property
    def timeless(self) -> bool:
        return self._returns.timeless

    @property
    def version(self) -> int:
        return self._returns.version

    def key(self, leaf: Leaf) -> float:
        return self._returns.key(leaf)

    def stamp(self, leaf: Leaf) -> float:
        return self._returns.stamp(leaf)

    def group(self, leaf: Leaf, now: float) -> Group:
        known = leaf.known
        if known is not None and known.reach < leaf.end and (leaf.rest is None or known.reach <= leaf.start):
            return _NEVER
        group = self._returns.group(leaf, now)
        return Group(group.number + 1, group.until)

    def rate(self, group: int, key: float, now: float) -> float:
        return self._returns.rate(group - 1, key, now) if group else 0.0

    def floor(self, leaf: Leaf) -> int:
        floor = self._returns.floor(leaf)
        reach: int = leaf.known.reach if leaf.known is not None else leaf.end
        return max(floor, reach) if reach < leaf.end else floor


def without_thoughts(policy: Policy) -> Policy:
    """The same policy, with no use for what no later prompt has."""
    return replace(policy, returns=WithoutThoughts(policy.returns))
