"""Which known context does this one continue? A tree of hashes at few depths, so that no tokens need be kept.

A context has *checkpoints*. The first is at the longest step that fits into it, the next one at the longest step that
fits into the rest, until the rest is shorter than the shortest step. So few depths can be a checkpoint of anything. A
turn finds the context that it continues without knowing its length: from each known checkpoint it looks as far as the
next step would have reached. Contexts that begin alike, for instance with a system prompt, share their first
checkpoints.

A context is hashed once for each step from its beginning (:class:`HashedContext`), whatever is looked up in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from radix_tlru.policy.sharded_dict import SHARDS, ShardedDict

__all__ = ["DEPTH_BITS", "STEPS", "Fingerprint", "HashedContext", "PrefixIndex", "depth_of", "hash_at"]

STEPS = tuple(round(16 * 2 ** (half / 2)) for half in range(36))
"""Steps between checkpoints, in tokens: two to a doubling."""

DEPTH_BITS = 32
"""Of a key: a hash, and below it the depth in tokens."""

_MOST_HASHED = 256
"""Steps that are hashed to look up a context, at most; those from its beginning are not counted. Beyond that, nothing
known higher up on its path is found. Agents and chats need fewer; a path forked at a thousand depths needs thousands.
At half, a few turns of agents lose what is known higher up. At twice, such a look-up takes twice as long."""

C = TypeVar("C")
P = TypeVar("P")
V = TypeVar("V")


def depth_of(key: int) -> int:
    """The depth of a checkpoint, tokens."""
    return key & (1 << DEPTH_BITS) - 1


def hash_at(key: int) -> int:
    """The hash of all tokens down to a checkpoint."""
    return key >> DEPTH_BITS


class Fingerprint(Protocol):
    """A hash of the first ``end`` tokens of a context, given the hash of its first ``start``.

    ``above`` is that hash, 0 of no tokens. Equal where the tokens are equal, and hardly ever elsewhere.
    """

    def __call__(self, start: int, end: int, above: int, /) -> int: ...


class HashedContext:
    """A context, with the hashes of its first 16, 23, 32, 45, … tokens."""

    __slots__ = ("fingerprint", "hashes_left", "numbers", "tokens")

    def __init__(self, fingerprint: Fingerprint, tokens: int) -> None:
        self.fingerprint, self.tokens = fingerprint, tokens
        self.hashes_left = _MOST_HASHED  # for looking it up
        self.numbers: list[int] = []
        """The hash at each of ``STEPS`` that fits into its ``tokens``."""
        start = number = 0
        for step in STEPS[: bisect_right(STEPS, tokens)]:
            number = fingerprint(start, step, number)
            self.numbers.append(number)
            start = step

    def hash_to(self, start: int, step: int, above: int) -> int:
        """The hash of the tokens down to the end of a step that begins at ``start``, where the hash is ``above``."""
        if not start:
            return self.numbers[step]
        self.hashes_left -= 1
        return self.fingerprint(start, start + STEPS[step], above)

    def path_to(self, end: int) -> list[int]:
        """The keys of the checkpoints of its first ``end`` tokens, the last one last; none, if they are too few."""
        path: list[int] = []
        depth = number = 0
        while end - depth >= STEPS[0]:
            step = bisect_right(STEPS, end - depth) - 1
            number = self.hash_to(depth, step, number)
            depth += STEPS[step]
            path.append(number << DEPTH_BITS | depth)
        return path


class PrefixIndex(Generic[C, P]):
    """What is known at the last checkpoints of contexts, of prompts and of shared prefixes.

    A checkpoint is a number, its *key*: the hash there and the depth (:func:`hash_at`, :func:`depth_of`). Objects would
    keep Python's garbage collector busy.
    """

    def __init__(self) -> None:
        self.contexts = ShardedDict[C]()
        """The conversation whose context has its last checkpoint there, by key."""
        self.prompts = ShardedDict[C]()
        """The conversation whose last prompt has, or the first prompt of its chain."""
        self.prefixes = ShardedDict[P]()
        """The shared prefix that has."""
        self._leading = ShardedDict[int]()  # how many last checkpoints a key leads to, itself included
        self._above = ShardedDict[int]()  # the next key on the way up; 0: there is none

    def __len__(self) -> int:
        return len(self._leading)

    def is_last(self, key: int) -> bool:
        """Whether it is the last checkpoint of anything."""
        return key in self.contexts or key in self.prompts or key in self.prefixes

    def put(self, known: ShardedDict[V], path: Sequence[int], value: V) -> None:
        """Know something at the end of a path (:meth:`HashedContext.path_to`): in one of the three dictionaries."""
        key = path[-1]
        if not self.is_last(key):
            for each, above in zip(path, [0, *path], strict=False):
                self._leading[each] = (self._leading.get(each) or 0) + 1
                self._above[each] = above
        known[key] = value

    def remove(self, known: ShardedDict[V], key: int) -> None:
        """Forget it."""
        del known[key]
        if self.is_last(key):
            return
        while key:
            above = self._above[key]
            if self._leading[key] > 1:
                self._leading[key] -= 1
            else:
                del self._leading[key], self._above[key]
            key = above

    def on_path(self, context: HashedContext) -> Iterator[int]:
        """The last checkpoints of others on this context's path, the deepest first."""
        return self._below(context, 0, 0, context.tokens)

    def _below(self, context: HashedContext, start: int, above: int, tokens: int) -> Iterator[int]:
        for step in range(bisect_right(STEPS, tokens - start) - 1, -1, -1):
            if context.hashes_left <= 0:
                return
            depth, number = start + STEPS[step], context.hash_to(start, step, above)
            key = number << DEPTH_BITS | depth
            leading = self._leading.shards[key % SHARDS].get(key)
            if leading is not None:
                is_last = self.is_last(key)
                if leading > 1 or not is_last:  # a context from here ends before the next longer step would lead
                    end = start + STEPS[step + 1] - 1 if step + 1 < len(STEPS) else tokens
                    yield from self._below(context, depth, number, min(tokens, end))
                if is_last:
                    yield key
