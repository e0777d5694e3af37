"""What watches the turns of a server: it learns from them, and says by which policy to evict.

``etlru`` is expected tail-optimised LRU with what it expects learned while it serves: who comes back, and how long the
next prompts are. ``tlru`` learns their length alone. Where Q̂ is pinned it learns nothing; if somebody looks, the turns
are watched all the same, for what they would have cost under lru. With both, the weight w can be left to what was
better on the same turns (``auto``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from radix_tlru.config import AUTO, LOAD, Config
from radix_tlru.hints.schema import Claims, HintedPrompt, Hints, hinted
from radix_tlru.learning.conversations import Conversation, Conversations, Turn
from radix_tlru.learning.custom_model import predictor
from radix_tlru.learning.hazards import Hazards
from radix_tlru.learning.prompt_lengths import LearnedPrompts, NextPrompts
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.reuse import said_again
from radix_tlru.learning.shadow_cache import Shadows
from radix_tlru.objective.load_weight import LoadWeight
from radix_tlru.policy.models import AnyPrompt, Policy, PromptModel, policy_for
from radix_tlru.policy.tel import Tally

__all__ = ["Learner"]

_ENOUGH = 50  # returns, before which nothing is believed; turns, before which nothing is compared
_FEWEST_SHADOWED = 400  # contexts that fit into a shadow, unless the cache itself holds fewer
_MOST_SPARSE = 16  # conversations for each that a shadow serves, at most
# Standard deviations by which others must have done better to be preferred to learned rates, and by which these must to
# be preferred again. Who asks after every turn sees a lead by chance sooner or later, and each change costs: what the
# cache holds was kept by another order. Where no rates are learned, nothing is believed of any beforehand.
_BELIEVED, _UNKNOWN = (2.0, 0.0), (1.0, 1.0)
_LESSON = 500  # turns between two estimates, once as many were seen
_PATIENCE = 60.0  # s, for which a request is taken to wait unless it is told of again

_WEIGHTS = (0.05, 0.2, 0.6)  # that `auto` chooses from
_LOOK = 50  # turns between two choices of w
_AS_GOOD = 1.01  # times the least TEL: as good at the tail
_GOOD_ENOUGH = 1.05  # likewise, while the median is above that of lru
_REPAID = 2.0  # times the turns that were lost, that a setting must be ahead by to be tried: to change costs some, too
_ABOUT = 0.8  # of the w that the load asks for: a setting that is enough
_MOVED = 0.1  # of the median, below which it is taken to be where it was


class Learner:
    """Learns from the turns it is told of, and says by which policy to evict.

    Until enough is known that is T-LRU, decision by decision, unless LRU does better; from then on, of the learned
    policy, T-LRU and LRU, the one that did best of late on a sample of the same stream. With ``tlru`` and a pinned Q̂
    there is nothing to learn: it is T-LRU. With the weight ``auto`` it begins with LRU; from then on, of the policy's
    settings that are as good at the tail, it is the one with the lowest median, for as long as what was in force keeps
    the p95 below LRU's. There w counts from lru's median on (``Policy.median``).

    Args:
        config: with the policy ``etlru`` or ``tlru``. Raises ConfigError if its return model cannot be made.
        capacity: of the cache, tokens.
        page_size: tokens.
        watched: whether anybody looks at what other policies would have cost; where one has to be chosen, all do.
    """

    def __init__(self, config: Config, capacity: int, page_size: int, watched: bool = True) -> None:
        self._foretells = config.policy == "etlru"  # who comes back
        self._returns = LearnedReturns(asked=self._foretells)
        self._prompts = LearnedPrompts() if config.next_prompt_estimate is None else None
        self._next_prompts: NextPrompts | None = None
        rates = self._returns
        self._conversations = Conversations(rates.hazards, self._prompts, rates.prefixes, page_size)
        self._learns = self._foretells or self._prompts is not None
        self._auto = config.weight == AUTO
        self.load = LoadWeight() if config.weight in (LOAD, AUTO) else None
        """What w follows, or with ``auto`` does not fall below; None where it is given."""
        self._compares = self._learns or self._auto or watched
        pinned = policy_for(config)
        tail = replace(pinned, returns=RecentTurns()) if self._learns else pinned
        weights: tuple[float, ...] = _WEIGHTS if self._auto else (tail.median_weight,)
        self._predictor = None if config.return_model is None else predictor(config.return_model)
        first = replace(tail, returns=self._predictor or self._returns) if self._foretells else tail
        self._settings = range(len(weights))  # of the policy that was asked for: they differ in w alone
        self._median = 0  # of lru lately, tokens
        self._weights = weights
        self._policies = self._weighed(first)
        names: list[str] = [config.policy, *(f"{config.policy} w={weight:g}" for weight in weights[1:])]
        if self._learns:
            self._policies.append(tail)
            names.append("tlru" if self._foretells else f"tlru Q={config.next_prompt}")
        self._policies.append(replace(pinned, prompts=AnyPrompt(), median_weight=1.0))
        self.names = (*names, "lru")
        """Of the policies that are compared."""
        self.shadow_names = (*self.names, "auto") if self._auto else self.names
        """Of the shadows."""
        self._lru = len(self._policies) - 1
        self.policy = self._policies[-1 if self._auto else -2 if self._learns else 0]
        """In force now. A cache asks after each turn and lets its order follow what is new."""
        self.shadows: Shadows | None = None
        """One of each policy, and with ``auto`` one of what was in force, whichever it was."""
        self.served = Tally()
        """What the turns so far had to prefill, by the ξ that was in force."""
        self._claims = Claims(capacity)
        self._wrappers: list[Callable[[Policy], Policy]] = []  # of every policy, the first innermost
        self._capacity, self._page_size = capacity, page_size
        self._turns = self._tokens = 0
        self._waiting = 0  # requests that were told of since the last turn
        self._next_lesson = _ENOUGH

    def observe(self, turn: Turn, alone: bool = True) -> Conversation:
        """A turn was served; ``alone``: nothing cached continues its context. Returns what to write on its path."""
        conversation = self._conversations.turn(turn, alone)
        if self._predictor is not None:
            self._predictor.observe(turn, conversation)
        if turn.hints is not None and alone:
            self._wrap(hinted)
        if conversation.reach < turn.context and (self._learns or self._auto):  # what is pinned stays as published
            self._wrap(said_again)
        if hinted in self._wrappers:  # a turn without hints ends what the last one claimed
            said = turn.hints if alone else None
            conversation.hints = self._claims.admit(said, turn.context, turn.stamp, conversation.number)
            if said is not None and said.conversation_ends:
                self.hazards.forget(conversation)
        self._turns += 1
        self._waiting = 0
        self._tokens += turn.context
        self.served.add(turn.prompt - turn.cached, self.policy.threshold)
        if self._turns < _ENOUGH or not self._compares:
            return conversation
        if self.shadows is None:
            self.shadows = self._shadowed()
        if self._learns and self._turns >= self._next_lesson:
            self._next_lesson = self._turns + min(max(self._turns // 4, _ENOUGH), _LESSON)
            if self._returns.hazards.returns >= _ENOUGH:
                self._learn(self.shadows)
        self.shadows.observe(conversation, turn)
        if not self._auto:
            self._enforce(self.shadows.best if self._learns else 0)
        elif self._turns % _LOOK == 0:
            self._follow_median(self.shadows)
            self._enforce(self._chosen(self.shadows))
        return conversation

    def awaited(self, conversation: Conversation) -> None:
        """A request that goes on with a conversation has come, and waits to be served: that is a use, and no guess.

        Of several the one that is told of last is the most recent. Who gives up waiting is waited for a while.
        """
        self._waiting += 1
        conversation.served = self._turns + self._waiting / (self._waiting + 1)
        conversation.due = self.hazards.now + _PATIENCE

    def prefilled(self, tokens: int, waiting: int, waited: float = 0.0) -> None:
        """So many tokens are prefilled, so many others wait for them, and some have ``waited`` for so many before."""
        if self.load is None or not self.load.prefilled(tokens, waiting, waited):
            return
        weight, kept = self.load.weight, len(self._settings) if self._auto else 0
        if not self._auto:
            self._weights = (weight,)
        weighed = (replace(policy, median_weight=weight) for policy in self._policies[kept : self._lru])
        self._replace([*self._policies[:kept], *weighed])

    def ended(self, conversation: Conversation) -> None:
        """Since its last turn a conversation was said to be over: nobody comes back for what it shares with none."""
        self._wrap(hinted)
        self.hazards.forget(conversation)
        hints = self._claims.admit(Hints(conversation_ends=True), 0, self.hazards.now, conversation.number)
        with self.shadows.put_down(conversation) if self.shadows is not None else nullcontext():
            conversation.hints = hints

    def forget_claims(self) -> None:
        """Nothing is cached any more that clients could have claimed."""
        self._claims.forget()

    @property
    def in_force(self) -> str:
        """The name of the policy in force."""
        return self.names[self._policies.index(self.policy)]

    @property
    def hazards(self) -> Hazards:
        """Who returned when; estimated from, and foretelling, only where it is learned."""
        return self._returns.hazards

    @property
    def continued(self) -> dict[bool, int]:
        """Conversations that went on, by whether with the last answer as it was cached."""
        return self._conversations.continued

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on, in the shadows too."""
        self._replace([replace(policy, threshold=threshold) for policy in self._policies])

    def _enforce(self, index: int) -> None:
        """Put a policy in force, and in the place of what was in the shadow that is always of what is."""
        policy = self._policies[index]
        if policy is not self.policy:
            self.policy = policy
            if self._auto and self.shadows is not None:
                self.shadows.use(len(self._policies), policy)

    def _wrap(self, wrapper: Callable[[Policy], Policy]) -> None:
        """From the first use on: servers that have none do without the steps it takes to ask."""
        if wrapper not in self._wrappers:
            self._wrappers.append(wrapper)
            self._replace([wrapper(policy) for policy in self._policies])

    def _weighed(self, policy: Policy) -> list[Policy]:
        """The settings of a policy."""
        return [replace(policy, median_weight=weight, median=self._median) for weight in self._weights]

    def _replace(self, policies: list[Policy]) -> None:
        """Put other versions of the first policies in their places, and where one is new in its shadow too."""
        in_force, before = self._policies.index(self.policy), self._policies
        self._policies = [*policies, *before[len(policies) :]]
        if self.shadows is not None:
            for index, policy in enumerate(policies):
                if policy is not before[index]:
                    self.shadows.use(index, policy)
        self._enforce(in_force)

    def _shadowed(self) -> Shadows:
        """Shadows of a size that the contexts seen so far ask for. What has yet to learn is no rival."""
        held = self._capacity * self._turns // max(self._tokens, 1)  # contexts that fit in
        one_in = min(max(held // _FEWEST_SHADOWED, 1), _MOST_SPARSE)
        rivals = (self._lru - 1 if self._learns else 0, self._lru)
        policies, bar = ([*self._policies, self.policy], self._lru) if self._auto else (self._policies, None)
        chance = _BELIEVED if self._foretells else _UNKNOWN
        return Shadows(policies, self._capacity, self._page_size, one_in, rivals, bar, chance)

    def _learn(self, shadows: Shadows) -> None:
        """Put lengths, and rates where they are asked for, to what has been seen so far."""
        tlru = self._lru - 1
        if shadows.rivals[0] == tlru:
            shadows.rivals = (0, tlru, self._lru)
            if shadows.best == tlru:  # LRU, if that was better so far, stays until what was learned is seen to be
                shadows.best = 0
        if self._foretells:
            self._returns.learn()
        prompts = self._prompts.distribution(self._next_prompts) if self._prompts else None
        if prompts is not None and prompts is not self._next_prompts:
            self._next_prompts = prompts
            model: PromptModel = HintedPrompt(prompts) if hinted in self._wrappers else prompts
            learned = self._weighed(replace(self._policies[0], prompts=model))
            if self._foretells:
                recent = replace(self._policies[tlru], returns=RecentTurns(), prompts=prompts)
                for wrapper in self._wrappers:
                    recent = wrapper(recent)
                learned.append(recent)
            self._replace(learned)

    def _follow_median(self, shadows: Shadows) -> None:
        """Let w count from where lru's median is."""
        median = shadows.quantiles[self._lru].value(50.0)
        if median is not None and abs(median - self._median) > _MOVED * self._median:
            self._median = median
            self._replace(self._weighed(self._policies[0]))

    def _chosen(self, shadows: Shadows) -> int:
        """What ``auto`` has in force: the lowest median that the tail does not pay for, while that is ahead of LRU.

        What was in force has a shadow of its own, as to change settings costs, too. Unless it made clearly fewer turns
        late than LRU, there is nothing to be lost: then the setting that is furthest ahead itself, or else LRU. What
        settings have lost is to be won back twice before the next is tried. Shadows see uncached tokens, not who waits
        for them: what weighs a token less than those do is no choice.
        """
        least = _ABOUT * self.load.weight if self.load is not None else 0.0
        settings = [index for index in self._settings if self._weights[index] >= least]
        if shadows.ahead(-1) >= 0:
            return self._as_good(shadows, (shadows.best,) if shadows.best else settings)
        lost = _REPAID * shadows.behind(-1)
        ahead = [index for index in settings if shadows.ahead(index) > lost]
        return max(ahead, key=shadows.ahead, default=self._lru)

    def _as_good(self, shadows: Shadows, among: Sequence[int]) -> int:
        """Of these and LRU, the one with the lowest median of those as good at the tail as the best of these.

        Where that median is above LRU's, the tail may pay somewhat for a lower one.
        """
        least = min(shadows.tel[index] for index in among)
        p50 = [quantile.value(50.0) or 0 for quantile in shadows.quantiles]
        chosen = self._lru
        for times in (_AS_GOOD, _GOOD_ENOUGH):
            fit = (index for index in (self._lru, *among) if shadows.tel[index] <= times * least)
            chosen = min(fit, key=p50.__getitem__)  # of equals, LRU
            if p50[chosen] <= p50[self._lru]:
                break
        return chosen
