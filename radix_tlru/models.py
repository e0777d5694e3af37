"""The two small models and the weight that make a policy.

What an eviction policy believes about the future is: how soon a conversation returns (:class:`ReturnModel`) and how
long its next prompt will be (:class:`PromptModel`). Put into the one formula of :mod:`radix_tlru.tel` they give LRU,
T-LRU and their relatives:

===========  ==============  ====================================  ===
policy       return rate     P(Q > ·)                              w
===========  ==============  ====================================  ===
LRU          recency         not asked                             1
T-LRU        recency         step at Q̂ (``next_prompt_estimate``)  0
===========  ==============  ====================================  ===

A prompt model is a step function, because a cost that changes at finitely many depths is what lets
:class:`~radix_tlru.order.EvictionOrder` keep one heap for each step instead of scoring every leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from radix_tlru.config import Config
from radix_tlru.tel import keep_within_budget

__all__ = ["AnyPrompt", "FixedPrompt", "Policy", "PromptModel", "Recency", "ReturnModel", "Step", "policy_for"]


class ReturnModel(Protocol):
    """How soon a conversation is worth its space again."""

    def rate(self, last_access: float, now: float) -> float:
        """Return rate λ > 0, in 1 / (unit of time), of a conversation last used at ``last_access`` ≤ ``now``.

        Must fall with age, so that within a step the least recent leaf is always the cheapest.
        """


class Step(NamedTuple):
    """One step of P(Q > ·): the depths of a path at which the next token to go costs the same."""

    next_prompt: int | None  # tokens; the step ends where L + next_prompt - ξ tokens stay. None: at the root
    exceed_probability: float  # P(Q > ξ - (L - X)) anywhere within the step


class PromptModel(Protocol):
    """How many tokens the next prompt adds."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """From the tail of a path towards its root, so with rising probability; the last step ends at the root."""


@dataclass(frozen=True, slots=True)
class Recency:
    """The longer unused, the longer until used again: λ = 1 / age.

    The order of LRU, with a scale: unused for twice as long is taken to be half as likely to return soon. The scale
    matters only between steps and only if 0 < w < 1. The clock is logical (any unit, the same for all leaves).
    """

    def rate(self, last_access: float, now: float) -> float:
        return 1.0 / (now - last_access + 1.0)


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """Every next prompt adds ``next_prompt`` tokens (the paper's Q̂): free beyond the budget, dear within it."""

    next_prompt: int

    @property
    def steps(self) -> tuple[Step, ...]:
        return (Step(self.next_prompt, 0.0), Step(None, 1.0))


@dataclass(frozen=True, slots=True)
class AnyPrompt:
    """No opinion: every token of a path costs the same. With it a policy is its return model alone."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return (Step(None, 1.0),)


@dataclass(frozen=True, slots=True)
class Policy:
    """A pair of models, the threshold ξ (tokens) they are judged by, and the weight w between median and tail."""

    returns: ReturnModel
    prompts: PromptModel
    threshold: int
    median_weight: float

    def keep(self, history: int, step: Step, page_size: int) -> int:
        """Tokens that stay, from the root, when all of ``step`` has been taken from a path of ``history`` tokens."""
        if step.next_prompt is None:
            return 0
        return keep_within_budget(history, step.next_prompt, self.threshold, page_size)


def policy_for(config: Config) -> Policy:
    """The policy that a configuration names."""
    if config.policy == "lru":
        return Policy(Recency(), AnyPrompt(), config.threshold, median_weight=1.0)
    return Policy(Recency(), FixedPrompt(config.next_prompt_estimate), config.threshold, config.median_weight)
