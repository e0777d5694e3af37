"""By what a conversation is recognised when it returns: its context, its last prompt, the first prompt of a chain.

All are hashes of tokens, so that one whose tokens were all evicted is recognised, too. Of a conversation only the last
turn is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radix_tlru.learning.prefix_index import HashedContext, PrefixIndex, depth_of, hash_at
from radix_tlru.learning.records import Conversation, SharedPrefix, Turn
from radix_tlru.policy.sharded_dict import ShardedDict

__all__ = ["Found", "KnownConversations"]

_MOST_REMEMBERED = 50_000
"""Conversations that are known at most, and sessions."""


class Found(NamedTuple):
    """What a turn continues."""

    before: Conversation | None = None  # as of its last turn
    prompt_len: int | None = None  # of the prompt by which it was recognised, tokens; None: by its context
    prefixes: Sequence[SharedPrefix] = ()  # that a first turn begins with, the longest first


class KnownConversations:
    """The last turn of each conversation that took one of late."""

    def __init__(self) -> None:
        self.index: PrefixIndex[Conversation, SharedPrefix] = PrefixIndex()
        """Where their contexts and prompts end; and shared prefixes, which others put there."""
        # In each shard the longest silent first.
        self._by_number = ShardedDict[Conversation]()
        self._by_session = ShardedDict[Conversation]()  # by key: the last turn of each session

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, turn: Turn, context: HashedContext) -> Found:
        """What a turn continues; it is known no longer. Of a first turn, the shared prefixes.

        A prompt that is sent again leaves the path of the request that sent it before. Answers further up on that path
        do not count as left out by it: they may be some of several that were sampled.
        """
        index, prefixes, asks_again = self.index, list[SharedPrefix](), False
        for checkpoint in index.on_path(context):
            before = index.contexts.get(checkpoint)
            if before is not None and before.context_len <= turn.prompt_len:
                return Found(self._forget(before))
            before = index.prompts.get(checkpoint) if not asks_again else None
            if before is not None and (prompt_len := _repeated_prompt(turn, before, checkpoint)) is not None:
                if prompt_len < turn.prompt_len:
                    return Found(self._forget(before), prompt_len)
                asks_again = True
            prefix = index.prefixes.get(checkpoint)
            if prefix is not None and prefix.depth <= turn.context_len:
                prefixes.append(prefix)
        return Found(prefixes=prefixes)

    def prefixes_on_path(self, turn: Turn, context: HashedContext) -> list[SharedPrefix]:
        """The shared prefixes that a turn begins with, the longest first, whatever it continues."""
        found = [self.index.prefixes.get(checkpoint) for checkpoint in self.index.on_path(context)]
        return [prefix for prefix in found if prefix is not None and prefix.depth <= turn.context_len]

    def with_prompt_of(self, turn: Turn, context: HashedContext) -> Conversation | None:
        """The conversation whose prompt a turn goes on with; it stays known."""
        for checkpoint in self.index.on_path(context):
            before = self.index.prompts.get(checkpoint)
            prompt_len = _repeated_prompt(turn, before, checkpoint) if before is not None else None
            if prompt_len is not None and prompt_len < turn.prompt_len:
                return before
        return None

    def in_session(self, session: int) -> Conversation | None:
        """The last turn of a session, by its key, if it is the last one of its conversation, too."""
        last = self._by_session.get(session)
        return last if last is not None and self.is_last_turn(last) else None

    def is_last_turn(self, conversation: Conversation) -> bool:
        """Whether it took no turn since, and is known."""
        return self._by_number.get(conversation.number) is conversation

    def remember(
        self, conversation: Conversation, turn: Turn, context: HashedContext, chain_len: int | None
    ) -> list[Conversation]:
        """Recognise it by its context, whose end nobody else has gone beyond, and by its prompts.

        A context that is shorter than the first step has no checkpoint: it is not recognised.

        Args:
            chain_len: of the first prompt of its chain, tokens; None: it is not recognised by that.

        Returns:
            The conversations that are known no longer: one of the same context, the longest silent one.
        """
        path, contexts = context.path_to(turn.context_len), self.index.contexts
        if not path:
            return []
        forgotten = []
        conversation.checkpoint = path[-1]
        if (other := contexts.get(path[-1])) is not None:
            forgotten.append(self._forget(other))
        self.index.put(contexts, path, conversation)
        longest_silent = self._by_number.put_last(conversation.number, conversation, _MOST_REMEMBERED)
        if turn.prompt_len < turn.context_len:
            remembered = self._remember_prompt(conversation, context, turn.prompt_len)
            conversation.last_prompt, conversation.prompt_hash = remembered
        if chain_len is not None:
            remembered = self._remember_prompt(conversation, context, chain_len)
            conversation.chain_start, conversation.chain_hash = remembered
            conversation.chain_len = chain_len
        if longest_silent is not None:
            forgotten.append(self._forget(longest_silent))
        if conversation.session is not None:
            self._by_session.put_last(conversation.session, conversation, _MOST_REMEMBERED)
        return forgotten

    def _remember_prompt(self, conversation: Conversation, context: HashedContext, end: int) -> tuple[int, int]:
        """Recognise it by its first ``end`` tokens, if their last checkpoint is further up than that of the context.

        Of conversations with the same prompt the last one is recognised. Returns the checkpoint, 0 if it is not, and
        the hash of those tokens.
        """
        path, prompts = context.path_to(end), self.index.prompts
        if not path or depth_of(path[-1]) >= depth_of(conversation.checkpoint):
            return 0, 0
        checkpoint = path[-1]
        other = prompts.get(checkpoint)
        if other is not None:
            if other.last_prompt == checkpoint:
                other.last_prompt = 0
            else:
                other.chain_start = 0
        self.index.put(prompts, path, conversation)
        return checkpoint, context.fingerprint(depth_of(checkpoint), end, hash_at(checkpoint))

    def _forget(self, conversation: Conversation) -> Conversation:
        """Recognise a conversation no longer. Returns it."""
        index = self.index
        self._by_number.pop(conversation.number, None)
        index.remove(index.contexts, conversation.checkpoint)
        for prompt in (conversation.last_prompt, conversation.chain_start):
            if prompt:
                index.remove(index.prompts, prompt)
        return conversation


def _repeated_prompt(turn: Turn, before: Conversation, checkpoint: int) -> int | None:
    """Length of the prompt of ``before`` with that last checkpoint if the turn begins with it; else None.

    Asking the same again is no return: then it is all of the turn's prompt.
    """
    end, number = before.chain_len, before.chain_hash
    if before.last_prompt == checkpoint:
        end, number = before.prompt_len, before.prompt_hash
    if end > turn.prompt_len or turn.fingerprint(depth_of(checkpoint), end, hash_at(checkpoint)) != number:
        return None
    return end
