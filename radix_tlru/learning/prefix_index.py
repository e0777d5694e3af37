"""Which context is this, of those that were seen before: a tree of fingerprints, so that no tokens need be kept.

A context is known at few depths, its *rungs*: the longest step that fits into it, from there the longest step that fits
into what is left, and so on, until less than the shortest step is left. Whoever goes on with a context finds it without
knowing how long it was, as only few depths can be a rung of anything: from each that is known it looks as far as the
next step would have reached. Contexts that begin alike, with a system prompt say, have their first rungs in common and
are told apart by what follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from radix_tlru.learning.conversations import Conversation
    from radix_tlru.learning.shared_prefixes import SharedPrefix

__all__ = ["Contexts", "Fingerprint", "Rung"]

# Steps between rungs, tokens: two to a doubling.
_STEPS = tuple(round(16 * 2 ** (half / 2)) for half in range(36))


class Fingerprint(Protocol):
    """A number that stands for the first ``end`` tokens of a context, by what stands for its first ``start``.

    ``above`` is that number, 0 of no tokens. Equal where the tokens are, and hardly ever elsewhere.
    """

    def __call__(self, start: int, end: int, above: int, /) -> int: ...


class Rung:
    """A depth at which contexts are known, what ends there and what is known of it."""

    __slots__ = ("above", "asker", "below", "conversation", "depth", "number", "prefix")

    def __init__(self, above: Rung | None, depth: int, number: int) -> None:
        self.above = above
        self.depth = depth  # tokens
        self.number = number  # that stands for them
        self.below = 0  # rungs, next below
        self.conversation: Conversation | None = None  # whose context ends there
        self.asker: Conversation | None = None  # whose prompt does
        self.prefix: SharedPrefix | None = None


class Contexts:
    """The rungs of all contexts that something is known of."""

    def __init__(self) -> None:
        self._rungs: dict[tuple[int, int], Rung] = {}  # by depth and number

    def __len__(self) -> int:
        return len(self._rungs)

    def at(self, fingerprint: Fingerprint, tokens: int) -> Rung | None:
        """The last rung of a context's first ``tokens``, new if need be; None: they are too few to have any."""
        rung: Rung | None = None
        depth = number = 0
        while tokens - depth >= _STEPS[0]:
            start, depth = depth, depth + _STEPS[bisect_right(_STEPS, tokens - depth) - 1]
            number = fingerprint(start, depth, number)
            known = self._rungs.get((depth, number))
            if known is None:
                known = self._rungs[depth, number] = Rung(rung, depth, number)
                if rung is not None:
                    rung.below += 1
            rung = known
        return rung

    def along(self, fingerprint: Fingerprint, tokens: int) -> Iterator[Rung]:
        """The rungs of other contexts that this one goes through within its first ``tokens``, the deepest first."""
        return self._along(fingerprint, 0, 0, tokens)

    def _along(self, fingerprint: Fingerprint, start: int, above: int, tokens: int) -> Iterator[Rung]:
        for index in range(bisect_right(_STEPS, tokens - start) - 1, -1, -1):
            depth = start + _STEPS[index]
            number = fingerprint(start, depth, above)
            rung = self._rungs.get((depth, number))
            if rung is not None:
                if rung.below:  # what ends there goes less far than the next step would have led, if there is one
                    end = start + _STEPS[index + 1] - 1 if index + 1 < len(_STEPS) else tokens
                    yield from self._along(fingerprint, depth, number, min(tokens, end))
                yield rung

    def tidy(self, rung: Rung) -> None:
        """Forget a rung that nothing is known of, and those above that were kept for it."""
        last: Rung | None = rung
        while last is not None and not (last.below or last.conversation or last.asker or last.prefix):
            del self._rungs[last.depth, last.number]
            last = last.above
            if last is not None:
                last.below -= 1
