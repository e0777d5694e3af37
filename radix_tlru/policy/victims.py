"""What an order says of a leaf that goes: how much of it stays, in which phase, and why before the others."""

from __future__ import annotations

from typing import Literal, NamedTuple

from radix_tlru.policy.models import Leaf

__all__ = ["Phase", "Upcoming", "Victim"]

Phase = Literal["tel_safe", "lru"]
"""Which of the two phases of T-LRU (paper, Algorithm 1) took a token: free at the tail, or the least recent."""


class Victim(NamedTuple):
    """A leaf, and the depth down to which it stays: tokens [keep, end) are to be evicted, a whole number of pages."""

    leaf_id: int
    leaf: Leaf
    keep: int
    phase: Phase


class Upcoming(NamedTuple):
    """A victim to come, and what a token of it costs: why it comes before the others."""

    victim: Victim
    return_rate: float  # λ, in 1 / (unit of the return model's time)
    exceed_probability: float  # P(Q > ξ - (L - X))
    cost: float  # marginal_cost of the two
