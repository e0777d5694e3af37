"""What watches the turns of a server: it learns from them, and says by which policy to evict.

``etlru`` is expected tail-optimised LRU with what it expects learned while it serves. Under ``tlru`` nothing is
learned; the turns are watched all the same, for what they would have cost under lru.
"""

from __future__ import annotations

from dataclasses import replace

from radix_tlru.config import Config
from radix_tlru.learned import Conversation, Conversations, LearnedReturns, Turn
from radix_tlru.models import AnyPrompt, policy_for
from radix_tlru.prompts import LearnedPrompts, NextPrompts
from radix_tlru.shadow import Shadows

__all__ = ["Learner"]

_ENOUGH = 50  # returns, before which nothing is believed
_FEWEST_SHADOWED = 400  # contexts that fit into a shadow, unless the cache itself holds fewer
_MOST_SPARSE = 16  # conversations for each that a shadow serves, at most
_LESSON = 500  # turns between two estimates, once as many were seen


class Learner:
    """Learns from the turns it is told of, and says by which policy to evict.

    With ``etlru``: until enough is known that is T-LRU, decision by decision; from then on, of the learned policy,
    T-LRU and LRU, the one that did best of late on a sample of the same stream. With ``tlru`` it is T-LRU.

    Args:
        config: with the policy ``etlru`` or ``tlru``.
        capacity: of the cache, tokens.
        page_size: tokens.
    """

    def __init__(self, config: Config, capacity: int, page_size: int) -> None:
        self._returns = LearnedReturns()
        self._prompts = LearnedPrompts()
        self._next_prompts: NextPrompts | None = None
        self._conversations = Conversations(self._returns.hazards, self._prompts)
        self._learns = config.policy == "etlru"
        tail = policy_for(config)
        self._policies = [tail, replace(tail, prompts=AnyPrompt(), median_weight=1.0)]
        if self._learns:
            self._policies.insert(0, replace(tail, returns=self._returns))
        self.names = ("etlru", "tlru", "lru")[-len(self._policies) :]
        """Of the policies that are compared."""
        self.policy = tail
        """In force now. A cache asks after each turn and lets its order follow what is new."""
        self.shadows: Shadows | None = None
        self._capacity, self._page_size = capacity, page_size
        self._turns = self._tokens = 0
        self._next_lesson = _ENOUGH

    def observe(self, turn: Turn, alone: bool = True) -> Conversation:
        """A turn was served; ``alone``: nothing cached continues its context. Returns what to write on its path."""
        conversation = self._conversations.turn(turn, alone)
        self._turns += 1
        self._tokens += turn.context
        if self._learns and self._turns >= self._next_lesson:
            self._next_lesson = self._turns + min(max(self._turns // 4, _ENOUGH), _LESSON)
            if self._returns.hazards.returns >= _ENOUGH:
                self._learn()
        if self._returns.version or (not self._learns and self._turns >= _ENOUGH):
            if self.shadows is None:
                held = self._capacity * self._turns // max(self._tokens, 1)  # contexts that fit in
                one_in = min(max(held // _FEWEST_SHADOWED, 1), _MOST_SPARSE)
                self.shadows = Shadows(self._policies, self._capacity, self._page_size, one_in)
            self.shadows.observe(conversation, turn)
            if self._learns:
                self.policy = self._policies[self.shadows.best]
        return conversation

    @property
    def in_force(self) -> str:
        """The name of the policy in force."""
        return self.names[self._policies.index(self.policy)]

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on, in the shadows too."""
        in_force = self._policies.index(self.policy)
        for index, policy in enumerate(self._policies):
            self._policies[index] = replace(policy, threshold=threshold)
            if self.shadows is not None:
                self.shadows.use(index, self._policies[index])
        self.policy = self._policies[in_force]

    def _learn(self) -> None:
        """Put rates and lengths to what has been seen so far."""
        self._returns.learn()
        prompts = self._prompts.distribution(self._next_prompts)
        if prompts is not None and prompts is not self._next_prompts:
            self._next_prompts = prompts
            self._policies[0] = replace(self._policies[0], prompts=prompts)
            if self.shadows is not None:
                self.shadows.use(0, self._policies[0])
