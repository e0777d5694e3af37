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
from radix_tlru.hazards import BANDS, Class, Hazards, Unasked, band_of, gittins, runs
from radix_tlru.hints import Hints
from radix_tlru.models import Group, Leaf, Recency
from radix_tlru.prefixes import SharedPrefix, SharedPrefixes, Use
from radix_tlru.prompts import LearnedPrompts, kind_of

__all__ = ["Conversation", "Conversations", "LearnedReturns", "RecentTurns", "Turn"]

_MOST_REMEMBERED = 50_000  # conversations
_TURNS = 5  # from the 5th return on, conversations are alike
_WAITS = (60.0, 120.0, 240.0)  # s, between the buckets of the last wait
_MOVES = 0.05  # by which each return moves the shares of those whose prompts have the last answer


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


class Prompt(NamedTuple):
    """What was asked, where more is cached: the last rung within it, and what stands for it to its end."""

    rung: Rung
    end: int  # tokens
    number: int
    said: int  # tokens of the answer, less what is known to be thought


class Conversation(Use):
    """A conversation as of its last turn."""

    __slots__ = (
        "asked",
        "hints",
        "kind",
        "known",
        "length",
        "noted",
        "number",
        "prefix",
        "reach",
        "remainder",
        "served",
        "shared",
        "thought",
        "turn",
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
        # Tokens said that could not be cached: the next prompt has them for certain. Less those of its context that no
        # next prompt has.
        self.remainder = remainder
        self.thought = False  # before it answered
        self.known: Rung | None = None  # by which it is
        self.asked: Prompt | None = None  # likewise, if the next prompt has another answer than was cached
        self.kind = kind_of(turn, length)  # by which its next prompt is judged
        self.served = 0  # turns, of all conversations, up to this one
        self.prefix: SharedPrefix | None = None  # that it began with, if others did, too
        self.hints: Hints | None = None  # what is believed of what the client said
        self.noted: Any = None  # by a predictor


class Conversations:
    """Recognises conversations by their contexts, or by their prompts alone. Memory: the last 50,000.

    Chat templates leave out what was thought, or write an answer, a call of a tool say, otherwise than it was said. How
    many of the next prompts have the last answer as it was cached is learned, of those with thoughts and of the others.
    Where most have not, nothing behind the prompt is worth a place.
    """

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
        # Of returns, the share that has the last answer as it was cached, by whether it was thought over; of those that
        # have not, the share that is long enough to have it otherwise.
        self._keeping, self._saying = {False: 1.0, True: 0.0}, 1.0
        self._known: dict[Conversation, None] = {}  # the longest silent first
        self.continued = {True: 0, False: 0}
        """Conversations that went on, by whether with the last answer as it was cached, where one was."""

    def turn(self, turn: Turn, alone: bool) -> Conversation:
        """The conversation that has just taken a turn, as of now.

        Args:
            alone: whether nothing that is cached continues its context. If something does, the context may be the
                beginning of many conversations (a system prompt), and who continues it is nobody's return.
        """
        before, prefix = self._before(turn)
        if before is not None:
            self._hazards.returned(before, turn.stamp)
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
        if self._keeping[turn.thought > 0] < 0.5:
            unsaid = turn.answer if self._saying < 0.5 else 0  # for the most part: no parser has told of thoughts
            remainder -= turn.thought or unsaid
            reach = min(turn.context, self._whole_pages(turn.prompt))
        conversation = Conversation(cls, turn.stamp, number, turns, turn.context, shared, remainder, reach)
        conversation.thought = turn.thought > 0
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
            if conversation is not None and conversation.length <= turn.prompt:
                if conversation.asked is not None:
                    self._returned(conversation, kept=True)
                return self._part(conversation), conversation.prefix
            conversation = rung.asker
            if conversation is not None and conversation.asked is not None and _goes_on(turn, conversation.asked):
                self._returned(conversation, kept=False)
                said = turn.prompt >= conversation.asked.end + conversation.asked.said
                self._saying += _MOVES * (said - self._saying)
                conversation.reach = min(conversation.reach, self._whole_pages(conversation.asked.end))
                return self._part(conversation), conversation.prefix
            prefix = prefix or rung.prefix
        return None, prefix

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._page_size * self._page_size

    def _returned(self, conversation: Conversation, *, kept: bool) -> None:
        """With its last answer as that was cached, or not."""
        self.continued[kept] += 1
        self._keeping[conversation.thought] += _MOVES * (kept - self._keeping[conversation.thought])

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
        """By its context, whose end nobody else has gone beyond, and by its prompt."""
        rung = self._contexts.at(turn.fingerprint, turn.context)
        if rung is not None and rung.conversation is not None:
            self._hazards.forget(self._part(rung.conversation))
            rung = self._contexts.at(turn.fingerprint, turn.context)
        if rung is None:
            return
        rung.conversation, conversation.known = conversation, rung
        self._known[conversation] = None
        if turn.prompt < turn.context:
            self._remember_prompt(conversation, rung, turn)
        self._hazards.watch(conversation)
        if len(self._known) > _MOST_REMEMBERED:
            self._hazards.forget(self._part(next(iter(self._known))))

    def _remember_prompt(self, conversation: Conversation, context: Rung, turn: Turn) -> None:
        """Of those who asked the same, the last one; not where the last rung is no further up than the context's."""
        rung = self._contexts.at(turn.fingerprint, turn.prompt)
        if rung is None or rung.depth >= context.depth:
            if rung is not None:
                self._contexts.tidy(rung)
            return
        if rung.asker is not None:
            rung.asker.asked = None
        rung.asker = conversation
        number = turn.fingerprint(rung.depth, turn.prompt, rung.number)
        conversation.asked = Prompt(rung, turn.prompt, number, turn.answer - turn.thought)

    def _part(self, conversation: Conversation) -> Conversation:
        """With a conversation that is known."""
        del self._known[conversation]
        assert conversation.known is not None, "or it would not be found"
        conversation.known.conversation = None
        self._contexts.tidy(conversation.known)
        if conversation.asked is not None:
            conversation.asked.rung.asker = None
            self._contexts.tidy(conversation.asked.rung)
        return conversation


def _goes_on(turn: Turn, prompt: Prompt) -> bool:
    """Whether a turn, which has the last rung of a prompt, has all of it and more: else it was asked again."""
    rung = prompt.rung
    return prompt.end < turn.prompt and turn.fingerprint(rung.depth, prompt.end, rung.number) == prompt.number


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

    Args:
        asked: whether rates will be.
    """

    timeless = True

    def __init__(self, asked: bool = True) -> None:
        self.hazards = Hazards() if asked else Unasked()
        """Of conversations."""
        self.prefixes = Hazards() if asked else Unasked()
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
