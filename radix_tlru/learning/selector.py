"""What would the candidate policies have cost of late? Each has a shadow cache that serves the same sampled turns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.policy.models import ReturnModel, for_another_order
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import Tally

__all__ = ["IN_FORCE", "Rule", "Selector", "is_sampled", "sparsity"]

_FEWEST = 100  # contexts that a shadow holds at least, unless the cache itself holds fewer
_TOKENS_FOR_ONE = 4_096  # of contexts, of which one is served by a shadow at least
_SIZED_EVERY = 1_000  # turns between two looks at how many contexts fit

IN_FORCE = "in force"
"""Name among the candidates of the one that was in force at each turn, whichever that was."""


class Rule(Protocol):
    """Says which candidate should be in force, by what turns cost under each."""

    @property
    def preferred(self) -> str:
        """Its name."""

    @property
    def refused(self) -> Mapping[str, str]:
        """What speaks against others, by name: a figure in which they are worse than lru, or chance."""

    def count_turn(self, prompt_len: int, uncached: Sequence[int], threshold: int) -> None:
        """A turn was served by the shadows: its uncached tokens under each candidate. ξ and lengths are tokens."""


def sparsity(capacity: int, turns: int, tokens: int) -> int:
    """One conversation in how many shadows should sample, where ``turns`` turns had ``tokens`` tokens of context.

    All of them, where contexts are thousands of tokens: what a shadow takes for a turn is nothing beside the prefill.
    """
    mean = max(tokens // turns, 1)
    return max(min(capacity // mean // _FEWEST, _TOKENS_FOR_ONE // mean), 1)


def is_sampled(family: int, one_in: int) -> bool:
    """Whether shadows serve the conversations of that number: one of each ``one_in`` that begin one after the other.

    Which one, a hash says: of calls in a cycle, as the steps of a pipeline are, every n-th may be of one kind.
    """
    group, place = divmod(family, one_in)
    return one_in == 1 or zlib.crc32(group.to_bytes(8, "little")) % one_in == place


class Selector:
    """Candidates, a shadow cache of each, and the one that is preferred by what they cost.

    Contexts may become longer than those that the shadows were made for. Where more than twice as many conversations
    would be sampled by now, or less than half as many, the shadows are made anew. They begin empty, all alike, and the
    rule goes on. What running requests hold of the cache no policy can use: the shadows are smaller by that.

    Args:
        candidates: by name.
        capacity: tokens of the cache that is shadowed.
        one_in: one conversation in so many is sampled.
        rule: by which one is preferred.
    """

    def __init__(
        self, candidates: Mapping[str, Policy], capacity: int, page_size: int, one_in: int, rule: Rule
    ) -> None:
        self.one_in = one_in
        """One conversation in so many is sampled."""
        self._rule = rule
        self._returns: dict[str, tuple[ReturnModel, ReturnModel]] = {}  # of each candidate, and its shadow's own
        self._candidates, self._capacity, self._page_size = dict(candidates), capacity, page_size
        self._shadows = self._new_shadows()
        self._replaced: list[ShadowCache] = []  # of which a turn gives one back: all at once would take ms
        self._turns = self._tokens = 0  # since it was last seen how many contexts fit, and their contexts
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
        """A turn was served while that candidate was in force: so it is by the shadows, if they sample it.

        That is a step for each or, where much has to go for it, several; and one in which the rule is told what they
        found.
        """
        if self._replaced:
            self._replaced.pop()
        self._count_context(turn.context_len)
        if not is_sampled(conversation.family, self.one_in):
            return
        self.prompt_tokens += turn.prompt_len
        uncached: list[int] = []
        for shadow in self._shadows.values():
            cached = yield from shadow.serve_in_steps(conversation, turn)
            uncached.append(turn.prompt_len - cached)
            yield
        threshold = next(iter(self._shadows.values())).order.policy.threshold
        for name, tokens in zip(self._shadows, uncached, strict=True):
            self.served[name].count(tokens, threshold)
            if name == in_force:
                self.served[IN_FORCE].count(tokens, threshold)
        self._rule.count_turn(turn.prompt_len, uncached, threshold)
        yield

    def resize(self, capacity: int) -> None:
        """The cache that is shadowed has room for so many tokens from now on."""
        if capacity != self._capacity:
            self._capacity = capacity
            for shadow in self._shadows.values():
                shadow.resize(capacity)

    def replace_candidate(self, name: str, policy: Policy) -> None:
        """Another version of a candidate takes its place."""
        self._candidates[name] = policy
        self._shadows[name].order.switch_policy(self._for_shadow(name, policy))

    @contextmanager
    def without(self, conversation: Conversation) -> Iterator[None]:
        """Take a conversation out of the orders of the shadows while what is known of it changes."""
        with ExitStack() as orders:
            if is_sampled(conversation.family, self.one_in):
                for shadow in self._shadows.values():
                    orders.enter_context(shadow.without(conversation))
            yield

    def _new_shadows(self) -> dict[str, ShadowCache]:
        self._returns.clear()
        return {
            name: ShadowCache(self._for_shadow(name, policy), self._capacity, self._page_size, self.one_in)
            for name, policy in self._candidates.items()
        }

    def _count_context(self, tokens: int) -> None:
        """Have shadows of another size, if contexts of late ask for it."""
        self._turns += 1
        self._tokens += tokens
        if self._turns < _SIZED_EVERY:
            return
        one_in = sparsity(self._capacity, self._turns, self._tokens)
        self._turns = self._tokens = 0
        if one_in > 2 * self.one_in or 2 * one_in < self.one_in:
            self.one_in = one_in
            self._replaced += self._shadows.values()
            self._shadows = self._new_shadows()

    def _for_shadow(self, name: str, policy: Policy) -> Policy:
        """The policy with a trim chunk that is as large a share of a shadow as it is of the cache.

        Its return model is the shadow's own, because the cache counts time by lookups and a shadow by turns. It is made
        once for each that is given: to an order another model is another policy, and all leaves get new prices.
        """
        if self._returns.get(name, (None,))[0] is not policy.returns:
            self._returns[name] = policy.returns, for_another_order(policy.returns)
        _, returns = self._returns[name]
        return replace(policy, returns=returns, trim_chunk=max(policy.trim_chunk // self.one_in, 1))
