"""What watches the turns of a server: it learns from them, and says by which policy to evict.

``etlru`` is expected tail-optimised LRU with what it expects learned while it serves. Under ``tlru`` nothing is
learned; the turns are watched all the same, for what they would have cost under lru. With both, the weight w can be
left to what was better on the same turns (``auto``).
"""

from __future__ import annotations

from dataclasses import replace

from radix_tlru.config import AUTO, Config
from radix_tlru.hints import Claims, HintedPrompt, hinted
from radix_tlru.learned import Conversation, Conversations, LearnedReturns, Turn
from radix_tlru.models import AnyPrompt, Policy, policy_for
from radix_tlru.predictors import predictor
from radix_tlru.prompts import LearnedPrompts, NextPrompts
from radix_tlru.shadow import Shadows

__all__ = ["Learner"]

_ENOUGH = 50  # returns, before which nothing is believed; turns, before which nothing is compared
_FEWEST_SHADOWED = 400  # contexts that fit into a shadow, unless the cache itself holds fewer
_MOST_SPARSE = 16  # conversations for each that a shadow serves, at most
_LESSON = 500  # turns between two estimates, once as many were seen

_WEIGHTS = (0.0, 0.2, 0.4)  # that `auto` chooses from
_LOOK = 100  # turns between two choices of w
_AS_GOOD = 1.01  # times the least TEL: as good at the tail
_HIGHEST_P95 = 1.01  # times that of lru


class Learner:
    """Learns from the turns it is told of, and says by which policy to evict.

    With ``etlru``: until enough is known that is T-LRU, decision by decision, unless LRU does better; from then on, of
    the learned policy, T-LRU and LRU, the one that did best of late on a sample of the same stream. With ``tlru`` it is
    T-LRU. With the weight ``auto``: of the policy's settings that were as good at the tail and did not raise the p95,
    the one with the largest w; where there is none, LRU.

    Args:
        config: with the policy ``etlru`` or ``tlru``. Raises ConfigError if its return model cannot be made.
        capacity: of the cache, tokens.
        page_size: tokens.
    """

    def __init__(self, config: Config, capacity: int, page_size: int) -> None:
        self._returns = LearnedReturns()
        self._prompts = LearnedPrompts() if config.next_prompt_estimate is None else None
        self._next_prompts: NextPrompts | None = None
        self._conversations = Conversations(self._returns.hazards, self._prompts)
        self._learns = config.policy == "etlru"
        self._auto = config.median_weight == AUTO
        tail = policy_for(config)
        self._predictor = None if config.return_model is None else predictor(config.return_model)
        first = replace(tail, returns=self._predictor or self._returns) if self._learns else tail
        weights = _WEIGHTS if self._auto else (tail.median_weight,)
        self._settings = range(len(weights))  # of the policy that was asked for: they differ in w alone
        self._policies = [replace(first, median_weight=weight) for weight in weights]
        names: list[str] = [config.policy, *(f"{config.policy} w={weight:g}" for weight in weights[1:])]
        if self._learns:
            self._policies.append(tail)
            names.append("tlru")
        self._policies.append(replace(tail, prompts=AnyPrompt(), median_weight=1.0))
        self.names = (*names, "lru")
        """Of the policies that are compared."""
        self._lru = len(self._policies) - 1
        self._setting = 0
        self.policy = self._policies[-2] if self._learns else self._policies[0]
        """In force now. A cache asks after each turn and lets its order follow what is new."""
        self.shadows: Shadows | None = None
        self._claims, self._hinted = Claims(capacity), False
        self._capacity, self._page_size = capacity, page_size
        self._turns = self._tokens = 0
        self._next_lesson = _ENOUGH

    def observe(self, turn: Turn, alone: bool = True) -> Conversation:
        """A turn was served; ``alone``: nothing cached continues its context. Returns what to write on its path."""
        conversation = self._conversations.turn(turn, alone)
        if self._predictor is not None:
            self._predictor.observe(turn, conversation)
        if turn.hints is not None and alone:
            conversation.hints = self._claims.admit(turn.hints, turn.context, turn.stamp)
            if not self._hinted:
                self._take_hints()
        self._turns += 1
        self._tokens += turn.context
        if self._turns < _ENOUGH:
            return conversation
        if self.shadows is None:
            self.shadows = self._shadowed()
        if self._learns and self._turns >= self._next_lesson:
            self._next_lesson = self._turns + min(max(self._turns // 4, _ENOUGH), _LESSON)
            if self._returns.hazards.returns >= _ENOUGH:
                self._learn(self.shadows)
        self.shadows.observe(conversation, turn)
        if self._auto and self._turns % _LOOK == 0:
            self._setting = self._as_good(self.shadows)
        if self._learns or self._auto:
            best = self.shadows.best
            self.policy = self._policies[best if best else self._setting]
        return conversation

    @property
    def in_force(self) -> str:
        """The name of the policy in force."""
        return self.names[self._policies.index(self.policy)]

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on, in the shadows too."""
        in_force = self._policies.index(self.policy)
        for index, policy in enumerate(self._policies):
            self._replace(index, replace(policy, threshold=threshold))
        self.policy = self._policies[in_force]

    def _take_hints(self) -> None:
        """From the first hint on: servers whose clients give none do without the steps it takes to ask for them."""
        self._hinted = True
        in_force = self._policies.index(self.policy)
        for index, policy in enumerate(self._policies):
            self._replace(index, hinted(policy))
        self.policy = self._policies[in_force]

    def _shadowed(self) -> Shadows:
        """Shadows of a size that the contexts seen so far ask for. What has yet to learn is no rival."""
        held = self._capacity * self._turns // max(self._tokens, 1)  # contexts that fit in
        one_in = min(max(held // _FEWEST_SHADOWED, 1), _MOST_SPARSE)
        rivals = (self._policies.index(self.policy), self._lru)
        return Shadows(
            self._policies, self._capacity, self._page_size, one_in, rivals, percentile=95.0 if self._auto else None
        )

    def _learn(self, shadows: Shadows) -> None:
        """Put rates and lengths to what has been seen so far."""
        if not self._returns.version:
            tlru = self._lru - 1
            shadows.rivals = (0, tlru, self._lru)
            if shadows.best == tlru:  # LRU, if that was better so far, stays until what was learned is seen to be
                shadows.best = 0
        self._returns.learn()
        prompts = self._prompts.distribution(self._next_prompts) if self._prompts else None
        if prompts is not None and prompts is not self._next_prompts:
            self._next_prompts = prompts
            for index in self._settings:
                known = HintedPrompt(prompts) if self._hinted else prompts
                self._replace(index, replace(self._policies[index], prompts=known))

    def _as_good(self, shadows: Shadows) -> int:
        """The largest w that neither the tail nor the p95 pays for; LRU if there is none."""
        least = min(shadows.tel[index] for index in self._settings)
        p95 = [quantile.value() or 0 for quantile in shadows.quantiles]
        fit = (
            index
            for index in self._settings
            if shadows.tel[index] <= _AS_GOOD * least and p95[index] <= _HIGHEST_P95 * p95[self._lru]
        )
        return max(fit, default=self._lru)

    def _replace(self, index: int, policy: Policy) -> None:
        """Put another version of a policy in its place, in its shadow too."""
        self._policies[index] = policy
        if self.shadows is not None:
            self.shadows.use(index, policy)
