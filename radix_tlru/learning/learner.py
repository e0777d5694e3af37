"""Watches the turns of a server, learns from them, and says by which policy to evict.

``etlru`` is expected tail-optimised LRU: it learns who comes back, and how long next prompts are. lru is in force until
another candidate has won something and is worse in nothing (:mod:`~radix_tlru.learning.guard`). Where w is given, that
is a price somebody wants to pay: then ``etlru`` gives way to lru only where that has less TEL.

``tlru`` learns how long next prompts are, and gives way to lru where that has less TEL. With a pinned Q̂ it learns
nothing. If metrics are on, shadow caches still count what its turns would have cost under lru.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from radix_tlru.config import Config
from radix_tlru.hints.quota import ClaimQuota
from radix_tlru.hints.schema import Hints
from radix_tlru.learning.candidates import Candidates
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.custom_model import custom_model
from radix_tlru.learning.guard import Guard
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.least_tel import LeastTel
from radix_tlru.learning.prompt_lengths import NextPrompts, PromptLengths
from radix_tlru.learning.records import Conversation, Turn, Verdict
from radix_tlru.learning.refits import Refits
from radix_tlru.learning.reliability import ReturnsByAge
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.selector import Rule, Selector, sparsity
from radix_tlru.learning.state import LearnedState, Seen
from radix_tlru.learning.turn_features import NOTHING_KNOWN
from radix_tlru.learning.turn_log import TurnLog
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.tel import Tally

__all__ = ["Learner", "steps_of_a_slice"]

_ENOUGH = 50
"""Turns before which nothing is compared."""

_PATIENCE_S = 60.0
"""Seconds for which a request is taken to be queued unless it is looked up again."""

_PROMPTS_EVERY = 256
"""Turns between two looks at how long prompts were."""

_SLICES = 128
"""A slice is 1 / _SLICES of the steps of learning that wait, and at least one step."""

_MOST_STEPS = 8
"""Steps of a slice, at most; or those of the turns that were recorded since the last one."""

_MOST_WAITING = 4_096
"""Turns that may wait for that: a slice may take the steps of all those beyond. Fits, and shadows that evict much, make
more steps of a turn than a slice counts on: a server that is never idle would fall behind for good."""

_HELD_TURNS = 100
"""Turns over which it is averaged what running requests hold."""

_SIZES = 16
"""Sizes of the shadow caches: ranks whose pools differ by a page for a moment have to find the same one."""

_OVER = object()  # in place of a step, of a turn that has been learned from


def steps_of_a_slice(waiting: int, a_turn: int, recorded: int) -> int:
    """Steps that a slice of work takes.

    Args:
        waiting: turns whose work is to be done.
        a_turn: steps that one takes.
        recorded: turns that have come since the last slice.
    """
    most = max(_MOST_STEPS, a_turn * recorded, a_turn * (waiting - _MOST_WAITING))
    return min(max(math.ceil(waiting * a_turn / _SLICES), 1), most)


class Learner:
    """Learns from the turns it is told of, and says by which policy to evict.

    Args:
        config: with the policy ``etlru`` or ``tlru``.
        capacity: of the cache, tokens.
        page_size: tokens.
        watched: whether anybody looks at what other policies would have cost. Where one has to be chosen, all do.
        learned: by a former run. Rates, lengths of prompts and the candidate in force begin with it.

    Raises:
        ConfigError: the return model of the configuration cannot be made.
    """

    def __init__(
        self, config: Config, capacity: int, page_size: int, watched: bool = True, learned: LearnedState | None = None
    ) -> None:
        self._log, self._prompts = TurnLog(), PromptLengths()
        self._conversations = Conversations(self._log, self._prompts, page_size)
        self._custom = None if config.return_model is None else custom_model(config.return_model)
        self._returns = LearnedReturns()
        self._refits = Refits(self._log) if config.policy == "etlru" else None
        self._next_prompts: NextPrompts | None = None
        self._learns_prompts = config.next_prompt_estimate is None
        self._chooses = config.policy == "etlru" or self._learns_prompts
        self._watched = watched
        self.candidates = Candidates(config, self._custom or self._returns)
        """The policies that are compared."""
        is_free = config.policy == "etlru" and config.median_weight is None
        self.rule: Rule = (Guard if is_free else LeastTel)(list(self.candidates))
        """By which one is preferred."""
        self.in_force = self.rule.preferred
        """Name of the candidate in force. A cache asks after each turn and lets its order follow what is new."""
        self.selector: Selector | None = None
        """Shadow caches of the candidates; None before there is anything to compare."""
        self.served = Tally()
        """What the turns so far had to prefill, by the ξ that was in force."""
        self._quota = ClaimQuota(capacity)
        self._capacity, self._page_size = capacity, page_size
        self._held = 0.0  # tokens that running requests hold, the mean of late
        self.room = capacity
        """Tokens of the cache that running requests left to others of late, rounded to a sixteenth of it."""
        self._turns = self._tokens = 0  # turns that were recorded, and tokens of their contexts
        self._turns_at_slice = 0  # of those, the turns that were recorded by the last slice
        self._learned = 0  # turns that were learned from, the one under way among them
        self._unlearned: deque[tuple[Conversation, Turn]] = deque()
        self._lesson: Iterator[None] | None = None  # what is left of the turn that is being learned from
        self._queued = 0  # requests that were looked up since the last turn
        self._seen_before = Seen()  # by former runs
        if learned is not None:
            self._restore(learned)

    # ---- what happens on a server ----

    def record_turn(
        self, turn: Turn, is_leaf: bool = True, held: int = 0, *, learns_later: bool = False
    ) -> Conversation:
        """A turn was served. Returns what to write on its path.

        Args:
            is_leaf: whether nothing that is cached continues its context.
            held: tokens of the cache that requests which run now keep from being evicted.
            learns_later: learn from it at the next call of :meth:`learn`, and not now.
        """
        conversation = self._conversations.record_turn(turn, is_leaf)
        if self._custom is not None:
            self._custom.observe(turn, conversation)
        if turn.hints is not None and is_leaf:
            self.candidates.take_hints()
        if conversation.reusable_len < turn.context_len and self._chooses:  # what is pinned stays as published
            self.candidates.evict_unreusable()
        if self.candidates.takes_hints:
            self._take_hints(turn, conversation, is_leaf)
        self._turns += 1
        self._queued = 0
        self._tokens += turn.context_len
        self._held += (held - self._held) / _HELD_TURNS
        self.room = self._capacity * max(_SIZES - round(_SIZES * self._held / self._capacity), 1) // _SIZES
        self.served.count(turn.prompt_len - turn.cached_len, self.policy.threshold)
        self._unlearned.append((conversation, turn.without_tokens()))
        if not learns_later:
            self.learn()
        return conversation

    def newcomer(self) -> Conversation:
        """What to write on a path whose turn is not recorded, or that has none: it was used now."""
        return Conversation(self.now, 0, 0, 0, 0, features=NOTHING_KNOWN, turn_index=self._turns)

    def record_prefill(self, turn: Turn) -> Conversation | None:
        """The beginning of a conversation's next prompt was prefilled before that prompt came.

        That is no turn and no return, and the shadows of all candidates leave it out.

        Returns:
            What to write on its path; None: it belongs to no conversation.
        """
        return self._conversations.prefilled(turn)

    def learn(self, *, a_slice: bool = False) -> int:
        """Learn from the turns that were recorded and not learned from yet, in their order. Returns those finished.

        Learning takes longer than recording. So a server learns when the answers are out, and slice by slice, as the
        answers of others wait meanwhile.

        Args:
            a_slice: a step of a turn, or a 128th of the steps that wait, if those are more; 8 steps at most, or those
                of as many turns as were recorded since the last slice.
        """
        steps, turns = math.inf, 0
        if a_slice:
            a_turn = 2 + len(self.candidates)  # each candidate's shadow, the verdict, the end
            steps = steps_of_a_slice(len(self._unlearned), a_turn, self._turns - self._turns_at_slice)
        self._turns_at_slice = self._turns
        while steps > 0:
            if self._lesson is None:
                if not self._unlearned:
                    break
                self._lesson = self._learn_from(*self._unlearned.popleft())
            if next(self._lesson, _OVER) is _OVER:
                self._lesson = None
                turns += 1
            steps -= 1
        return turns

    @property
    def unlearned(self) -> int:
        """Turns that were recorded and not learned from yet, the one that is being learned from among them."""
        return len(self._unlearned) + (self._lesson is not None)

    def mark_queued(self, conversation: Conversation) -> None:
        """A request that continues a conversation has come, and is queued: that is a use, and no prediction.

        Of several the one that was looked up last is the most recent. One that gives up is waited for a while.
        """
        self._queued += 1
        conversation.turn_index = self._turns + self._queued / (self._queued + 1)
        conversation.queued_until = self.now + _PATIENCE_S

    def end_conversation(self, conversation: Conversation) -> None:
        """A client said that a conversation is over: nobody comes back for what it shares with none."""
        self.candidates.take_hints()
        self._log.write_end(conversation.log_serial)
        ends, claimed = Hints(conversation_ends=True), conversation.context_len
        hints = self._quota.admit(ends, 0, self.now, conversation.number, repeated=claimed)
        with self.selector.without(conversation) if self.selector is not None else nullcontext():
            conversation.hints = hints

    def clear_claims(self) -> None:
        """The cache was emptied: nothing is left that clients could have claimed."""
        self._quota.clear()

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on, in the shadows too."""
        self.candidates.use_threshold(threshold)

    # ---- what is known ----

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.candidates[self.in_force]

    @property
    def now(self) -> float:
        """The newest stamp seen, s."""
        return self._log.now

    @property
    def returns_by_age(self) -> list[ReturnsByAge]:
        """Returns predicted and seen, by span of ages; nothing where returns are not learned."""
        return self._refits.reliability.by_age if self._refits is not None else []

    @property
    def answers(self) -> Mapping[bool, int]:
        """Conversations that returned, by whether they repeated the last answer as it was cached."""
        return self._conversations.answers.returns

    def snapshot(self) -> LearnedState:
        """What was learned so far, for another run to begin with. It shares nothing that changes."""
        before = self._seen_before
        return LearnedState(
            self._log.snapshot(),
            self._refits.model if self._refits is not None else HazardModel(),
            self._conversations.endings.frequent,
            self._conversations.answers.snapshot(),
            self._prompts.snapshot(),
            Seen(
                before.turns + self._turns,
                before.conversations + self._conversations.begun,
                before.returns + self._log.returns,
            ),
            self.rule.snapshot() if isinstance(self.rule, Guard) else Verdict(),
        )

    # ---- learning ----

    def _restore(self, learned: LearnedState) -> None:
        """Begin with what a former run learned."""
        self._log.restore(learned.turns)
        self._conversations.endings.restore(learned.endings)
        self._conversations.answers.restore(learned.answers)
        self._prompts.restore(learned.lengths)
        self._seen_before = learned.seen
        if self._refits is not None:
            self._refits.restore(learned.model)
            self._returns.use_model(learned.model)
        if self._learns_prompts:
            self._follow_lengths()
        if isinstance(self.rule, Guard):
            self.rule.restore(learned.verdict)
            self.in_force = self.rule.preferred

    def _take_hints(self, turn: Turn, conversation: Conversation, is_leaf: bool) -> None:
        """Believe what fits of the hints of a turn. One without hints ends what the last one claimed."""
        given = turn.hints if is_leaf else None
        repeated = (turn.prompt_len - conversation.new_len) // self._page_size * self._page_size
        # Claims hold from the conversation's stamp on, which is later than the turn's if others were served meanwhile.
        now, number = conversation.stamp, conversation.number
        conversation.hints = self._quota.admit(given, turn.context_len, now, number, repeated)
        if given is not None and given.conversation_ends:
            self._log.write_end(conversation.log_serial)

    def _learn_from(self, conversation: Conversation, turn: Turn) -> Iterator[None]:
        """Learn from a turn, step by step. What has nothing to do is no step: each costs a round of the scheduler."""
        self._learned += 1
        if self._refits is not None and self._refits.under_way:
            if self._refits.count_turn():
                self._returns.use_model(self._refits.model)
            yield
        if self._learns_prompts and self._learned % _PROMPTS_EVERY == 0:
            self._follow_lengths()
            yield
        if self.selector is None:
            if self._learned < _ENOUGH or not (self._chooses or self._watched):
                return
            one_in = sparsity(self.room, self._turns, self._tokens)
            self.selector = Selector(self.candidates, self.room, self._page_size, one_in, self.rule)
            self.candidates.on_new_version = self.selector.replace_candidate
        self.selector.resize(self.room)
        yield from self.selector.replay_turn(conversation, turn, self.in_force)
        if self._chooses:
            self.in_force = self.selector.preferred

    def _follow_lengths(self) -> None:
        """Have the candidates expect prompts as long as those seen lately."""
        found = self._prompts.distribution(self._next_prompts)
        if found is None or found is self._next_prompts:
            return
        self._next_prompts = found
        self.candidates.expect_prompts(found)
