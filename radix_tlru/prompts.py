"""How long next prompts are, learned online: a distribution instead of the one estimate Q̂."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from radix_tlru.models import Leaf

__all__ = ["LearnedPrompts", "NextPrompts"]

_LEVELS = (0.998, 0.985, 0.95, 0.85, 0.6)
_PROBABILITIES = (0.0, *((2.0 - high - low) / 2.0 for high, low in pairwise(_LEVELS)), 1.0)
_REMEMBERED = 2_000  # lengths
_CHANGE = 0.1  # of a quantile, below which the distribution is taken to be what it was


@dataclass(frozen=True, slots=True)
class NextPrompts:
    """A distribution of Q by its quantiles; what is longer than the first of them does not happen."""

    quantiles: tuple[int, ...]  # tokens: exceeded by 0.2, 1.5, 5, 15 and 40 % of next prompts
    probabilities = _PROBABILITIES

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        return self.quantiles[step] if step < len(self.quantiles) else None


class LearnedPrompts:
    """The last 2,000 lengths (tokens) that continuing prompts have added."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, tokens: int) -> None:
        """A conversation was continued by a prompt that added as many tokens."""
        self._lengths.append(tokens)

    def distribution(self, before: NextPrompts | None = None) -> NextPrompts | None:
        """As seen lately: ``before`` itself if that has not changed; None if nothing was seen."""
        if not self._lengths:
            return before
        ranked = sorted(self._lengths)
        found = tuple(ranked[int(level * (len(ranked) - 1))] for level in _LEVELS)
        if before is not None and all(
            abs(now - then) <= _CHANGE * max(now, then) for now, then in zip(found, before.quantiles, strict=True)
        ):
            return before
        return NextPrompts(found)
