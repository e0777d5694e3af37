"""Which conversation does a request continue, and what is known of it from before?

A conversation is recognised by hashes of its tokens, so that one whose tokens were all evicted is still recognised when
it returns. Of the content nothing is looked at but how answers end. Time is in stamps that travel with the requests
(s), and "now" is the newest stamp seen: ranks that are told the same learn the same.

The next prompt may not repeat the last answer as it was cached (see :mod:`~radix_tlru.learning.reuse`). Then the
conversation is recognised by its last prompt. Reasoning may also come back with each result of a tool, and be left out
all at once when a user speaks next. Then it is recognised by the first prompt of that chain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from radix_tlru.learning.endings import Endings
from radix_tlru.learning.hazards import Hazards
from radix_tlru.learning.prefix_index import PrefixIndex
from radix_tlru.learning.prompt_lengths import PromptLengths
from radix_tlru.learning.records import Class, Conversation, PromptCheckpoint, SharedPrefix, Turn, TurnCheckpoint
from radix_tlru.learning.reuse import AnswerReuse
from radix_tlru.learning.shared_prefixes import SharedPrefixes

__all__ = ["Conversations"]

_MOST_REMEMBERED = 50_000  # conversations
_TURNS = 5  # from the 5th return on, conversations are alike
_WAITS = (60.0, 120.0, 240.0)  # s, between the buckets of the last wait
_NEW, _TAKEN_UP = (0, 0), (-1, 0)  # classes of a first turn, and of one that takes up what another conversation began
_ENDING = 10  # added to the number of a frequent ending, which then is the first that a class is told by


class _Found(NamedTuple):
    """What a turn continues."""

    before: Conversation | None = None  # as of its last turn
    prompt: PromptCheckpoint | None = None  # by which it was recognised, if not by its context
    prefix: SharedPrefix | None = None  # that the turn begins with


class Conversations:
    """Recognises conversations by their contexts, or by their prompts alone. Memory: the last 50,000."""

    def __init__(
        self,
        hazards: Hazards,
        prompts: PromptLengths | None = None,
        prefix_hazards: Hazards | None = None,
        page_size: int = 1,
    ) -> None:
        self._hazards, self._page_size = hazards, page_size
        self._index: PrefixIndex[Conversation, SharedPrefix] = PrefixIndex()
        self._prefixes = SharedPrefixes(self._index, prefix_hazards or Hazards())
        self._prompts = prompts or PromptLengths()
        self._endings = Endings()
        self.answers = AnswerReuse()
        """Whether next prompts repeat the answers."""
        self._begun = self._served = 0
        self._known: dict[Conversation, None] = {}  # the longest silent first

    def record_turn(self, turn: Turn, is_leaf: bool) -> Conversation:
        """A turn was served. Returns the conversation that it belongs to, as of now.

        Args:
            is_leaf: whether nothing that is cached continues its context. Otherwise the context may be the beginning of
                many conversations (a system prompt), and whoever continues it is nobody's return.
        """
        found = self._find(turn)
        before = found.before
        if before is not None:
            self._hazards.count_return(before, turn.stamp)
            self._count_prompt(turn, before, found.prompt)
        conversation = self._next_record(turn, before)
        self._served += 1
        conversation.turn_index = self._served
        prefix = found.prefix if before is not None else self._prefix_of_first(turn, conversation, found.prefix)
        if prefix is not None:
            self._prefixes.count_use(prefix, turn.stamp)
            conversation.prefix = prefix
        if is_leaf:
            self._remember(conversation, turn, self._chain_start(before, found.prompt))
        return conversation

    # ---- whose turn it is ----

    def _find(self, turn: Turn) -> _Found:
        """What a turn continues; it is no longer known by what it was. Of a first turn, the longest shared prefix."""
        prefix = None
        for checkpoint in self._index.known_checkpoints(turn.fingerprint, turn.context_len):
            before = checkpoint.context_of
            if before is not None and before.context_len <= turn.prompt_len:
                if before.prompts:
                    self.answers.count_return(before, as_cached=True)
                return _Found(self._forget(before), None, before.prefix)
            before = checkpoint.prompt_of
            prompt = _repeated_prompt(turn, before.prompts, checkpoint) if before is not None else None
            if before is not None and prompt is not None:
                self._count_left_out(turn, before, prompt)
                return _Found(self._forget(before), prompt, before.prefix)
            prefix = prefix or checkpoint.prefix
        return _Found(prefix=prefix)

    def _count_left_out(self, turn: Turn, before: Conversation, prompt: PromptCheckpoint) -> None:
        """The turn continues a prompt, and does not repeat the answer to it as that was cached."""
        self.answers.count_return(before, as_cached=False)
        if prompt.end == before.prompt_len:
            spoken_len = before.prompt_len + before.answer_len - before.thought_len
            self.answers.count_rewritten(turn.prompt_len >= spoken_len)
        before.reusable_len = min(before.reusable_len, self._whole_pages(prompt.end))

    def _next_record(self, turn: Turn, before: Conversation | None) -> Conversation:
        """The conversation as of this turn."""
        if before is None:
            self._begun += 1
            number, turns, shared_len = self._begun, 0, min(turn.cached_len, turn.context_len)
            cls: Class = _NEW
        elif 2 * min(before.context_len, before.context_len + before.known_next_tokens) > turn.prompt_len:
            number, turns, shared_len = before.number, before.turn + 1, before.shared_len
            cls = (min(turns, _TURNS), bisect_right(_WAITS, turn.stamp - before.stamp))
        else:
            # Most of the prompt is new: another conversation may have taken up a document or template. So who returns
            # is learned as of a first turn. What was cached of it was cached for either.
            number, turns, shared_len = before.number, 0, before.shared_len
            cls = _TAKEN_UP
        if ending := self._endings.number_of(turn.answer_ids):
            cls = (_ENDING + ending, *cls)
        conversation = Conversation(cls, turn.stamp, number, turns, turn.context_len, shared_len)
        conversation.prompt_len, conversation.answer_len = turn.prompt_len, turn.answer_len
        conversation.thought_len, conversation.session = turn.thought_len, turn.session
        conversation.known_next_tokens = turn.prompt_len + turn.answer_len - turn.context_len
        if not self.answers.is_repeated(turn.thought_len):
            # Without a reasoning parser nobody tells how much of an answer is left out: then it is all of it.
            left_out = 0 if self.answers.is_rewritten else turn.answer_len
            conversation.known_next_tokens -= turn.thought_len or left_out
            conversation.reusable_len = min(turn.context_len, self._whole_pages(turn.prompt_len))
        return conversation

    def _prefix_of_first(
        self, turn: Turn, conversation: Conversation, known: SharedPrefix | None
    ) -> SharedPrefix | None:
        """The prefix of a first turn: the longest that is known, or a longer one that it found cached."""
        shared_len = conversation.shared_len
        if known is not None and known.checkpoint.depth >= shared_len:
            return known
        checkpoint = self._index.last_checkpoint(turn.fingerprint, shared_len)
        if checkpoint is not None and (known is None or known.checkpoint.depth < checkpoint.depth):
            return checkpoint.prefix or self._prefixes.add_prefix(checkpoint)
        if checkpoint is not None:
            self._index.drop_unused(checkpoint)
        return known

    # ---- what prompts add ----

    def _count_prompt(self, turn: Turn, before: Conversation, prompt: PromptCheckpoint | None) -> None:
        """Count what the prompt adds to the conversation, if it repeats more than half of itself from before."""
        repeated = self._repeated_len(before, prompt)
        if 2 * repeated > turn.prompt_len:
            self._prompts.count_prompt(max(turn.prompt_len - repeated, 0), before.prompt_kind)

    def _repeated_len(self, before: Conversation, prompt: PromptCheckpoint | None) -> int:
        """Tokens that the next prompt repeats, as cached or in other words; 0: nobody can tell."""
        if prompt is None and not before.prompts:
            return before.context_len + before.known_next_tokens
        if prompt is None:
            return before.prompt_len + before.answer_len
        if prompt.end != before.prompt_len:  # a chain of answers was left out, of unknown length
            return 0
        rewritten = before.thought_len or self.answers.is_rewritten
        return before.prompt_len + (before.answer_len - before.thought_len if rewritten else 0)

    # ---- by what it is recognised next ----

    def _chain_start(self, before: Conversation | None, prompt: PromptCheckpoint | None) -> PromptCheckpoint | None:
        """The first prompt of a chain whose answers were repeated so far, if they may all be left out at once."""
        if before is None or prompt is not None or not before.prompts:
            return None
        return before.prompts[-1] if self.answers.is_sometimes_left_out(before.thought_len) else None

    def _remember(self, conversation: Conversation, turn: Turn, chain_start: PromptCheckpoint | None) -> None:
        """Recognise it by its context, whose end nobody else has gone beyond, and by its prompts."""
        checkpoint = self._index.last_checkpoint(turn.fingerprint, turn.context_len)
        if checkpoint is not None and checkpoint.context_of is not None:
            self._hazards.stop_watching(self._forget(checkpoint.context_of))
            checkpoint = self._index.last_checkpoint(turn.fingerprint, turn.context_len)
        if checkpoint is None:
            return
        checkpoint.context_of, conversation.checkpoint = conversation, checkpoint
        self._known[conversation] = None
        if turn.prompt_len < turn.context_len:
            self._remember_prompt(conversation, turn, turn.prompt_len)
        if chain_start is not None:
            self._remember_prompt(conversation, turn, chain_start.end)
        self._hazards.start_watching(conversation)
        if len(self._known) > _MOST_REMEMBERED:
            self._hazards.stop_watching(self._forget(next(iter(self._known))))

    def _remember_prompt(self, conversation: Conversation, turn: Turn, end: int) -> None:
        """Recognise it by its first ``end`` tokens, if their last checkpoint is further up than that of the context.

        Of conversations with the same prompt the last one is recognised.
        """
        assert conversation.checkpoint is not None, "it is recognised by its context first"
        checkpoint = self._index.last_checkpoint(turn.fingerprint, end)
        if checkpoint is None:
            return
        if checkpoint.depth >= conversation.checkpoint.depth or checkpoint.prompt_of is conversation:
            self._index.drop_unused(checkpoint)
            return
        if (other := checkpoint.prompt_of) is not None:
            other.prompts = [prompt for prompt in other.prompts if prompt.checkpoint is not checkpoint]
        checkpoint.prompt_of = conversation
        number = turn.fingerprint(checkpoint.depth, end, checkpoint.number)
        conversation.prompts.append(PromptCheckpoint(checkpoint, end, number))

    def _forget(self, conversation: Conversation) -> Conversation:
        """Recognise a conversation no longer. Returns it."""
        del self._known[conversation]
        assert conversation.checkpoint is not None, "or it would not be found"
        conversation.checkpoint.context_of = None
        self._index.drop_unused(conversation.checkpoint)
        for prompt in conversation.prompts:
            prompt.checkpoint.prompt_of = None
            self._index.drop_unused(prompt.checkpoint)
        return conversation

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._page_size * self._page_size


def _repeated_prompt(
    turn: Turn, prompts: Sequence[PromptCheckpoint], checkpoint: TurnCheckpoint
) -> PromptCheckpoint | None:
    """The prompt, of those with this last checkpoint, that the turn continues. Asking the same again is no return."""
    for prompt in prompts:
        is_longer = prompt.checkpoint is checkpoint and prompt.end < turn.prompt_len
        if is_longer and turn.fingerprint(checkpoint.depth, prompt.end, checkpoint.number) == prompt.number:
            return prompt
    return None
