"""What is learned of conversations while they are served: which are taken up again, and how soon.

The cache tells a :class:`Learner` of every request it has served (:meth:`Learner.observe`) and writes what comes back
onto the path of the request; :class:`LearnedReturns` reads it from there. Nothing of the content is looked at: a
conversation is known by a fingerprint of its tokens, so that one whose tokens were all evicted is still recognised when
it returns. Time is in stamps that travel with the requests (s), and "now" is the newest stamp seen: learners that are
told the same learn the same.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from radix_tlru.contexts import Contexts, Fingerprint, Rung
from radix_tlru.hazards import BANDS, Class, Hazards, band_of, gittins, runs
from radix_tlru.hints import Hints
from radix_tlru.models import Group, Leaf, Recency
from radix_tlru.prefixes import SharedPrefix, SharedPrefixes, Use
from radix_tlru.prompts import LearnedPrompts, kind_of

__all__ = ["Conversation", "Conversations", "LearnedReturns", "RecentTurns", "Turn"]

_MOST_REMEMBERED = 50_000  # conversations
_TURNS = 5  # from the 5th return on, conversations are alike
_WAITS = (60.0, 120.0, 240.0)  # s, between the buckets of the last wait
_KEEPING = 0.05  # by which each return moves the share of those whose prompts have what was thought


class Turn(NamedTuple):
    """A request that has been served. Lengths in tokens."""

    stamp: float  # when it arrived, s
    prompt: int  # its prompt, the history included
    answer: int
    context: int  # what of both can be cached, in whole pages
    cached: int  # what of the prompt was found cached
    fingerprint: Fingerprint  # of the context
    hints: Hints | None = None  # what the client said of the conversation
    asked: Sequence[int] = ()  # token ids of the prompt and of the answer, where they are known
    answered: Sequence[int] = ()
    thought: int = 0  # tokens of the answer that came before what was said, which many chat templates then leave out


class Conversation(Use):
    """A conversation as of its last turn."""

    __slots__ = (
        "hints",
        "kind",
        "length",
        "noted",
        "number",
        "prefix",
        "reach",
        "remainder",
        "served",
        "shared",
        "turn",
        "whole",
    )

    def __init__(
        self,
        cls: Class,
        stamp: float,
        number: int,
        turn: int,
        length: int,
        shared: int,
        remainder: int = 0,
        reach: int | None = None,
    ) -> None:
        super().__init__(cls, stamp)
        self.number = number  # of the conversation, in order of first turns
        self.turn = turn  # turns before this one
        self.length = length  # tokens of its context
        self.shared = shared  # tokens of it that its first turn found cached
        self.reach = length if reach is None else reach  # tokens of its context that the next prompt begins with
        self.whole: int | None = None  # what stands for all of it, where that is more
        # Tokens said that could not be cached: the next prompt has them for certain. Less those of its context that no
        # next prompt has.
        self.remainder = remainder
        self.kind = kind_of(turn, length)  # by which its next prompt is judged
        self.served = 0  # turns, of all conversations, up to this one
        self.prefix: SharedPrefix | None = None  # that it began with, if others did, too
        self.hints: Hints | None = None  # what is believed of what the client said
        self.noted: Any = None  # by a predictor


class Conversations:
    """Recognises conversations by their contexts. Memory: the last 50,000."""

    def __init__(
        self,
        hazards: Hazards,
        prompts: LearnedPrompts | None = None,
        prefixes: Hazards | None = None,
        page_size: int = 1,
    ) -> None:
        self._hazards, self._page_size = hazards, page_size
        self._contexts = Contexts()
        self._prefixes = SharedPrefixes(self._contexts, prefixes or Hazards())
        self._prompts = prompts or LearnedPrompts()
        self._begun = self._served = 0
        self._keeping = 0.0  # of returns to conversations that thought, the share whose prompts had the thoughts
        self._known: dict[Rung, Conversation] = {}  # by where it ends, the longest silent first

    def turn(self, turn: Turn, alone: bool) -> Conversation:
        """The conversation that has just taken a turn, as of now.

        Args:
            alone: whether nothing that is cached continues its context. If something does, the context may be the
                beginning of many conversations (a system prompt), and who continues it is nobody's return.
        """
        before, prefix = self._before(turn)
        if before is not None:
            self._hazards.returned(before, turn.stamp)
            if before.whole is not None:
                kept = self._contexts.number(turn.fingerprint, min(before.length, turn.context)) == before.whole
                self._keeping += _KEEPING * (kept - self._keeping)
            said = before.length + before.remainder  # the remainder is not seen to be the same, but not new to Q either
            if 2 * said > turn.prompt:
                self._prompts.add(max(turn.prompt - said, 0), before.kind)
        if before is None:
            self._begun += 1
            number, turns, shared = self._begun, 0, min(turn.cached, turn.context)
            cls: Class = (0, 0)
            prefix = self._shared(turn, shared, prefix)
        elif 2 * min(before.length, before.length + before.remainder) > turn.prompt:
            number, turns, shared = before.number, before.turn + 1, before.shared
            cls = (min(turns, _TURNS), bisect_right(_WAITS, turn.stamp - before.stamp))
        else:
            # Most of the prompt is new. A document or template may have been taken up by another conversation, so who
            # returns is learned as of a first turn; what was cached of it was cached for either.
            number, turns, shared = before.number, 0, before.shared
            cls = (-1, 0)
        remainder, reach = turn.prompt + turn.answer - turn.context, turn.context
        if turn.thought and self._keeping < 0.5:
            remainder -= turn.thought
            reach = min(turn.context, turn.prompt // self._page_size * self._page_size)
        conversation = Conversation(cls, turn.stamp, number, turns, turn.context, shared, remainder, reach)
        if turn.thought and turn.context > turn.prompt:
            conversation.whole = self._contexts.number(turn.fingerprint, turn.context)
        self._served += 1
        conversation.served = self._served
        if prefix is not None:
            self._prefixes.use(prefix, turn.stamp)
            conversation.prefix = prefix
        if alone:
            self._remember(conversation, turn)
        return conversation

    def _before(self, turn: Turn) -> tuple[Conversation | None, SharedPrefix | None]:
        """The conversation that this request continues, which is no longer known by what it was, and its prefix.

        Of a request that continues none, the longest shared prefix that is known.
        """
        prefix = None
        for rung in self._contexts.along(turn.fingerprint, turn.context):
            conversation = rung.conversation
            if conversation is not None and conversation.reach <= turn.prompt:
                return self._part(rung), conversation.prefix
            prefix = prefix or rung.prefix
        return None, prefix

    def _shared(self, turn: Turn, shared: int, known: SharedPrefix | None) -> SharedPrefix | None:
        """The prefix of a first turn, which found ``shared`` tokens cached and is known to begin with that one."""
        if known is not None and known.rung.depth >= shared:
            return known
        rung = self._contexts.at(turn.fingerprint, shared)
        if rung is not None and (known is None or known.rung.depth < rung.depth):
            return rung.prefix or self._prefixes.add(rung)
        if rung is not None:
            self._contexts.tidy(rung)
        return known

    def _remember(self, conversation: Conversation, turn: Turn) -> None:
        """By its context, whose end nobody else has gone beyond."""
        rung = self._contexts.at(turn.fingerprint, conversation.reach)
        if rung is None:
            return
        if rung.conversation is not None:
            self._hazards.forget(self._known.pop(rung))
        rung.conversation = self._known[rung] = conversation
        self._hazards.watch(conversation)
        if len(self._known) > _MOST_REMEMBERED:
            self._hazards.forget(self._part(next(iter(self._known))))

    def _part(self, rung: Rung) -> Conversation:
        """With the conversation that is known by a rung."""
        conversation = self._known.pop(rung)
        rung.conversation = None
        self._contexts.tidy(rung)
        return conversation


class RecentTurns(Recency):
    """Recency by turns served since: λ = 1 / age, to which the matches and inserts that a turn takes are nothing.

    ``leaf.known`` is the :class:`Conversation` whose turn was the last use of the leaf.
    """

    __slots__ = ()

    def key(self, leaf: Leaf) -> float:
        return leaf.known.served if leaf.known is not None else 0.0

    def stamp(self, leaf: Leaf) -> float:
        return self.key(leaf)


class LearnedReturns:
    """The index of :func:`~radix_tlru.hazards.gittins`, by class of the conversation and band of its age.

    Bands that come to nearly the same are one group: no leaf has to be moved on where it is worth what it was.

    ``leaf.known`` is the :class:`Conversation` whose turn was the last use of the leaf. Where that shares the leaf with
    others it is worth what its prefix promises, if that is more.
    """

    timeless = True

    def __init__(self) -> None:
        self.hazards = Hazards()
        """Of conversations."""
        self.prefixes = Hazards()
        """Of what they have in common."""
        self.version = 0
        """Counts the times that rates have changed."""
        self._numbers: dict[Class, int] = {}
        self._classes: list[Class] = []
        self._index: dict[Class, list[float]] = {(): [1.0 / (start + 1.0) for start in BANDS]}
        self._rates: list[float] = []  # by class, in the order of their numbers, and band
        self._runs: list[list[tuple[int, int]]] = []  # of each class
        self._looks = False  # ahead, and leaves nothing behind

    def __copy__(self) -> LearnedReturns:
        """For a look ahead, which one rank of several may take: what it comes upon is not noted, on uses neither."""
        ahead = object.__new__(type(self))
        vars(ahead).update(vars(self))
        for name in ("_numbers", "_classes", "_rates", "_runs"):
            setattr(ahead, name, copy.copy(getattr(self, name)))
        ahead._looks = True
        return ahead

    def learn(self) -> None:
        """Put rates to what has been seen so far."""
        estimates = self.prefixes.estimate() | self.hazards.estimate()  # the root is that of conversations
        self._index = {cls: gittins(hazards) for cls, hazards in estimates.items()}
        indexes = [self._of(cls) for cls in self._classes]
        self._rates = [rate for index in indexes for rate in index]
        self._runs = [runs(index) for index in indexes]
        self.version += 1

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def stamp(self, leaf: Leaf) -> float:
        return leaf.known.stamp if leaf.known is not None else 0.0

    def group(self, leaf: Leaf, now: float) -> Group:
        conversation: Conversation | None = leaf.known
        group = conversation.group if conversation is not None else None
        if group is None or now >= group.until:
            group = self._group(conversation, now)
        if conversation is None or conversation.prefix is None or leaf.end > conversation.shared:
            return group
        shared = self._group(conversation.prefix.last, now)
        more = group if self._rates[group.number] > self._rates[shared.number] else shared
        return Group(more.number, min(group.until, shared.until))

    def _group(self, use: Use | None, now: float) -> Group:
        """By class and age."""
        if use is not None and use.group is not None and now < use.group.until:
            return use.group
        stamp, cls = (use.stamp, use.cls) if use is not None else (0.0, ())
        number, end, until = self._number(cls), band_of(now - stamp), now
        while until <= now:  # a second time if the first was off by rounding
            first, end = self._runs[number][end]
            until = stamp + BANDS[end] if end < len(BANDS) else math.inf
        group = Group(number * len(BANDS) + first, until)
        if use is not None and not self._looks:
            use.group = group
        return group

    def rate(self, group: int, key: float, now: float) -> float:
        return self._rates[group]

    def floor(self, leaf: Leaf) -> int:
        conversation: Conversation | None = leaf.known
        if conversation is None or conversation.prefix is None or leaf.end <= conversation.shared:
            return 0
        return conversation.shared

    def _number(self, cls: Class) -> int:
        number = self._numbers.get(cls)
        if number is None:
            number = self._numbers[cls] = len(self._classes)
            self._classes.append(cls)
            index = self._of(cls)
            self._rates.extend(index)
            self._runs.append(runs(index))
        return number

    def _of(self, cls: Class) -> list[float]:
        """Rates of the class, or of its nearest ancestor that has any."""
        while cls not in self._index:
            cls = cls[:-1]
        return self._index[cls]
