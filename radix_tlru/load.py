"""The weight w, learned while serving: what a token that must be prefilled costs those who wait for it.

TTFT = β + α·uncached (paper, equation 2) is of a request that has the server to itself. One that is used serves it
after others, so a token that is missing costs its own request, if that goes beyond ξ for it, and each that waits behind
it, whether or not: those that had come when its prefill was launched, and those that come while it runs. With k
requests that wait for a prefilled token, on average,

    λ · (P(Q > ξ - (L - X)) + k)   ∝   λ · ((1 - w) · P(Q > ξ - (L - X)) + w),   w = k / (1 + k).

As far as a half, which is k = 1: queues are made of long prefills, and what shortens those is the other term. With w of
0.8 and 1 waits are hardly shorter on any trace that was tried, and longer on most (``eval/results/load.md``).

Where the load is low most that wait come while another prefill runs: of all that waits (M/G/1) those that had come
before are the share of the time that the server is busy.

Counted in events, never in seconds: what is fed the same is the same.
"""

from __future__ import annotations

__all__ = ["LOWEST", "Arrivals", "LoadWeight"]

LOWEST = 0.05
"""w where nobody waits. With 0 a TEL-safe token costs nothing and goes while its owner still types, before what nobody
has asked for in hours; with a little more it does not, and the tail is none the worse (``eval/results/learned.md``)."""

_HIGHEST = 0.5  # w where many wait
_HALF_LIFE = 256  # prefills, after which one counts half
_EVERY = 32  # prefills from one look to the next
_MOVED = 0.1  # of w, below which it stays


class Arrivals:
    """Tells, by counts alone, how many requests came while a prefill ran: at the launch of the next."""

    def __init__(self) -> None:
        self._step, self._left = -1, 0

    def launched(self, step: int, present: int, left: int) -> int:
        """A prefill is launched; returns how many came since the one before, if that was the last thing launched.

        Else something was launched between them that does not take up who waits, and they came while that ran.

        Args:
            step: a count of all that is launched.
            present: requests that wait, those of this batch among them.
            left: of these, how many will wait for another.
        """
        came = max(present - self._left, 0) if step == self._step + 1 else 0
        self._step, self._left = step, left
        return came


class LoadWeight:
    """w by what waited for the prefills of late."""

    def __init__(self) -> None:
        self._tokens = self._waits = 0.0
        self._prefills = self._last = 0
        self.weight = LOWEST
        """w in force."""

    @property
    def waiting(self) -> float:
        """k: requests that waited for a prefilled token, on average."""
        return self._waits / self._tokens if self._tokens else 0.0

    def prefilled(self, tokens: int, waiting: int, came: int = 0) -> bool:
        """So many tokens are prefilled while so many other requests wait; returns whether w moved.

        So many ``came`` while the prefill before ran: each waited for a half of it, on average.
        """
        decay = 0.5 ** (1 / _HALF_LIFE)
        self._tokens = self._tokens * decay + tokens
        self._waits = (self._waits + self._last * came / 2) * decay + tokens * waiting
        self._last = tokens
        self._prefills += 1
        if self._prefills % _EVERY:
            return False
        wanted = min(max(self.waiting / (1.0 + self.waiting), LOWEST), _HIGHEST)
        if abs(wanted - self.weight) <= _MOVED * self.weight and LOWEST < wanted < _HIGHEST:
            return False
        moved, self.weight = wanted != self.weight, wanted
        return moved
