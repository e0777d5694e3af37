"""The threshold ξ, learned while serving: from milliseconds, or from the percentile that shall be lowest.

TTFT grows with the tokens that must be prefilled, TTFT = β + α·uncached (paper, equation 2, where β is 0), so an
objective in milliseconds allows ξ = (SLO - β) / α uncached tokens. α and β depend on the model, the machine and its
load, and are fitted here to the prefills as they are measured:

    batch, its time ──► WholePrompts ──► PrefillFit ──► Line(α, β) ──► Threshold ξ
    uncached tokens of each request ──► UncachedQuantile ──────────────┘

Everything is counted in events, never in seconds, and nothing is drawn at random: what is fed the same is the same.
Pure arithmetic; what is measured where is the business of ``radix_tlru.sglang``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

__all__ = ["EVERY", "Threshold", "UncachedQuantile"]

EVERY = 32
"""Prefill batches from one look at what was learned to the next."""


class UncachedQuantile:
    """A percentile of the uncached tokens of recent requests, exact over the last 4,096 of them.

    Args:
        percentile: above 0, up to 100.
    """

    WINDOW = 4096
    """Requests remembered."""

    ENOUGH = 64
    """Requests needed for a value."""

    SHARE = 0.75
    """Of the percentile, at which ξ is kept. T-LRU moves requests from above ξ to just below it and others up to it,
    so a percentile falls while ξ is under it and no more once ξ is there: with ξ *at* p95, p95 gains next to nothing,
    with ξ a little above nothing at all. ``python -m eval target`` shows both sides."""

    def __init__(self, percentile: float) -> None:
        self._percentile = percentile
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._recent)

    def add(self, uncached: int) -> None:
        """One more request, with the tokens that it had to prefill."""
        if len(self._recent) == self.WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(uncached)
        insort(self._sorted, uncached)

    def value(self, percentile: float | None = None) -> int | None:
        """The nearest-rank percentile, or another one, in tokens; None before 64 requests."""
        if len(self._sorted) < self.ENOUGH:
            return None
        rank = math.ceil(round((percentile or self._percentile) * len(self._sorted) / 100.0, 6))
        return self._sorted[rank - 1]

    def threshold(self) -> float | None:
        """ξ for that percentile, in tokens; None before 64 requests."""
        value = self.value()
        return None if value is None else self.SHARE * value


class Threshold:
    """ξ in force: within bounds, in whole pages, and not moved for less than a tenth.

    Args:
        start: tokens, in force until there is something to follow.
        next_prompt_estimate: Q̂ in tokens; ξ stays above, or nothing would be TEL-safe.
        page_size: tokens.
    """

    HIGHEST = 1 << 20
    """Tokens: more than any context."""

    WORTH_IT = 0.1
    """ξ moves when what it follows is further away than this share of it: a move makes the order sort its leaves."""

    def __init__(self, start: int, next_prompt_estimate: int, page_size: int) -> None:
        self.tokens = start
        self._lowest = (next_prompt_estimate // page_size + 1) * page_size
        self._page_size = page_size

    def follow(self, tokens: float) -> bool:
        """Move to where ``tokens`` says; False if that is not worth it."""
        bounded = min(max(tokens, self._lowest), self.HIGHEST)
        if abs(bounded - self.tokens) <= self.WORTH_IT * self.tokens:
            return False
        before, self.tokens = (
            self.tokens,
            max(int(round(bounded, 6)) // self._page_size * self._page_size, self._lowest),
        )
        return self.tokens != before
