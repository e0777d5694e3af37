"""The threshold ξ, learned while serving: from milliseconds, or from the percentile that shall be lowest.

TTFT grows with the tokens that must be prefilled, TTFT = γ + β + α·uncached (paper, equation 2, where γ and β are 0),
and 19 of 20 requests wait for at most δ times that, so an objective in milliseconds allows ξ = (SLO / δ - γ - β) / α
uncached tokens. α, β and δ depend on the model, the machine and its load, and are fitted to the prefills as they are
measured; γ is what a first token waits for besides:

    batch, its time ──► WholePrompts ──► PrefillFit ──► Near(α, β, δ) ──► Threshold ξ
    batch, its time; first token, its time ──► Overhead γ ────────────────┤
    uncached tokens of each request ──► UncachedQuantile ─────────────────┘

Everything is counted in events, never in seconds, and nothing is drawn at random: what is fed the same is the same.
Pure arithmetic; what is measured where is the business of ``radix_tlru.sglang``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection
from statistics import median

__all__ = ["EVERY", "Overhead", "Threshold", "UncachedQuantile", "time_for_prefill"]

EVERY = 32
"""Prefill batches from one look at what was learned to the next."""


def time_for_prefill(objective_ms: float, overhead_ms: float, late: float) -> float:
    """What a prefill may take by the line, in ms, so that 19 of 20 such requests meet the objective.

    T-LRU lets conversations decay to just under ξ, so with ξ where the *line* meets the objective half of these would
    miss it. Too low a ξ costs little, some conversations less that are kept below it; too high a one makes requests
    late that any other policy would have served in time (``eval/results/live-slo.md`` has both sides). At least half
    the objective stays for prefill: a machine that has less cannot keep it, and what eviction can still do is not to
    trim everybody to nothing.

    Args:
        overhead_ms: γ.
        late: δ.
    """
    return max(objective_ms / late - overhead_ms, objective_ms / 2.0)


class Overhead:
    """What a first token waits for besides its prefill, γ: the median of what lone requests waited for.

    A request is lone if nothing else was waiting for a first token while it was: neither in the batches of its prompt,
    nor, says who tells of its first token, between them. What others wait for is mostly each other's prefills, which
    no eviction can mend. The busier the server the fewer are lone, and while there were none γ is not known.
    """

    WINDOW = 64
    """Lone requests remembered."""

    ENOUGH = 8
    """Lone requests needed for a value."""

    _UNTOLD = 64  # prompts remembered, until it is told how long their first token took

    def __init__(self) -> None:
        self._prefills: dict[str, float] = {}
        self._recent: deque[float] = deque(maxlen=self.WINDOW)

    def __len__(self) -> int:
        """Lone requests remembered."""
        return len(self._recent)

    def prefilled(self, prompts: Collection[str], ms: float) -> None:
        """A prefill batch with tokens of these prompts, and the time it took."""
        for prompt in prompts:
            before = self._prefills.pop(prompt, 0.0)
            self._prefills[prompt] = before + ms if len(prompts) == 1 else math.nan
        while len(self._prefills) > self._UNTOLD:
            del self._prefills[next(iter(self._prefills))]

    def first_token(self, prompt: str, ms: float) -> None:
        """A lone request got its first token that long after it came; counts if its prefills were timed, and once."""
        besides = ms - self._prefills.pop(prompt, math.nan)
        if besides >= 0.0:
            self._recent.append(besides)

    def ms(self) -> float | None:
        """γ; None before 8 lone requests."""
        return median(self._recent) if len(self._recent) >= self.ENOUGH else None


class UncachedQuantile:
    """A percentile of the uncached tokens of recent requests, exact over the last 4,096 of them.

    Args:
        percentile: above 0, up to 100.
        window: requests remembered, if not 4,096.
    """

    WINDOW = 4096
    """Requests remembered unless it is said how many."""

    ENOUGH = 64
    """Requests needed for a value."""

    SHARE = 0.75
    """Of the percentile, at which ξ is kept. T-LRU moves requests from above ξ to just below it and others up to it,
    so a percentile falls while ξ is under it and no more once ξ is there: with ξ *at* p95, p95 gains next to nothing,
    with ξ a little above nothing at all. ``python -m eval target`` shows both sides."""

    def __init__(self, percentile: float, window: int = WINDOW) -> None:
        self._percentile, self._window = percentile, window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._recent)

    def add(self, uncached: int) -> None:
        """One more request, with the tokens that it had to prefill."""
        if len(self._recent) == self._window:
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
