"""Which known context does this one continue? A tree of hashes at few depths, so that no tokens need be kept.

A context has *checkpoints*: the longest step that fits into it, from there the longest step that fits into what is
left, and so on, until less than the shortest step is left. So only few depths can be a checkpoint of anything. Whoever
continues a context finds it without knowing its length: from each checkpoint that is known it looks as far as the next
step would have reached. Contexts that begin alike, with a system prompt say, share their first checkpoints.

A context is hashed once for each step from its beginning (:class:`HashedContext`), whatever is looked up in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["STEPS", "Checkpoint", "Fingerprint", "HashedContext", "PrefixIndex"]

STEPS = tuple(round(16 * 2 ** (half / 2)) for half in range(36))
"""Steps between checkpoints, in tokens: two to a doubling."""

_DEPTH_BITS = 32
"""A depth and the hash there are one key, hash << 32 | depth: numbers are nothing to Python's garbage collector, and
pairs of them are."""

C = TypeVar("C")
P = TypeVar("P")


class Fingerprint(Protocol):
    """A hash of the first ``end`` tokens of a context, given the hash of its first ``start``.

    ``above`` is that hash, 0 of no tokens. Equal where the tokens are equal, and hardly ever elsewhere.
    """

    def __call__(self, start: int, end: int, above: int, /) -> int: ...


class HashedContext:
    """A context, with the hashes of its first 16, 23, 32, 45, … tokens."""

    __slots__ = ("fingerprint", "numbers", "tokens")

    def __init__(self, fingerprint: Fingerprint, tokens: int) -> None:
        self.fingerprint, self.tokens = fingerprint, tokens
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
        return self.fingerprint(start, start + STEPS[step], above)


class Checkpoint(Generic[C, P]):
    """The last checkpoint of a context, a prompt or a shared prefix, and what is known there."""

    __slots__ = ("context_of", "depth", "number", "prefix", "prompt_hash", "prompt_len", "prompt_of")

    def __init__(self, depth: int, number: int) -> None:
        self.depth = depth  # tokens
        self.number = number  # their hash
        self.context_of: C | None = None  # the conversation whose context has its last checkpoint here
        self.prompt_of: C | None = None  # the conversation whose prompt has
        self.prompt_len = self.prompt_hash = 0  # of that prompt: tokens, and their hash
        self.prefix: P | None = None  # the shared prefix that has

    @property
    def is_used(self) -> bool:
        """Whether anything is known here."""
        return not (self.context_of is self.prompt_of is self.prefix is None)


class PrefixIndex(Generic[C, P]):
    """The checkpoints of all contexts that something is known of.

    The depths on the way to a last one are numbers alone: objects would keep Python's garbage collector busy.
    """

    def __init__(self) -> None:
        self._checkpoints: dict[int, Checkpoint[C, P]] = {}
        self._leading: dict[int, int] = {}  # how many of them a depth leads to, itself included
        self._above: dict[int, int] = {}  # the next depth on the way up; 0: there is none

    def __len__(self) -> int:
        return len(self._leading)

    def last_checkpoint(self, context: HashedContext, tokens: int) -> Checkpoint[C, P] | None:
        """The last checkpoint within a context's first ``tokens``, new if need be; None: they are too few for one."""
        path: list[int] = []
        depth = number = 0
        while tokens - depth >= STEPS[0]:
            step = bisect_right(STEPS, tokens - depth) - 1
            number = context.hash_to(depth, step, number)
            depth += STEPS[step]
            path.append(number << _DEPTH_BITS | depth)
        if not path:
            return None
        known = self._checkpoints.get(path[-1])
        if known is None:
            known = self._checkpoints[path[-1]] = Checkpoint(depth, number)
            for key, above in zip(path, [0, *path], strict=False):
                self._leading[key] = self._leading.get(key, 0) + 1
                self._above[key] = above
        return known

    def known_checkpoints(self, context: HashedContext) -> Iterator[Checkpoint[C, P]]:
        """The last checkpoints of others on this context's path, the deepest first."""
        return self._known_below(context, 0, 0, context.tokens)

    def _known_below(self, context: HashedContext, start: int, above: int, tokens: int) -> Iterator[Checkpoint[C, P]]:
        for step in range(bisect_right(STEPS, tokens - start) - 1, -1, -1):
            depth, number = start + STEPS[step], context.hash_to(start, step, above)
            key = number << _DEPTH_BITS | depth
            leading = self._leading.get(key)
            if leading is not None:
                checkpoint = self._checkpoints.get(key)
                if leading > 1 or checkpoint is None:  # a context from here ends before the next longer step would lead
                    end = start + STEPS[step + 1] - 1 if step + 1 < len(STEPS) else tokens
                    yield from self._known_below(context, depth, number, min(tokens, end))
                if checkpoint is not None:
                    yield checkpoint

    def drop_unused(self, checkpoint: Checkpoint[C, P]) -> None:
        """Forget a checkpoint if nothing is known there any more."""
        if checkpoint.is_used:
            return
        key = checkpoint.number << _DEPTH_BITS | checkpoint.depth
        del self._checkpoints[key]
        while key:
            above = self._above[key]
            if self._leading[key] > 1:
                self._leading[key] -= 1
            else:
                del self._leading[key], self._above[key]
            key = above
