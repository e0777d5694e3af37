"""What of a cached context the next prompt repeats, and what it does not.

Most chat templates leave reasoning out of the next prompt. Some write an answer, for instance a tool call, in other
tokens than the model did. Then no later prompt uses what is cached behind the last prompt. Its return rate is 0,
whatever the rate of its conversation. It is evicted before anything that costs something, and before what is TEL-safe.

Many templates repeat reasoning while a chain of tool calls goes on. When a user speaks next, they leave out all of it.
Then nothing behind the first prompt of the chain is of use to the next one.

Whether a server's templates do this is learned from returns (:class:`AnswerReuse`). A policy is told by
:func:`reusable_only`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from radix_tlru.learning.records import Conversation
from radix_tlru.policy.models import Group, Leaf, ReturnModelWrapper
from radix_tlru.policy.policy import Policy

__all__ = ["AnswerReuse", "AnswerShares", "ReusableOnly", "reusable_only"]

_MOVES = 0.05  # weight of one return in the running shares
_NEARLY_ALL = 0.99  # share of returns that repeat answers, from which on all are taken to
_NEVER = Group(0, math.inf)


class AnswerShares(NamedTuple):
    """What is learned of answers: shares of returns, each moved by every return a little."""

    spoken: float = 1.0  # that repeat an answer without reasoning as it was cached
    thought: float = 0.0  # that repeat one with reasoning
    rewritten: float = 1.0  # of the others, those that are long enough to hold it in other words
    as_cached: int = 0  # returns that repeated the answer as it was cached
    not_as_cached: int = 0  # returns that did not
    chains: float = 0.0  # that leave out a whole chain, of those that leave out its last answer
    by_ending: tuple[tuple[bool, int, float], ...] = ()
    """``thought`` and ``spoken`` by how the answer ended: with reasoning or not, the ending, the share."""


class AnswerReuse:
    """How many of the next prompts repeat the last answer as it was cached, of those with reasoning and of others.

    Until anything is seen, answers are taken to be repeated, and reasoning is not. It also depends on how an answer
    ended. The templates of many models repeat reasoning after a tool call, and leave it out when a user speaks.
    """

    def __init__(self) -> None:
        self._share = {False: 1.0, True: 0.0}  # of returns that repeat the answer, by whether it holds reasoning
        self._by_ending: dict[tuple[bool, int], float] = {}  # the same, and by how the answer ended
        self._whole_chains = 0.0  # of returns that leave out the last answer of a chain, those that leave out all of it
        self._rewritten = 1.0  # of the others, the share that is long enough to hold it in other words
        self.returns = {True: 0, False: 0}
        """Conversations that returned, by whether they repeated the last answer as cached, where one was."""

    def snapshot(self) -> AnswerShares:
        """What was learned so far."""
        return AnswerShares(
            *(self._share[False], self._share[True], self._rewritten, self.returns[True], self.returns[False]),
            chains=self._whole_chains,
            by_ending=tuple((*kind, share) for kind, share in sorted(self._by_ending.items())),
        )

    def restore(self, shares: AnswerShares) -> None:
        """Begin with what a former run learned."""
        self._share = {False: shares.spoken, True: shares.thought}
        self._by_ending = {(thought, ending): share for thought, ending, share in shares.by_ending}
        self._rewritten, self._whole_chains = shares.rewritten, shares.chains
        self.returns = {True: shares.as_cached, False: shares.not_as_cached}

    def is_repeated(self, conversation: Conversation) -> bool:
        """Whether most next prompts repeat an answer such as its last one."""
        return self._share_of(conversation) >= 0.5

    def _share_of(self, conversation: Conversation) -> float:
        has_thought = conversation.thought_len > 0
        return self._by_ending.get((has_thought, conversation.ending), self._share[has_thought])

    def is_sometimes_left_out(self, thought_len: int) -> bool:
        """Whether more than a few next prompts do not."""
        return self._share[thought_len > 0] < _NEARLY_ALL

    @property
    def is_rewritten(self) -> bool:
        """Whether most prompts that do not repeat an answer as cached hold it in other words."""
        return self._rewritten >= 0.5

    def count_return(self, conversation: Conversation, *, as_cached: bool) -> None:
        """The conversation returned, with its last answer as that was cached, or not."""
        self.returns[as_cached] += 1
        has_thought, share = conversation.thought_len > 0, self._share_of(conversation)
        self._by_ending[has_thought, conversation.ending] = share + _MOVES * (as_cached - share)
        self._share[has_thought] += _MOVES * (as_cached - self._share[has_thought])

    @property
    def leaves_out_chains(self) -> bool:
        """Whether most prompts that leave out the last answer of a chain of tool calls leave out all of the chain."""
        return self._whole_chains >= 0.5

    def count_chain(self, left_out: bool) -> None:
        """A prompt leaves out the last answer of a chain, or all of the chain."""
        self._whole_chains += _MOVES * (left_out - self._whole_chains)

    def count_rewritten(self, rewritten: bool) -> None:
        """A prompt that does not repeat the last answer as cached is long enough to hold it, or not."""
        self._rewritten += _MOVES * (rewritten - self._rewritten)


class ReusableOnly(ReturnModelWrapper):
    """A return model by which a conversation returns to its first ``reusable_len`` tokens, and no further."""

    def group(self, leaf: Leaf, now: float) -> Group:
        return self.lasting_group(leaf, now, math.inf)

    def lasting_group(self, leaf: Leaf, now: float, least: float) -> Group:
        conversation = leaf.conversation
        # A leaf that is evicted whole returns if any of it does.
        end = leaf.end if leaf.usable_without is None else leaf.start + 1
        if conversation is not None and conversation.reusable_len < end:
            return _NEVER
        group = self.inner_group(leaf, now, least)
        return Group(group.number + (group.number >= 0), group.expiry)  # a model of one's own may have some below 0

    def rate(self, group: int, key: float, now: float) -> float:
        return self._returns.rate(group - (group > 0), key, now) if group else 0.0

    def floor(self, leaf: Leaf) -> int:
        floor = super().floor(leaf)
        reusable: int = leaf.conversation.reusable_len if leaf.conversation is not None else leaf.end
        return max(floor, reusable) if reusable < leaf.end else floor


def reusable_only(policy: Policy) -> Policy:
    """The same policy, by which nobody returns to what no next prompt repeats."""
    return replace(policy, returns=ReusableOnly(policy.returns))
