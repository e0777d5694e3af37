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
    """A depth at which contexts are recognised, and what is known there."""

    __slots__ = ("above", "below", "context_of", "depth", "number", "prefix", "prompt_of")

    def __init__(self, above: Checkpoint[C, P] | None, depth: int, number: int) -> None:
        self.above = above
        self.depth = depth  # tokens
        self.number = number  # their hash
        self.below = 0  # checkpoints, next below
        self.context_of: C | None = None  # the conversation whose context has its last checkpoint here
        self.prompt_of: C | None = None  # the conversation whose prompt has
        self.prefix: P | None = None  # the shared prefix that has

    @property
    def is_used(self) -> bool:
        """Whether anything is known here, or below."""
        return self.below > 0 or not (self.context_of is self.prompt_of is self.prefix is None)


class PrefixIndex(Generic[C, P]):
    """The checkpoints of all contexts that something is known of."""

    def __init__(self) -> None:
        self._checkpoints: dict[tuple[int, int], Checkpoint[C, P]] = {}  # by depth and hash

    def __len__(self) -> int:
        return len(self._checkpoints)

    def last_checkpoint(self, context: HashedContext, tokens: int) -> Checkpoint[C, P] | None:
        """The last checkpoint within a context's first ``tokens``, new if need be; None: they are too few for one."""
        checkpoint: Checkpoint[C, P] | None = None
        depth = number = 0
        while tokens - depth >= STEPS[0]:
            step = bisect_right(STEPS, tokens - depth) - 1
            number = context.hash_to(depth, step, number)
            depth += STEPS[step]
            known = self._checkpoints.get((depth, number))
            if known is None:
                known = self._checkpoints[depth, number] = Checkpoint(checkpoint, depth, number)
                if checkpoint is not None:
                    checkpoint.below += 1
            checkpoint = known
        return checkpoint

    def known_checkpoints(self, context: HashedContext) -> Iterator[Checkpoint[C, P]]:
        """The checkpoints of other contexts on this one's path, the deepest first."""
        return self._known_below(context, 0, 0, context.tokens)

    def _known_below(self, context: HashedContext, start: int, above: int, tokens: int) -> Iterator[Checkpoint[C, P]]:
        for step in range(bisect_right(STEPS, tokens - start) - 1, -1, -1):
            depth, number = start + STEPS[step], context.hash_to(start, step, above)
            checkpoint = self._checkpoints.get((depth, number))
            if checkpoint is not None:
                if checkpoint.below:  # a context from here ends before the next longer step would have led
                    end = start + STEPS[step + 1] - 1 if step + 1 < len(STEPS) else tokens
                    yield from self._known_below(context, depth, number, min(tokens, end))
                yield checkpoint

    def drop_unused(self, checkpoint: Checkpoint[C, P]) -> None:
        """Forget a checkpoint that nothing is known of, and those above that were kept for it."""
        last: Checkpoint[C, P] | None = checkpoint
        while last is not None and not last.is_used:
            del self._checkpoints[last.depth, last.number]
            last = last.above
            if last is not None:
                last.below -= 1
