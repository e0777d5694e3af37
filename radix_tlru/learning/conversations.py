"""Which conversation a request continues, and what is known of it from before.

Nothing of the content is looked at but how answers end: a conversation is known by a fingerprint of its tokens, so that
one whose tokens were all evicted is still recognised when it returns. Time is in stamps that travel with the requests
(s), and "now" is the newest stamp seen: who is told the same learns the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from radix_tlru.hints.schema import Hints
from radix_tlru.learning.endings import Endings
from radix_tlru.learning.hazards import Class, Hazards
from radix_tlru.learning.prefix_index import Contexts, Fingerprint, Rung
from radix_tlru.learning.prompt_lengths import LearnedPrompts, kind_of
from radix_tlru.learning.shared_prefixes import SharedPrefix, SharedPrefixes, Use

__all__ = ["Conversation", "Conversations", "Prompt", "Turn"]

_MOST_REMEMBERED = 50_000  # conversations
_TURNS = 5  # from the 5th return on, conversations are alike
_WAITS = (60.0, 120.0, 240.0)  # s, between the buckets of the last wait
_ENDING = 10  # added to the number of an ending that is frequent, which then is the first that a class is told by
_MOVES = 0.05  # by which each return moves the shares of those whose prompts have the last answer
_NEARLY_ALL = 0.99  # of returns have the last answer: then it is not worth knowing how prompts began to have them
_ALL = 1 << 60  # tokens, more than any context has


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
    session: str | None = None  # that the client named


class Prompt(NamedTuple):
    """What was asked, where more is cached: the last rung within it, and what stands for it to its end."""

    rung: Rung
    end: int  # tokens
    number: int


@dataclass(eq=False, slots=True)
class Conversation(Use):
    """A conversation as of its last turn. Lengths in tokens."""

    number: int  # of the conversation, in order of first turns
    turn: int  # turns before this one
    length: int  # of its context
    shared: int  # of that, what its first turn found cached
    remainder: int = 0
    """What was said and could not be cached: the next prompt has it for certain. Less what no next prompt has."""
    reach: int = _ALL
    """Of its context, what the next prompt begins with."""
    prompt: int = field(default=0, init=False)
    answer: int = field(default=0, init=False)
    thought: int = field(default=0, init=False)  # of the answer, as far as anybody told
    kind: int = field(init=False)  # by which its next prompt is judged
    served: float = field(default=0, init=False)  # turns, of all conversations, up to this one, or to the next request
    due: float = field(default=-math.inf, init=False)  # until when (s) its next request is taken to be waiting
    known: Rung | None = field(default=None, init=False)  # by which it is
    prompts: list[Prompt] = field(default_factory=list, init=False)
    """By which it is if the next one has not the last answer as it was cached: the last, and if answers came back until
    then the first of theirs."""
    prefix: SharedPrefix | None = field(default=None, init=False)  # that it began with, if others did, too
    hints: Hints | None = field(default=None, init=False)  # what is believed of what the client said
    noted: Any = field(default=None, init=False)  # by a predictor
    session: str | None = field(default=None, init=False)  # that its client named

    def __post_init__(self) -> None:
        self.kind = kind_of(self.turn, self.length)

    @property
    def common(self) -> int:
        """Of its context, what others are known to begin with, too, whether or not any of it was cached."""
        return self.shared if self.prefix is None else max(self.shared, min(self.prefix.rung.depth, self.length))


class Conversations:
    """Recognises conversations by their contexts, or by their prompts alone. Memory: the last 50,000.

    Chat templates leave out what was thought, or write an answer, a call of a tool say, otherwise than it was said. How
    many of the next prompts have the last answer as it was cached is learned, of those with thoughts and of the others.
    Where most have not, nothing behind the prompt is worth a place. Thoughts may also come back with each result of a
    tool, and go all at once with what a user says next: then the conversation is known by what was asked before them.
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
        self._endings = Endings()
        self._known: dict[Conversation, None] = {}  # the longest silent first
        self.continued = {True: 0, False: 0}
        """Conversations that went on, by whether with the last answer as it was cached, where one was."""

    def turn(self, turn: Turn, alone: bool) -> Conversation:
        """The conversation that has just taken a turn, as of now.

        Args:
            alone: whether nothing that is cached continues its context. If something does, the context may be the
                beginning of many conversations (a system prompt), and who continues it is nobody's return.
        """
        before, prefix, again = self._before(turn)
        began = None
        if before is not None:
            if again is None and before.prompts and self._keeping[before.thought > 0] < _NEARLY_ALL:
                began = before.prompts[-1]
            self._hazards.returned(before, turn.stamp)
            said = self._said_again(before, again)
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
        if ending := self._endings.number(turn.answered):
            cls = (_ENDING + ending, *cls)
        remainder, reach = turn.prompt + turn.answer - turn.context, _ALL
        if self._keeping[turn.thought > 0] < 0.5:
            unsaid = turn.answer if self._saying < 0.5 else 0  # for the most part: no parser has told of thoughts
            remainder -= turn.thought or unsaid
            reach = min(turn.context, self._whole_pages(turn.prompt))
        conversation = Conversation(cls, turn.stamp, number, turns, turn.context, shared, remainder, reach)
        conversation.prompt, conversation.answer, conversation.thought = turn.prompt, turn.answer, turn.thought
        conversation.session = turn.session
        self._served += 1
        conversation.served = self._served
        if prefix is not None:
            self._prefixes.use(prefix, turn.stamp)
            conversation.prefix = prefix
        if alone:
            self._remember(conversation, turn, began)
        return conversation

    def _before(self, turn: Turn) -> tuple[Conversation | None, SharedPrefix | None, Prompt | None]:
        """The conversation that this request continues, which is no longer known by what it was, and its prefix.

        Of a request that continues none, the longest shared prefix that is known. And the prompt by which it is known,
        if not by its context.
        """
        prefix = None
        for rung in self._contexts.along(turn.fingerprint, turn.context):
            conversation = rung.conversation
            if conversation is not None and conversation.length <= turn.prompt:
                if conversation.prompts:
                    self._returned(conversation, kept=True)
                return self._part(conversation), conversation.prefix, None
            asker = rung.asker
            again = _goes_on(turn, asker.prompts, rung) if asker is not None else None
            if asker is not None and again is not None:
                self._returned(asker, kept=False)
                if again.end == asker.prompt:
                    said = turn.prompt >= asker.prompt + asker.answer - asker.thought
                    self._saying += _MOVES * (said - self._saying)
                asker.reach = min(asker.reach, self._whole_pages(again.end))
                return self._part(asker), asker.prefix, again
            prefix = prefix or rung.prefix
        return None, prefix, None

    def _said_again(self, before: Conversation, again: Prompt | None) -> int:
        """Tokens that the next prompt repeated, as cached or otherwise; 0: nobody can tell, of a chain left behind."""
        if again is None and not before.prompts:
            return before.length + before.remainder  # the remainder is not seen to be the same, but not new to Q either
        if again is None:
            return before.prompt + before.answer
        if again.end != before.prompt:
            return 0
        return before.prompt + (before.answer - before.thought if before.thought or self._saying >= 0.5 else 0)

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._page_size * self._page_size

    def _returned(self, conversation: Conversation, *, kept: bool) -> None:
        """With its last answer as that was cached, or not."""
        self.continued[kept] += 1
        thought = conversation.thought > 0
        self._keeping[thought] += _MOVES * (kept - self._keeping[thought])

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

    def _remember(self, conversation: Conversation, turn: Turn, began: Prompt | None) -> None:
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
            self._remember_prompt(conversation, rung, turn, turn.prompt)
        if began is not None:
            self._remember_prompt(conversation, rung, turn, began.end)
        self._hazards.watch(conversation)
        if len(self._known) > _MOST_REMEMBERED:
            self._hazards.forget(self._part(next(iter(self._known))))

    def _remember_prompt(self, conversation: Conversation, context: Rung, turn: Turn, end: int) -> None:
        """Of those who asked the same, the last one; not where the last rung is no further up than the context's."""
        rung = self._contexts.at(turn.fingerprint, end)
        if rung is None or rung.depth >= context.depth or rung.asker is conversation:
            if rung is not None:
                self._contexts.tidy(rung)
            return
        if rung.asker is not None:
            rung.asker.prompts = [p for p in rung.asker.prompts if p.rung is not rung]
        rung.asker = conversation
        number = turn.fingerprint(rung.depth, end, rung.number)
        conversation.prompts.append(Prompt(rung, end, number))

    def _part(self, conversation: Conversation) -> Conversation:
        """With a conversation that is known."""
        del self._known[conversation]
        assert conversation.known is not None, "or it would not be found"
        conversation.known.conversation = None
        self._contexts.tidy(conversation.known)
        for prompt in conversation.prompts:
            prompt.rung.asker = None
            self._contexts.tidy(prompt.rung)
        return conversation


def _goes_on(turn: Turn, prompts: Sequence[Prompt], rung: Rung) -> Prompt | None:
    """The prompt, of those that end behind a rung which the turn has, that it goes on with, and not asks again."""
    for prompt in prompts:
        longer = prompt.rung is rung and prompt.end < turn.prompt
        if longer and turn.fingerprint(rung.depth, prompt.end, rung.number) == prompt.number:
            return prompt
    return None
