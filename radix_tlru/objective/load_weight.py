"""The weight w, learned while serving: what a token that must be prefilled costs the requests that wait for it.

TTFT = β + α·uncached (paper, equation 2) holds for a request that has the server to itself. A busy server serves it
after others. So a missing token costs its own request, if that goes beyond ξ for it. And it costs each request that
queues behind it: those present when its prefill starts, and those that arrive while it runs. With k such requests for
each prefilled token, on average,

    λ · (P(Q > ξ - (L - X)) + k)   ∝   λ · ((1 - w) · P(Q > ξ - (L - X)) + w),   w = k / (1 + k).

w goes no higher than a half, which is k = 1. Queues are made of long prefills, and those are shortened by the other
term: with w of 0.8 and 1 waits were hardly shorter on any trace tried, and longer on most.

At a low load most requests that wait arrive while another prefill runs: in an M/G/1 queue those already present are a
share ρ of all that wait, with ρ the share of time that the server is busy.

Counted in events, never in seconds: ranks that are told the same compute the same.
"""

from __future__ import annotations

from typing import NamedTuple

from radix_tlru.config import LOWEST_WEIGHT

__all__ = ["LoadWeight", "PrefillLoad", "QueueCounter"]

_HIGHEST = 0.5  # w where many wait
_HALF_LIFE = 256  # prefills, after which one counts half
_EVERY = 32  # prefills from one look to the next
_WORTH_IT = 0.1  # share of w below which it does not move


class PrefillLoad(NamedTuple):
    """A prefill of ``tokens`` starts while ``waiting`` requests queue."""

    tokens: int
    waiting: int  # requests other than the one that is served
    waited: float = (
        0.0  # tokens, summed over requests that arrived during the launches before: what was left to wait for
    )


class QueueCounter:
    """Turns what a scheduler shows at each launch into the load of a prefill, by counts alone.

    Args:
        ahead: whether launches run one ahead of the device (SGLang's overlap scheduler on a GPU). A request first seen
            at a launch then arrived during the last but one, and waits for all of the last.
    """

    def __init__(self, ahead: bool = False) -> None:
        self._ahead = ahead
        self._left = self._last_tokens = 0
        self._behind = self._waited = 0.0

    def count_launch(self, tokens: int, present: int, left: int, after_idle: bool) -> PrefillLoad | None:
        """A batch is launched. Returns its load; None if it prefills nothing.

        Args:
            tokens: that are prefilled; 0: something else is launched.
            present: requests that wait, those of this batch among them.
            left: of these, how many will wait for another batch.
            after_idle: whether nothing ran when they arrived.
        """
        if after_idle:
            self._last_tokens = 0
        else:
            self._waited += max(present - self._left, 0) * self._behind
        # Half of what runs when a request arrives is over, on average.
        self._behind = tokens + self._last_tokens / 2 if self._ahead else tokens / 2
        self._left, self._last_tokens = left, tokens
        if not tokens:
            return None
        waited, self._waited = self._waited, 0.0
        return PrefillLoad(tokens, present - 1, waited)


class LoadWeight:
    """w by what waited for the prefills of late."""

    def __init__(self) -> None:
        self._tokens = self._waits = 0.0
        self._prefills = 0
        self.weight = LOWEST_WEIGHT
        """w in force."""

    @property
    def waiting(self) -> float:
        """k: requests that waited for a prefilled token, on average."""
        return self._waits / self._tokens if self._tokens else 0.0

    def count_prefill(self, load: PrefillLoad) -> bool:
        """One more prefill. Returns whether w moved."""
        decay = 0.5 ** (1 / _HALF_LIFE)
        self._tokens = self._tokens * decay + load.tokens
        self._waits = self._waits * decay + load.tokens * load.waiting + load.waited
        self._prefills += 1
        if self._prefills % _EVERY:
            return False
        wanted = min(max(self.waiting / (1.0 + self.waiting), LOWEST_WEIGHT), _HIGHEST)
        if abs(wanted - self.weight) <= _WORTH_IT * self.weight and LOWEST_WEIGHT < wanted < _HIGHEST:
            return False
        moved, self.weight = wanted != self.weight, wanted
        return moved
