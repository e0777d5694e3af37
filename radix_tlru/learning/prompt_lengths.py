"""How long next prompts are, learned online: a distribution instead of the one estimate Q̂.

By the turn that the prompt will be and by the length of the conversation so far: what follows a first short question is
not what follows a long document. A kind of conversation that has seen few prompts is taken for all of them. Part of Q
is known beforehand: what was said and could not be cached. What is learned is how much is new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from radix_tlru.policy.models import Leaf

__all__ = ["LearnedPrompts", "NextPrompts", "kind_of"]

_LEVELS = (0.998, 0.985, 0.95, 0.85, 0.6, 0.3, 0.1)
_PROBABILITIES = (0.0, *((2.0 - high - low) / 2.0 for high, low in pairwise(_LEVELS)), 1.0)
_REMEMBERED = 2_000  # lengths
_CHANGE = 0.25  # of a quantile, below which the distribution is taken to be what it was

_TURNS = (1, 2, 4)  # turns before the last one, at which kinds begin: the first, the second, the next two, all later
_LENGTHS = (1_024, 4_096, 16_384)  # tokens of context, likewise
_KINDS = (len(_TURNS) + 1) * (len(_LENGTHS) + 1)
_STRENGTH = 200.0  # lengths that a kind must have seen to be believed as much as all kinds together

Quantiles = tuple[int, ...]


def kind_of(turn: int, length: int) -> int:
    """The kind of a conversation with so many ``turn``s before its last one and a context of ``length`` tokens."""
    return bisect_right(_TURNS, turn) * (len(_LENGTHS) + 1) + bisect_right(_LENGTHS, length)


@dataclass(frozen=True, slots=True)
class NextPrompts:
    """A distribution of Q by quantiles of what is new in it; what is longer than the first of them does not happen."""

    quantiles: Quantiles  # tokens: exceeded by 0.2, 1.5, 5, 15, 40, 70 and 90 % of next prompts
    of_kind: tuple[Quantiles, ...] = ()  # the same for each kind of conversation; none: all are alike
    probabilities = _PROBABILITIES
    usual = _LEVELS.index(0.6)

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        if step == len(self.quantiles):
            return None
        known = leaf.known
        if known is None:
            return self.quantiles[step]
        remainder: int = known.remainder
        return remainder + (self.of_kind[known.kind] if self.of_kind else self.quantiles)[step]

    def first_step(self, leaf: Leaf, longest: int) -> int:
        """The first step that ends at no more than so many tokens."""
        known, quantiles = leaf.known, self.quantiles
        if known is not None:
            longest -= known.remainder
            if self.of_kind:
                quantiles = self.of_kind[known.kind]
        for step, tokens in enumerate(quantiles):
            if tokens <= longest:
                return step
        return len(quantiles)

    def is_much_like(self, other: NextPrompts) -> bool:
        """Whether no quantile differs by more than a quarter."""
        ours, theirs = (self.quantiles, *self.of_kind), (other.quantiles, *other.of_kind)
        return len(ours) == len(theirs) and all(
            abs(one - another) <= _CHANGE * max(one, another)
            for here, there in zip(ours, theirs, strict=True)
            for one, another in zip(here, there, strict=True)
        )


class LearnedPrompts:
    """The last 2,000 lengths (tokens) that continuing prompts have added to what was said before."""

    def __init__(self) -> None:
        self._lengths: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # and the kind of what was continued

    def add(self, tokens: int, kind: int = 0) -> None:
        """A conversation of that kind was continued by a prompt that added as many tokens."""
        self._lengths.append((tokens, kind))

    def distribution(self, before: NextPrompts | None = None) -> NextPrompts | None:
        """As seen lately: ``before`` itself if that has not changed; None if nothing was seen."""
        if not self._lengths:
            return before
        ranked: list[int] = []
        of_kind: list[list[int]] = [[] for _ in range(_KINDS)]
        for tokens, kind in sorted(self._lengths):
            ranked.append(tokens)
            of_kind[kind].append(tokens)
        found = NextPrompts(
            tuple(ranked[int(level * (len(ranked) - 1))] for level in _LEVELS),
            tuple(tuple(_quantile(level, own, ranked) for level in _LEVELS) for own in of_kind),
        )
        return before if before is not None and found.is_much_like(before) else found


def _quantile(level: float, own: Sequence[int], ranked: Sequence[int]) -> int:
    """Of the mixture of what a kind has seen with what all have, in the measure of their numbers. Both are sorted."""
    weight = _STRENGTH / len(ranked)
    wanted = level * (len(own) + _STRENGTH)

    def below(index: int) -> float:
        return bisect_right(own, ranked[index]) + weight * (index + 1)

    low, high = 0, len(ranked) - 1
    while low < high:
        middle = (low + high) // 2
        if below(middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return ranked[low]
