"""Return and prompt models that a server cannot have: they are given facts of the trace, or look into its future.

``leaf.conversation`` holds what a model looks at: a :class:`~eval.caches.futures.Future`, unless its docstring says
otherwise.
Source: Zhang et al., "Tail-Optimized Caching for LLM Inference", arXiv 2510.15152.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from radix_tlru import Leaf
from radix_tlru.policy.models import Recency, SingleGroup


@dataclass(frozen=True, slots=True)
class LongEnough(Recency):
    """Recency for histories of at least ``threshold`` tokens; λ = 0 for shorter ones (paper, section 5)."""

    threshold: int

    def key(self, leaf: Leaf) -> float:
        """The time of the last use; −∞ for a short history, which goes first."""
        return leaf.last_access if leaf.history >= self.threshold else -math.inf


@dataclass(frozen=True, slots=True)
class Unended(Recency):
    """Recency until the conversation ends, then λ = 0 (paper, section 5.3: End-Aware)."""

    def key(self, leaf: Leaf) -> float:
        """The time of the last use; −∞ once the conversation has ended."""
        return -math.inf if math.isinf(leaf.conversation.at) else leaf.last_access


@dataclass(frozen=True, slots=True)
class NextUse(SingleGroup):
    """λ = 1 / time to the next use, in requests (Belady)."""

    def key(self, leaf: Leaf) -> float:
        """Minus the number of the request that uses it next: the latest goes first."""
        return -float(leaf.conversation.at)

    def rate(self, group: int, key: float, now: float) -> float:
        """λ, 1 / requests until the next use."""
        return 1.0 / max(-key - now, 1.0)


@dataclass(frozen=True, slots=True)
class TrueNextPrompt:
    """Q is the true length of the next prompt; ``estimate`` tokens where no prompt follows."""

    estimate: int
    probabilities = (0.0, 1.0)

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        """Q (tokens) at level 0, which ends at the true next prompt; level 1 reaches to the root."""
        if level:
            return None
        return self.estimate if math.isinf(leaf.conversation.at) else leaf.conversation.prompt_tokens - leaf.history


@dataclass(frozen=True, slots=True)
class Exponential(SingleGroup):
    """λ = λ_i e^{−μ (t − last turn)}: turns at rate λ_i while a conversation lives, which ends at rate μ.

    Source: paper, Definition 1. All rates fall by the same factor, so leaves keep their order. ``leaf.conversation`` is
    (λ_i in 1/s, time of the last turn in s).
    """

    death_rate: float  # μ, 1/s
    origin_s: float = 0.0  # rates are stated as of this time, in s

    def key(self, leaf: Leaf) -> float:
        """log λ as of ``origin_s``, which orders leaves at any time."""
        rate, last_turn = leaf.conversation
        return float(math.log(rate) + self.death_rate * (last_turn - self.origin_s))

    def rate(self, group: int, key: float, now: float) -> float:
        """λ in 1/s as of ``origin_s``; e^−700 is the least that a float holds."""
        return math.exp(max(key, -700.0))


@dataclass(frozen=True)
class StepPrompt:
    """A distribution of Q by its quantiles: P(Q > ·) in ``len(quantiles)`` steps. Equal ones are one larger step."""

    quantiles: tuple[int, ...]  # tokens, none above the one before; each as likely as the others

    @classmethod
    def of(cls, lengths: Sequence[int], steps: int = 8) -> StepPrompt:
        """From lengths of prompts (tokens), by the medians of ``steps`` equal parts."""
        middles = (np.arange(steps) + 0.5) / steps
        return cls(tuple(sorted((round(q) for q in np.quantile(lengths, middles)), reverse=True)))

    @cached_property
    def probabilities(self) -> tuple[float, ...]:
        """P(Q > ·) at each level, rising in equal steps from 0 to 1."""
        return tuple(np.linspace(0.0, 1.0, len(self.quantiles) + 1).tolist())

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        """The quantile (tokens) at which a level ends; the last level reaches to the root."""
        return self.quantiles[level] if level < len(self.quantiles) else None
