"""Watches the turns of a server, learns from them, and says by which policy to evict.

``etlru`` is expected tail-optimised LRU: it learns who comes back, and how long next prompts are. ``tlru`` learns their
length alone. With a pinned Q̂ ``tlru`` learns nothing; if somebody looks at the metrics, its turns are watched all the
same, for what they would have cost under lru.

Until enough is known ``etlru`` decides as T-LRU does. From then on, of the candidates learned policy, T-LRU and LRU,
the one is in force that did best of late on a sample of the same stream (:mod:`~radix_tlru.learning.selector`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from radix_tlru.config import LOAD, Config
from radix_tlru.hints.models import HintedPrompts, with_hints
from radix_tlru.hints.quota import ClaimQuota
from radix_tlru.hints.schema import Hints
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.custom_model import custom_model
from radix_tlru.learning.hazards import Hazards
from radix_tlru.learning.prompt_lengths import NextPrompts, PromptLengths
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.learning.selector import LeadsNeeded, Selector
from radix_tlru.objective.load_weight import LoadWeight, PrefillLoad
from radix_tlru.policy.models import AnyPrompt, PromptModel
from radix_tlru.policy.policy import Policy, policy_for
from radix_tlru.policy.tel import Tally

__all__ = ["Learner"]

_ENOUGH = 50  # returns, before which nothing is believed; turns, before which nothing is compared
_FEWEST_SHADOWED = 400  # contexts that fit into a shadow, unless the cache itself holds fewer
_MOST_SPARSE = 16  # conversations for each that a shadow serves, at most
_REFIT_EVERY = 500  # turns between two estimates, once as many were seen
_PATIENCE_S = 60.0  # for which a request is taken to be queued unless it is looked up again

# Who compares after every turn sees a lead by chance sooner or later, and each change costs: what the cache holds was
# kept by another order. Where no rates are learned, no candidate is believed beforehand.
_LEADS, _LEADS_OF_TLRU = LeadsNeeded(2.0, 0.0), LeadsNeeded(1.0, 1.0)


class Learner:
    """Learns from the turns it is told of, and says by which policy to evict.

    Args:
        config: with the policy ``etlru`` or ``tlru``.
        capacity: of the cache, tokens.
        page_size: tokens.
        watched: whether anybody looks at what other policies would have cost. Where one has to be chosen, all do.

    Raises:
        ConfigError: the return model of the configuration cannot be made.
    """

    def __init__(self, config: Config, capacity: int, page_size: int, watched: bool = True) -> None:
        self._learns_returns = config.policy == "etlru"
        self._prompts = PromptLengths() if config.next_prompt_estimate is None else None
        self._learns = self._learns_returns or self._prompts is not None
        self._compares = self._learns or watched
        self._returns = LearnedReturns(needed=self._learns_returns)
        self._next_prompts: NextPrompts | None = None
        self._custom = None if config.return_model is None else custom_model(config.return_model)
        self._conversations = Conversations(
            self._returns.hazards, self._prompts, self._returns.prefix_hazards, page_size
        )
        self.load = LoadWeight() if config.weight == LOAD else None
        """What w follows; None where it is given."""
        self._first, self._fallback = config.policy, "tlru" if self._learns_returns else f"tlru Q={config.next_prompt}"
        self.candidates = self._initial_candidates(config)
        """The policies that are compared, by name; the first is the one that was asked for, the last is lru."""
        self.in_force = self._fallback if self._learns else self._first
        """Name of the candidate in force. A cache asks after each turn and lets its order follow what is new."""
        self.selector: Selector | None = None
        """Shadow caches of the candidates; None before there is anything to compare."""
        self.served = Tally()
        """What the turns so far had to prefill, by the ξ that was in force."""
        self._quota = ClaimQuota(capacity)
        self._wrappers: list[Callable[[Policy], Policy]] = []  # of every candidate, the first innermost
        self._capacity, self._page_size = capacity, page_size
        self._turns = self._tokens = 0
        self._queued = 0  # requests that were looked up since the last turn
        self._next_refit = _ENOUGH

    def _initial_candidates(self, config: Config) -> dict[str, Policy]:
        pinned = policy_for(config)
        lru = replace(pinned, prompts=AnyPrompt(), median_weight=1.0)
        if not self._learns:
            return {self._first: pinned, "lru": lru}
        tlru = replace(pinned, returns=RecentTurns())
        first = replace(tlru, returns=self._custom or self._returns) if self._learns_returns else tlru
        return {self._first: first, self._fallback: tlru, "lru": lru}

    # ---- what happens on a server ----

    def record_turn(self, turn: Turn, is_leaf: bool = True) -> Conversation:
        """A turn was served. Returns what to write on its path.

        Args:
            is_leaf: whether nothing that is cached continues its context.
        """
        conversation = self._conversations.record_turn(turn, is_leaf)
        if self._custom is not None:
            self._custom.observe(turn, conversation)
        if turn.hints is not None and is_leaf:
            self._wrap(with_hints)
        if conversation.reusable_len < turn.context_len and self._learns:  # what is pinned stays as published
            self._wrap(reusable_only)
        if with_hints in self._wrappers:
            self._take_hints(turn, conversation, is_leaf)
        self._turns += 1
        self._queued = 0
        self._tokens += turn.context_len
        self.served.count(turn.prompt_len - turn.cached_len, self.policy.threshold)
        if self._compares and self._turns >= _ENOUGH:
            self._compare(turn, conversation)
        return conversation

    def mark_queued(self, conversation: Conversation) -> None:
        """A request that continues a conversation has come, and is queued: that is a use, and no prediction.

        Of several the one that was looked up last is the most recent. One that gives up is waited for a while.
        """
        self._queued += 1
        conversation.turn_index = self._turns + self._queued / (self._queued + 1)
        conversation.queued_until = self.hazards.now + _PATIENCE_S

    def count_prefill(self, load: PrefillLoad) -> None:
        """A prefill starts; w follows the load, unless it is given."""
        if self.load is not None and self.load.count_prefill(load):
            weight = self.load.weight
            self._replace_candidates(
                {
                    name: replace(policy, median_weight=weight)
                    for name, policy in self.candidates.items()
                    if name != "lru"
                }
            )

    def end_conversation(self, conversation: Conversation) -> None:
        """A client said that a conversation is over: nobody comes back for what it shares with none."""
        self._wrap(with_hints)
        self.hazards.stop_watching(conversation)
        hints = self._quota.admit(Hints(conversation_ends=True), 0, self.hazards.now, conversation.number)
        with self.selector.without(conversation) if self.selector is not None else nullcontext():
            conversation.hints = hints

    def clear_claims(self) -> None:
        """The cache was emptied: nothing is left that clients could have claimed."""
        self._quota.clear()

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on, in the shadows too."""
        self._replace_candidates(
            {name: replace(policy, threshold=threshold) for name, policy in self.candidates.items()}
        )

    # ---- what is known ----

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.candidates[self.in_force]

    @property
    def hazards(self) -> Hazards:
        """Who returned when. Estimated, and predicted by, only where returns are learned."""
        return self._returns.hazards

    @property
    def answers(self) -> Mapping[bool, int]:
        """Conversations that returned, by whether they repeated the last answer as it was cached."""
        return self._conversations.answers.returns

    # ---- learning ----

    def _take_hints(self, turn: Turn, conversation: Conversation, is_leaf: bool) -> None:
        """Believe what fits of the hints of a turn. One without hints ends what the last one claimed."""
        given = turn.hints if is_leaf else None
        conversation.hints = self._quota.admit(given, turn.context_len, turn.stamp, conversation.number)
        if given is not None and given.conversation_ends:
            self.hazards.stop_watching(conversation)

    def _compare(self, turn: Turn, conversation: Conversation) -> None:
        """Refit now and then, replay the turn in the shadows, and put the preferred candidate in force."""
        if self.selector is None:
            self.selector = self._new_selector()
        if self._learns and self._turns >= self._next_refit:
            self._next_refit = self._turns + min(max(self._turns // 4, _ENOUGH), _REFIT_EVERY)
            if self._returns.hazards.returns >= _ENOUGH:
                self._refit(self.selector)
        self.selector.replay_turn(conversation, turn)
        if self._learns:
            self.in_force = self.selector.preferred

    def _new_selector(self) -> Selector:
        """Shadows of a size that the contexts seen so far ask for. What has yet to learn is not eligible."""
        held = self._capacity * self._turns // max(self._tokens, 1)  # contexts that fit into the cache
        one_in = min(max(held // _FEWEST_SHADOWED, 1), _MOST_SPARSE)
        eligible = tuple(name for name in self.candidates if name != self._first or not self._learns)
        leads = _LEADS if self._learns_returns else _LEADS_OF_TLRU
        return Selector(self.candidates, self._capacity, self._page_size, one_in, eligible, leads)

    def _refit(self, selector: Selector) -> None:
        """Estimate lengths, and rates where they are asked for, from what has been seen so far."""
        if self._first not in selector.eligible:
            selector.eligible = tuple(self.candidates)
            if selector.preferred == self._fallback:  # lru, if that was better so far, stays until this is seen to be
                selector.preferred = self._first
        if self._learns_returns:
            self._returns.refit()
        found = self._prompts.distribution(self._next_prompts) if self._prompts else None
        if found is None or found is self._next_prompts:
            return
        self._next_prompts = found
        model: PromptModel = HintedPrompts(found) if with_hints in self._wrappers else found
        learned: dict[str, Policy] = {self._first: replace(self.candidates[self._first], prompts=model)}
        if self._learns_returns:
            learned[self._fallback] = replace(self.candidates[self._fallback], prompts=model)
        self._replace_candidates(learned)

    def _wrap(self, wrapper: Callable[[Policy], Policy]) -> None:
        """Wrap all candidates from the first use on: a server that has none does without the steps it takes to ask."""
        if wrapper not in self._wrappers:
            self._wrappers.append(wrapper)
            self._replace_candidates({name: wrapper(policy) for name, policy in self.candidates.items()})

    def _replace_candidates(self, policies: Mapping[str, Policy]) -> None:
        """Put other versions of candidates in their places, in the shadows too."""
        for name, policy in policies.items():
            if policy is not self.candidates[name]:
                self.candidates[name] = policy
                if self.selector is not None:
                    self.selector.replace_candidate(name, policy)
