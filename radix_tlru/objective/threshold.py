"""The threshold ξ in force: uncached tokens that still meet the TTFT objective."""

from __future__ import annotations

__all__ = ["Threshold"]


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
    """ξ moves when what it follows is further away than this share of it. A move has all leaves repriced, 24 a turn."""

    def __init__(self, start: int, next_prompt_estimate: int, page_size: int) -> None:
        self.tokens = start
        self._lowest = (next_prompt_estimate // page_size + 1) * page_size
        self._page_size = page_size

    def follow(self, tokens: float) -> bool:
        """Move to ``tokens``, rounded down to a page. Returns False, and stays, if that is not worth it."""
        bounded = max(min(tokens, self.HIGHEST), self._lowest)
        if abs(bounded - self.tokens) <= self.WORTH_IT * self.tokens:
            return False
        before = self.tokens
        self.tokens = int(round(bounded, 6)) // self._page_size * self._page_size
        return self.tokens != before
