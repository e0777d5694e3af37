"""Which hints are believed: none can pin memory.

A hint that makes tokens dearer is a *claim*. No claim holds for longer than an hour, and the contexts with claims may
fill a quarter of the pool. A claim beyond that is not believed. A longer next prompt is no claim: it makes the tail of
its conversation as dear as the rest of its path at most, which is what lru does.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from radix_tlru.hints.schema import Hints

__all__ = ["SHARE", "ClaimQuota"]

SHARE = 1 / 4
"""Share of the pool that contexts with claims may fill."""

_SLACK = 64  # the heap of expiries is rebuilt when it has more than 2 · claims + SLACK entries


class ClaimQuota:
    """Admits claims while they fit into their share of the pool. A conversation has one claim, that of its last turn.

    Templates leave reasoning out of the next prompt. Such tokens stay in the cache with the claim that they had, and
    are counted until it ends.

    Args:
        capacity: of the pool, tokens.
    """

    def __init__(self, capacity: int) -> None:
        self._room = int(capacity * SHARE)
        self._held: dict[int, tuple[float, int]] = {}  # (until, tokens) by conversation; below 0: of left-out tokens
        self._expiries: list[tuple[float, int]] = []  # heap of (until, number), those of old claims included
        self._left_out = 0  # contexts so far of which the next turn left tokens out, which keep their claim
        self.refused = 0
        """Claims that did not fit."""

    def admit(self, hints: Hints | None, tokens: int, now: float, conversation: int, repeated: int) -> Hints | None:
        """The hints that are believed, of a conversation with a context of ``tokens``, at ``now`` (s).

        A turn without hints (None) ends what the conversation claimed before.

        Args:
            repeated: tokens of the conversation's last context that this one begins with, in whole pages.
        """
        while self._expiries and self._expiries[0][0] <= now:
            until, expired = heappop(self._expiries)
            if expired in self._held and self._held[expired][0] <= until:
                self._room += self._held.pop(expired)[1]
        if conversation in self._held:
            until, held = self._held.pop(conversation)
            self._room += held
            if held > repeated:
                self._left_out += 1
                self._hold(-self._left_out, until, held - repeated)
        if hints is None or not hints.claim_s:
            return hints
        if tokens > self._room:
            self.refused += 1
            return hints.without_claims()
        self._hold(conversation, now + hints.claim_s, tokens)
        return hints

    def _hold(self, number: int, until: float, tokens: int) -> None:
        self._room -= tokens
        self._held[number] = until, tokens
        if len(self._expiries) > 2 * len(self._held) + _SLACK:
            self._expiries = [(until, each) for each, (until, _) in self._held.items()]
            heapify(self._expiries)
        else:
            heappush(self._expiries, (until, number))

    def clear(self) -> None:
        """Every claim ends: the cache was emptied."""
        self._room += sum(tokens for _, tokens in self._held.values())
        self._held.clear()
        self._expiries.clear()
