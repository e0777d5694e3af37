"""Which conversation does a request continue, and what is known of it from before?

A conversation is recognised by hashes of its tokens, so that one whose tokens were all evicted is still recognised when
it returns. Of the content only the ends of answers are looked at. Time is in stamps that travel with the requests, in
s; "now" is the newest stamp seen. So ranks that are told the same learn the same.

The next prompt may not repeat the last answer as it was cached (see :mod:`~radix_tlru.learning.reuse`). Then the
conversation is recognised by its last prompt. Reasoning may also come back with each result of a tool, and be left out
all at once when a user speaks next. Then it is recognised by the first prompt of that chain.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

from radix_tlru.learning.endings import Endings
from radix_tlru.learning.known_conversations import KnownConversations
from radix_tlru.learning.last_users import LastUsers, keys_of
from radix_tlru.learning.prefix_index import HashedContext
from radix_tlru.learning.prompt_lengths import PromptLengths
from radix_tlru.learning.records import Conversation, SharedPrefix, Supersession, Turn, session_key
from radix_tlru.learning.reuse import AnswerReuse
from radix_tlru.learning.shared_prefixes import SharedPrefixes
from radix_tlru.learning.turn_features import ending_of, features_of
from radix_tlru.learning.turn_log import TurnLog

__all__ = ["Conversations"]

_EARLY = 0.25
"""Share of a path; a later turn that shares less says little of it."""


class Conversations:
    """Recognises conversations by their contexts, or by their prompts alone. Memory: some 50,000, the last."""

    def __init__(self, log: TurnLog, prompts: PromptLengths, page_size: int = 1) -> None:
        self._log, self._prompts, self._page_size = log, prompts, page_size
        self._known = KnownConversations()
        self._prefixes = SharedPrefixes(self._known.index)
        self._users = LastUsers()
        self.endings = Endings()
        """Which endings of answers are frequent."""
        self.answers = AnswerReuse()
        """Whether next prompts repeat the answers."""
        self.begun = 0
        """Conversations so far."""
        self._served = 0

    def record_turn(self, turn: Turn, is_leaf: bool) -> Conversation:
        """A turn was served. Returns the conversation that it belongs to, as of now.

        Args:
            is_leaf: whether nothing that is cached continues its context. Otherwise the context may be the beginning of
                many conversations (a system prompt), and a turn that continues it is no return.
        """
        context = HashedContext(turn.fingerprint, turn.context_len)
        keys = keys_of(context)
        found = self._known.find(turn, context)
        before = found.before
        if before is not None:
            self._count_return(turn, before, found.prompt_len)
            self._log.write_return(before.log_serial, turn.stamp)
            self._count_prompt(turn, before, found.prompt_len)
        conversation = self._next_record(turn, before, found.prompt_len)
        if before is None:
            self._begin(turn, context, keys, conversation, found.prefixes)
        elif before.superseded:  # others left its path: it shares more with them than its first turn did
            self._share(conversation, self._known.prefixes_on_path(turn, context))
        conversation.features = features_of(conversation)
        self._prefixes.count_uses(conversation)
        self._users.count_use(keys, conversation)
        if is_leaf:
            chain_len = self._chain_len(before) if found.prompt_len is None else None
            is_left_out = conversation.reusable_len < turn.context_len
            if chain_len is not None and is_left_out and self.answers.leaves_out_chains:
                conversation.reusable_len = self._whole_pages(chain_len)
            for forgotten in self._known.remember(conversation, turn, context, chain_len):
                self._log.write_end(forgotten.log_serial)
            if conversation.checkpoint:
                conversation.log_serial = self._log.write_turn(conversation.features, conversation.stamp)
        return conversation

    def prefilled(self, turn: Turn) -> Conversation | None:
        """The conversation that goes on with this prompt, as of now, to be written on a path that it will use whole.

        None: the prompt repeats the last one of no conversation.
        """
        before = self._known.with_prompt_of(turn, HashedContext(turn.fingerprint, turn.context_len))
        if before is None:
            return None
        conversation = copy.copy(before)  # which is recognised as before
        conversation.context_len = conversation.reusable_len = turn.context_len
        conversation.known_next_tokens = turn.prompt_len - turn.context_len
        return conversation

    # ---- what it repeats of the last answer ----

    def _count_return(self, turn: Turn, before: Conversation, prompt_len: int | None) -> None:
        """A conversation has returned: with its context, or with a prompt of its own of that length."""
        if prompt_len is not None:
            self._count_left_out(turn, before, prompt_len)
            return
        if before.is_known_by_prompt:
            self.answers.count_return(before, as_cached=True)
        before.reusable_len = before.context_len  # whatever was thought: now it is known, and shadows ask

    def _count_left_out(self, turn: Turn, before: Conversation, prompt_len: int) -> None:
        """The turn continues a prompt, and does not repeat the answer to it as that was cached."""
        self.answers.count_return(before, as_cached=False)
        if before.last_prompt and before.chain_start:
            self.answers.count_chain(left_out=prompt_len != before.prompt_len)
        if prompt_len == before.prompt_len:
            spoken_len = before.prompt_len + before.answer_len - before.thought_len
            self.answers.count_rewritten(turn.prompt_len >= spoken_len)
        before.reusable_len = min(before.reusable_len, self._whole_pages(prompt_len))

    # ---- what is known of it now ----

    def _next_record(self, turn: Turn, before: Conversation | None, prompt_len: int | None) -> Conversation:
        """The conversation as of this turn."""
        stamp = max(turn.stamp, self._log.now)  # time does not run backwards
        if before is None:
            self.begun += 1
            conversation = Conversation(stamp, self.begun, 0, turn.context_len, min(turn.cached_len, turn.context_len))
            conversation.family = conversation.number
        else:
            conversation = Conversation(stamp, before.number, before.turn + 1, turn.context_len, before.shared_len)
            conversation.prefix, conversation.family = before.prefix, before.family
            conversation.new_len = max(turn.prompt_len - (before.context_len if prompt_len is None else prompt_len), 0)
            conversation.wait, conversation.wait_before = stamp - before.stamp, before.wait
        conversation.ending = ending_of(turn.finish, self.endings.number_of(turn.answer_ids))
        conversation.prompt_len, conversation.answer_len = turn.prompt_len, turn.answer_len
        conversation.thought_len = turn.thought_len
        conversation.session = None if turn.session is None else session_key(turn.session, turn.namespace)
        conversation.known_next_tokens = turn.prompt_len + turn.answer_len - turn.context_len
        if not self.answers.is_repeated(conversation):
            # Without a reasoning parser nobody tells how much of an answer is left out: then it is all of it.
            left_out = 0 if self.answers.is_rewritten else turn.answer_len
            conversation.known_next_tokens -= turn.thought_len or left_out
            conversation.reusable_len = self._whole_pages(turn.prompt_len)
        self._served += 1
        conversation.turn_index = self._served
        return conversation

    def _begin(
        self,
        turn: Turn,
        context: HashedContext,
        keys: Sequence[int],
        conversation: Conversation,
        prefixes: Sequence[SharedPrefix],
    ) -> None:
        """A first turn: it shares a prefix with others, and may leave the path of one of them."""
        fork = self._users.fork_of(keys)
        left, shared = fork if fork is not None else (None, 0)
        conversation.left = 0 if left is None else left.number
        self._supersede(conversation, left, shared)
        shared = max(shared, conversation.shared_len)
        prefixes = [*prefixes]
        if shared > (prefixes[0].depth if prefixes else 0):
            path = context.path_to(shared)
            if path:
                prefix = self._prefixes.add_prefix(path, shared)
                if left is not None and not prefix.last_user:
                    prefix.last_user, prefix.last_use = left.number, left.stamp
                if not prefixes or prefixes[0] is not prefix:
                    prefixes.insert(0, prefix)
        self._share(conversation, prefixes)
        if left is not None and prefixes and not prefixes[0].is_common:
            conversation.family = left.family
        conversation.new_len = turn.prompt_len - min(conversation.common, turn.prompt_len)

    def _share(self, conversation: Conversation, prefixes: Sequence[SharedPrefix]) -> None:
        """It begins with these, the longest first, and with those that it was known to begin with."""
        for longer, shorter in pairwise(prefixes):
            longer.above = shorter
        if prefixes and (conversation.prefix is None or prefixes[0].depth > conversation.prefix.depth):
            conversation.prefix = prefixes[0]

    def _supersede(self, conversation: Conversation, left: Conversation | None, shared: int) -> None:
        """A first turn leaves the path of a conversation after ``shared`` tokens, or begins anew in its session."""
        session = conversation.session
        last = self._known.in_session(session) if session is not None else None
        if left is not None and self._known.is_last_turn(left) and not left.superseded:
            if session is not None and left.session == session:
                self._mark_superseded(left, Supersession.SESSION)
            else:
                early = shared < _EARLY * left.context_len
                self._mark_superseded(left, Supersession.EARLY if early else Supersession.LATE)
        if last is not None and not last.superseded:
            self._mark_superseded(last, Supersession.SESSION_ANEW)

    def _mark_superseded(self, conversation: Conversation, how: Supersession) -> None:
        conversation.superseded = how
        conversation.features = features_of(conversation)
        self._log.write_supersession(conversation.log_serial, how)

    # ---- what prompts add ----

    def _count_prompt(self, turn: Turn, before: Conversation, prompt_len: int | None) -> None:
        """Count what the prompt adds to the conversation, if it repeats more than half of itself from before."""
        repeated = self._repeated_len(before, prompt_len)
        if 2 * repeated > turn.prompt_len:
            self._prompts.count_prompt(max(turn.prompt_len - repeated, 0), before.prompt_kind)

    def _repeated_len(self, before: Conversation, prompt_len: int | None) -> int:
        """Tokens that the next prompt repeats, as cached or in other words; 0: nobody can tell."""
        if prompt_len is None and not before.is_known_by_prompt:
            return before.context_len + before.known_next_tokens
        if prompt_len is None:
            return before.prompt_len + before.answer_len
        if prompt_len != before.prompt_len:  # a chain of answers was left out, of unknown length
            return 0
        rewritten = before.thought_len or self.answers.is_rewritten
        return before.prompt_len + (before.answer_len - before.thought_len if rewritten else 0)

    def _chain_len(self, before: Conversation | None) -> int | None:
        """Length of the first prompt of a chain whose answers were repeated so far, if all may be left out at once."""
        if before is None or not self.answers.is_sometimes_left_out(before.thought_len):
            return None
        if before.chain_start:
            return before.chain_len
        return before.prompt_len if before.last_prompt else None

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._page_size * self._page_size
