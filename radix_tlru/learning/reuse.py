"""What the next prompt does not say again, as it is cached, does not return.

Most chat templates leave out what was thought, and some write an answer, a tool call say, otherwise than it was said.
All that is cached behind the prompt is then of no use to any later one: its return rate is 0, whatever the rate of its
conversation. It goes before anything that costs something, and before what is TEL-safe.
"""

from __future__ import annotations

import math
from dataclasses import replace

from radix_tlru.policy.models import Group, Leaf, Policy, Wrapped

__all__ = ["SaidAgain", "said_again"]

_NEVER = Group(0, math.inf)


class SaidAgain(Wrapped):
    """A return model to which a conversation (``leaf.known``) returns no further than to its ``reach``."""

    def group(self, leaf: Leaf, now: float) -> Group:
        known = leaf.known
        if known is not None and known.reach < leaf.end and (leaf.rest is None or known.reach <= leaf.start):
            return _NEVER
        group = self._returns.group(leaf, now)
        return Group(group.number + 1, group.until)

    def rate(self, group: int, key: float, now: float) -> float:
        return self._returns.rate(group - 1, key, now) if group else 0.0

    def floor(self, leaf: Leaf) -> int:
        floor = super().floor(leaf)
        reach: int = leaf.known.reach if leaf.known is not None else leaf.end
        return max(floor, reach) if reach < leaf.end else floor


def said_again(policy: Policy) -> Policy:
    """The same policy, with no use for what is not said again."""
    return replace(policy, returns=SaidAgain(policy.returns))
