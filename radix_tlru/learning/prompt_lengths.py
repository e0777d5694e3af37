"""How long next prompts are, learned online: a distribution instead of the one estimate Q̂.

The distribution depends on the kind of conversation: on the turn that the prompt will be, and on the length so far.
What follows a first short question is not what follows a long document. A kind that has seen few prompts is taken for
all of them. Part of Q is known beforehand: what could not be cached of the last turn. What is learned is what is new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from radix_tlru.policy.models import Leaf

__all__ = ["KINDS", "NextPrompts", "PromptLengths", "kind_of"]

_LEVELS = (0.998, 0.985, 0.95, 0.85, 0.6, 0.3, 0.1)
_PROBABILITIES = (0.0, *((2.0 - high - low) / 2.0 for high, low in pairwise(_LEVELS)), 1.0)
_REMEMBERED = 2_000  # lengths of the latest prompts
_CHANGE = 0.25  # share of a quantile: a smaller change does not replace the distribution in force

_TURNS = (1, 2, 4)  # turns before the last one, at which kinds begin: the first, the second, the next two, all later
_LENGTHS = (1_024, 4_096, 16_384)  # tokens of context, likewise
KINDS = (len(_TURNS) + 1) * (len(_LENGTHS) + 1)
"""Kinds of conversations, by which their next prompts are told apart."""
_STRENGTH = 200.0  # lengths of a kind that weigh as much as the distribution of all kinds

Quantiles = tuple[int, ...]


def kind_of(turn: int, length: int) -> int:
    """The kind of a conversation with so many ``turn``s before its last one and a context of ``length`` tokens."""
    return bisect_right(_TURNS, turn) * (len(_LENGTHS) + 1) + bisect_right(_LENGTHS, length)


@dataclass(frozen=True, slots=True)
class NextPrompts:
    """A distribution of Q by quantiles of what is new in it. A prompt longer than the first of them does not happen."""

    quantiles: Quantiles  # tokens: exceeded by 0.2, 1.5, 5, 15, 40, 70 and 90 % of next prompts
    of_kind: tuple[Quantiles, ...] = ()  # the same for each kind of conversation; none: all are alike
    probabilities = _PROBABILITIES

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        if level == len(self.quantiles):
            return None
        conversation = leaf.conversation
        if conversation is None:
            return self.quantiles[level]
        known: int = conversation.known_next_tokens
        return known + (self.of_kind[conversation.prompt_kind] if self.of_kind else self.quantiles)[level]

    def first_level(self, leaf: Leaf, longest: int) -> int:
        conversation, quantiles = leaf.conversation, self.quantiles
        if conversation is not None:
            longest -= conversation.known_next_tokens
            if self.of_kind:
                quantiles = self.of_kind[conversation.prompt_kind]
        for level, tokens in enumerate(quantiles):
            if tokens <= longest:
                return level
        return len(quantiles)

    def is_close_to(self, other: NextPrompts) -> bool:
        """Whether no quantile differs by more than a quarter."""
        rows, other_rows = (self.quantiles, *self.of_kind), (other.quantiles, *other.of_kind)
        return len(rows) == len(other_rows) and all(
            abs(one - another) <= _CHANGE * max(one, another)
            for row, other_row in zip(rows, other_rows, strict=True)
            for one, another in zip(row, other_row, strict=True)
        )


class PromptLengths:
    """The last 2,000 lengths (tokens) that prompts have added to their conversations."""

    def __init__(self) -> None:
        self._counted = 0
        self._lengths = np.zeros(_REMEMBERED, np.int64)  # a ring
        self._kinds = np.zeros(_REMEMBERED, np.int64)  # of what was continued

    def count_prompt(self, tokens: int, kind: int) -> None:
        """A conversation of that kind was continued by a prompt that added ``tokens``."""
        row = self._counted % _REMEMBERED
        self._lengths[row], self._kinds[row] = tokens, kind
        self._counted += 1

    def snapshot(self) -> tuple[tuple[int, int], ...]:
        """The lengths that are remembered, each with its kind; the oldest first."""
        rows = np.arange(max(self._counted - _REMEMBERED, 0), self._counted) % _REMEMBERED
        return tuple(zip(self._lengths[rows].tolist(), self._kinds[rows].tolist(), strict=True))

    def restore(self, lengths: Iterable[tuple[int, int]]) -> None:
        """Begin with the lengths of a former run."""
        for tokens, kind in lengths:
            self.count_prompt(tokens, kind)

    def distribution(self, before: NextPrompts | None = None) -> NextPrompts | None:
        """As seen lately: ``before`` itself if that has not changed; None if nothing was seen."""
        if not self._counted:
            return before
        rows = min(self._counted, _REMEMBERED)
        order = np.argsort(self._lengths[:rows])  # equal ones in any order: what is found is a length
        lengths, kinds = self._lengths[order], self._kinds[order]
        # Each kind is a mixture of its own lengths with all of them, in the measure of their numbers.
        own = np.cumsum(kinds == np.arange(KINDS)[:, None], axis=1)
        every = np.arange(1, len(lengths) + 1) / len(lengths)
        of_kind = [
            lengths[np.searchsorted(below + _STRENGTH * every, np.array(_LEVELS) * (below[-1] + _STRENGTH) - 1e-9)]
            for below in own
        ]
        found = NextPrompts(
            tuple(lengths[[int(level * (len(lengths) - 1)) for level in _LEVELS]].tolist()),
            tuple(tuple(quantiles.tolist()) for quantiles in of_kind),
        )
        return before if before is not None and found.is_close_to(before) else found
