"""What a first token waits for other than prefill: γ of TTFT = γ + β + α·uncached."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median
from typing import NamedTuple

__all__ = ["FirstToken", "Overhead"]


class FirstToken(NamedTuple):
    """What one uncontended request waited for, from being taken in until its first token was sent."""

    request: str  # its id
    ms: float


class Overhead:
    """γ: the median time that uncontended requests waited for other than their prefill, in ms.

    A request is uncontended if no other request waited for a first token while it did: neither in the batches of its
    prompt nor between them. Other requests wait mostly for each other's prefills, which no eviction can mend. The
    busier the server, the fewer are uncontended. While there were none γ is not known.
    """

    WINDOW = 64
    """Uncontended requests remembered."""

    ENOUGH = 8
    """Uncontended requests needed for a value."""

    _UNREPORTED = 64  # prompts remembered until the time of their first token is reported

    def __init__(self) -> None:
        self._prefill_ms: dict[str, float] = {}  # by request; NaN if it was not alone in a batch
        self._unfinished: str | None = None  # the prompt of which more is to come
        self._recent: deque[float] = deque(maxlen=self.WINDOW)

    def __len__(self) -> int:
        """Uncontended requests remembered."""
        return len(self._recent)

    def count_prefill(
        self, requests: Collection[str], ms: float, overlap_ms: float = 0.0, *, unfinished: str | None = None
    ) -> None:
        """A prefill batch with tokens of these requests took ``ms``, ``overlap_ms`` of it beside the one before.

        More is to come of ``unfinished``. If another one comes again, a client has given a new request its id.
        """
        for request in requests:
            before = self._prefill_ms.pop(request, math.nan) - overlap_ms
            took = before + ms if request == self._unfinished else ms
            self._prefill_ms[request] = took if len(requests) == 1 else math.nan
        if unfinished is not None or self._unfinished in requests:
            self._unfinished = unfinished
        while len(self._prefill_ms) > self._UNREPORTED:
            del self._prefill_ms[next(iter(self._prefill_ms))]

    def count_first_token(self, first_token: FirstToken) -> None:
        """An uncontended request got its first token. It counts once, and only if its prefills were timed."""
        overhead = first_token.ms - self._prefill_ms.pop(first_token.request, math.nan)
        if overhead >= 0.0:
            self._recent.append(overhead)

    def ms(self) -> float | None:
        """γ; None before 8 uncontended requests."""
        return median(self._recent) if len(self._recent) >= self.ENOUGH else None
