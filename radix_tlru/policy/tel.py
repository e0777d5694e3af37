"""The arithmetic of Tail Excess Latency, all of it, in tokens.

A conversation has a ``history`` of L tokens, of which ``cached`` X are resident; its next prompt adds Q. The next
turn must prefill ``L - X + Q`` uncached tokens, and TTFT grows linearly with them. An objective on TTFT is therefore a
``threshold`` ξ on uncached tokens, and what misses it by how much is the tail excess latency

    TEL = Σ over requests of max(uncached - ξ, 0).

Everything the package decides follows from what one more evicted token adds to the expected loss
(:func:`marginal_cost`). Source: Zhang et al., "Tail-Optimized Caching for LLM Inference", NeurIPS 2025
(arXiv:2510.15152), sections 3 and 4, where L, Q and ξ are counted in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally", "excess", "keep_within_budget", "marginal_cost", "round_up"]


def excess(uncached_tokens: int, threshold: int) -> int:
    """One request's share of TEL: its uncached tokens beyond the threshold ξ."""
    return max(uncached_tokens - threshold, 0)


@dataclass(slots=True)
class Tally:
    """TEL so far, and of how many requests."""

    requests: int = 0
    uncached: int = 0  # their uncached tokens
    violations: int = 0  # requests beyond the threshold ξ
    excess: int = 0  # their tokens beyond it

    def count(self, uncached_tokens: int, threshold: int) -> None:
        """One more request, and the threshold it is judged by, in tokens."""
        over = excess(uncached_tokens, threshold)
        self.requests += 1
        self.uncached += uncached_tokens
        self.violations += over > 0
        self.excess += over


def round_up(tokens: int, page_size: int) -> int:
    """The smallest whole number of pages that holds ``tokens``, in tokens."""
    return -(-tokens // page_size) * page_size


def keep_within_budget(history: int, next_prompt: int, threshold: int, page_size: int = 1) -> int:
    """Tokens of the path, counted from the root, that must stay for the next turn to meet the threshold.

    ``⌈(L + Q - ξ)⁺ / page⌉`` pages, in tokens (paper, Algorithm 1). What lies beyond is TEL-safe: evicting all of it
    leaves ``L - keep + Q ≤ ξ`` tokens to prefill, so it costs nothing at the tail.

    >>> keep_within_budget(history=2000, next_prompt=100, threshold=600)
    1500
    >>> keep_within_budget(history=2000, next_prompt=100, threshold=600, page_size=64)
    1536
    """
    return round_up(max(history + next_prompt - threshold, 0), page_size)


def marginal_cost(return_rate: float, exceed_probability: float, median_weight: float) -> float:
    """Expected loss of taking one more token from the tail of a conversation.

    ``return_rate · ((1 - w) · P(Q > ξ - (L - X)) + w)`` with X the tokens that stay once it is taken.
    ``exceed_probability`` is P: the chance that the next prompt is so long that the missing token counts against the
    threshold. ``median_weight`` is w in [0, 1], the share of the loss that a missing token causes whether or not its
    request is in the tail. 0 protects the tail alone (T-LRU). 1 sees no threshold (LRU, if the rate is recency).
    """
    return return_rate * ((1.0 - median_weight) * exceed_probability + median_weight)
