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
    """What requests that come while something runs wait for of it, told at every launch, by counts alone.

    Args:
        ahead: whether launches run one ahead of the device (SGLang's overlap scheduler on a GPU). Who is first seen at
            a launch came while the last but one ran then, and waits for all of the last.
    """

    def __init__(self, ahead: bool = False) -> None:
        self._ahead = ahead
        self._left = self._last = 0
        self._behind = self._waited = 0.0

    def launched(self, tokens: int, present: int, left: int, after_idle: bool) -> float:
        """Returns the tokens that those who came waited for, all together, when a prefill is launched.

        Args:
            tokens: that are prefilled; 0: something else was launched.
            present: requests that wait, those of this batch among them.
            left: of these, how many will wait for another.
            after_idle: whether nothing ran when they came.
        """
        if after_idle:
            self._last = 0
        else:
            self._waited += max(present - self._left, 0) * self._behind
        # Of what runs when they come a half is over, on average.
        self._behind = tokens + self._last / 2 if self._ahead else tokens / 2
        self._left, self._last = left, tokens
        if not tokens:
            return 0.0
        waited, self._waited = self._waited, 0.0
        return waited


class LoadWeight:
    """w by what waited for the prefills of late."""

    def __init__(self) -> None:
        self._tokens = self._waits = 0.0
        self._prefills = 0
        self.weight = LOWEST
        """w in force."""

    @property
    def waiting(self) -> float:
        """k: requests that waited for a prefilled token, on average."""
        return self._waits / self._tokens if self._tokens else 0.0

    def prefilled(self, tokens: int, waiting: int, waited: float = 0.0) -> bool:
        """So many tokens are prefilled while so many other requests wait; returns whether w moved.

        ``waited``: tokens that those waited for besides who came while what was before ran, all together.
        """
        decay = 0.5 ** (1 / _HALF_LIFE)
        self._tokens = self._tokens * decay + tokens
        self._waits = self._waits * decay + tokens * waiting + waited
        self._prefills += 1
        if self._prefills % _EVERY:
            return False
        wanted = min(max(self.waiting / (1.0 + self.waiting), LOWEST), _HIGHEST)
        if abs(wanted - self.weight) <= _MOVED * self.weight and LOWEST < wanted < _HIGHEST:
            return False
        moved, self.weight = wanted != self.weight, wanted
        return moved
