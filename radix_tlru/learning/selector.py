"""What would the candidate policies have cost of late? Each has a shadow cache that serves the same sampled turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import Tally

__all__ = ["IN_FORCE", "Rule", "Selector"]

IN_FORCE = "in force"
"""Name among the candidates of the one that was in force at each turn, whichever that was."""


class Rule(Protocol):
    """Says which candidate should be in force, by what turns cost under each."""

    @property
    def preferred(self) -> str:
        """Its name."""

    @property
    def refused(self) -> Mapping[str, str]:
        """What speaks against others, by name: a figure in which they are worse than lru."""

    def count_turn(self, prompt_len: int, uncached: Sequence[int], threshold: int) -> None:
        """A turn was served by the shadows: its uncached tokens under each candidate. ξ and lengths are tokens."""


class Selector:
    """Candidates, a shadow cache of each, and the one that is preferred by what they cost.

    Args:
        candidates: by name.
        capacity: tokens of the cache that is shadowed.
        one_in: conversations for each that is sampled.
        rule: by which one is preferred.
    """

    def __init__(
        self, candidates: Mapping[str, Policy], capacity: int, page_size: int, one_in: int, rule: Rule
    ) -> None:
        self.one_in = one_in
        """Conversations for each that is sampled."""
        self._rule = rule
        size = capacity // page_size * page_size
        self._shadows = {
            name: ShadowCache(self._scaled(policy), size, page_size, one_in) for name, policy in candidates.items()
        }
        self.prompt_tokens = 0
        """Of the turns that the shadows have served."""
        self.served = {name: Tally() for name in (*candidates, IN_FORCE)}
        """What these turns had to prefill under each candidate since the start."""

    @property
    def preferred(self) -> str:
        """Name of the candidate that should be in force."""
        return self._rule.preferred

    @property
    def sampled(self) -> int:
        """Turns that the shadows have served."""
        return self.served[IN_FORCE].requests

    def replay_turn(self, conversation: Conversation, turn: Turn, in_force: str) -> Iterator[None]:
        """A turn was served while that candidate was in force: so it is by the shadows that sample it, one a step.

        In the last step the rule is told what they found.
        """
        if conversation.number % self.one_in:
            return
        self.prompt_tokens += turn.prompt_len
        uncached: list[int] = []
        for shadow in self._shadows.values():
            uncached.append(turn.prompt_len - shadow.serve(conversation, turn))
            yield
        threshold = next(iter(self._shadows.values())).order.policy.threshold
        for name, tokens in zip(self._shadows, uncached, strict=True):
            self.served[name].count(tokens, threshold)
            if name == in_force:
                self.served[IN_FORCE].count(tokens, threshold)
        self._rule.count_turn(turn.prompt_len, uncached, threshold)

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
