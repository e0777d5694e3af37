"""Which candidate had the least tail excess latency of late, by more than chance?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from radix_tlru.policy.tel import excess

__all__ = ["LeastTel"]

_HALF_LIFE = 2_000  # turns after which the cost of a turn counts half


class LeastTel:
    """Says which candidate should be in force: another one if its TEL is less by more than a standard deviation.

    Args:
        candidates: names; the first is in force until another did better.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        self._names = list(candidates)
        self.preferred = self._names[0]
        """Name of the candidate that should be in force."""
        self.refused: dict[str, str] = {}
        """Nothing speaks against a candidate but its TEL."""
        self._tel = [0.0] * len(self._names)  # tokens, decayed
        self._squares = [[0.0] * len(self._names) for _ in self._names]  # of the differences between two, decayed
        self._seen = self._last = 0  # turns; the last that went beyond ξ under any candidate

    def count_turn(self, prompt_len: int, uncached: Sequence[int], threshold: int) -> None:
        """A turn was served by the shadows: its uncached tokens under each candidate. ξ and lengths are tokens."""
        self._seen += 1
        costs = [excess(tokens, threshold) for tokens in uncached]
        if not any(costs):
            return
        decay = 0.5 ** ((self._seen - self._last) / _HALF_LIFE)
        self._last = self._seen
        for number, cost in enumerate(costs):
            self._tel[number] = self._tel[number] * decay + cost
            squares = self._squares[number]
            for other, others in enumerate(costs):
                squares[other] = squares[other] * decay + (cost - others) ** 2
        now = self._names.index(self.preferred)
        best = min(range(len(self._tel)), key=self._tel.__getitem__)
        if self._tel[now] - self._tel[best] > math.sqrt(self._squares[now][best]):
            self.preferred = self._names[best]
