"""Which candidate policy would have cost least of late? Each has a shadow cache that serves the same sampled turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import excess

__all__ = ["LeadsNeeded", "Selector"]

_HALF_LIFE = 2_000  # sampled turns after which what a turn cost counts half


class LeadsNeeded(NamedTuple):
    """(leave, return) thresholds, in standard deviations of the difference in TEL between two candidates."""

    to_leave: float  # a candidate for one that stands behind it
    to_return: float  # to one that stands before it


class Selector:
    """Candidates, a shadow cache of each, and the one that is preferred by its TEL of late.

    Args:
        candidates: by name; one that stands before another is given up for it by ``to_leave``.
        capacity: tokens of the cache that is shadowed.
        one_in: conversations for each that is sampled.
        eligible: names of the candidates that may be preferred, in their order. The first is preferred until another
            did better.
        leads: that another candidate needs to be preferred.
    """

    def __init__(
        self,
        candidates: Mapping[str, Policy],
        capacity: int,
        page_size: int,
        one_in: int,
        eligible: tuple[str, ...],
        leads: LeadsNeeded,
    ) -> None:
        self.one_in = one_in
        """Conversations for each that is sampled."""
        size = capacity // page_size * page_size
        self._shadows = {
            name: ShadowCache(self._scaled(policy), size, page_size, one_in) for name, policy in candidates.items()
        }
        self.eligible = eligible
        """Names of the candidates that may be preferred."""
        self._rank = {name: number for number, name in enumerate(candidates)}
        self._leads = leads
        self.tel = dict.fromkeys(candidates, 0.0)
        """Tail excess latency of each lately, in tokens, decayed."""
        self._squares = {name: dict.fromkeys(candidates, 0.0) for name in candidates}
        """Sum of squared differences between two, decayed likewise."""
        self.preferred = eligible[0]
        """Name of the candidate that should be in force."""
        self.sampled = 0
        """Turns that the shadows have served."""
        self.excess = dict.fromkeys(candidates, 0)
        """Tail excess latency of these turns under each candidate since the start, in tokens."""
        self._last = 0  # of the sampled turns, that exceeded the threshold anywhere

    def replay_turn(self, conversation: Conversation, turn: Turn) -> None:
        """A turn was served: so it is by the shadows, if its conversation is sampled."""
        if conversation.number % self.one_in:
            return
        self.sampled += 1
        missed = {
            name: excess(turn.prompt_len - shadow.serve(conversation, turn), shadow.order.policy.threshold)
            for name, shadow in self._shadows.items()
        }
        if not any(missed.values()):
            return
        decay = 0.5 ** ((self.sampled - self._last) / _HALF_LIFE)
        self._last = self.sampled
        for name, tokens in missed.items():
            self.excess[name] += tokens
            self.tel[name] = self.tel[name] * decay + tokens
            squares = self._squares[name]
            for other, others in missed.items():
                squares[other] = squares[other] * decay + (tokens - others) ** 2
        self._compare()

    def replace_candidate(self, name: str, policy: Policy) -> None:
        """Another version of a candidate takes its place."""
        self._shadows[name].order.switch_policy(self._scaled(policy))

    @contextmanager
    def without(self, conversation: Conversation) -> Iterator[None]:
        """Take a conversation out of the orders of the shadows while what is known of it changes."""
        with ExitStack() as orders:
            if conversation.number % self.one_in == 0:
                for shadow in self._shadows.values():
                    orders.enter_context(shadow.without(conversation))
            yield

    def _scaled(self, policy: Policy) -> Policy:
        """The policy with a trim chunk that is as large a share of a shadow as it is of the cache."""
        return replace(policy, trim_chunk=max(policy.trim_chunk // self.one_in, 1))

    def _compare(self) -> None:
        """Prefer another candidate if it did better by more than chance."""
        best = min(self.eligible, key=self.tel.__getitem__)
        lead = self.tel[self.preferred] - self.tel[best]
        needed = self._leads.to_return if self._rank[best] < self._rank[self.preferred] else self._leads.to_leave
        if lead > needed * math.sqrt(self._squares[self.preferred][best]):
            self.preferred = best
