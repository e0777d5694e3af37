"""Every policy that can be simulated, by name: a pair of models and a weight for our order.

===============  ====================================  ==========================  ===
name             return rate λ                         P(Q > ·)                    w
===============  ====================================  ==========================  ===
lru              recency                               –                           1
threshold-lru    0 for histories under 1,024 tokens,   –                           1
                 else recency
tlru             recency                               step at Q̂, or learned       w
etlru            learned while serving                 learned while serving       w
etlru-given      λ_i e^{-μ (t - last turn)}, given     given distribution of Q     w
end-aware        0 once ended, else recency            step at Q̂                   w
length-aware     recency                               step at the true Q          w
belady           1 / time to the next use              –                           1
tail-belady      1 / time to the next use              step at the true Q          0
tail-belady-ends the same, of whole contexts alone     step at the true Q          0
===============  ====================================  ==========================  ===

``lru``, ``tlru`` and ``etlru`` are the package's own (``policy_for``, ``Learner``); the rest need knowledge that a
server does not have. Sources: Zhang et al., "Tail-Optimized Caching for LLM Inference": Algorithm 1 (tlru), Definition
1 (etlru), section 5.3 (end-aware, length-aware, threshold-lru), Theorem 1 (tail-belady). There contexts are lines:
``tail-belady-ends`` knows of a context when the whole of it is taken up again, ``tail-belady`` that of each part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np

from eval.caches.futures import futures
from eval.caches.simulator import Knowledge, SimulatedCache, Span
from eval.traces.request import Request
from radix_tlru import Config, Leaf, Policy, policy_for
from radix_tlru.config import DEFAULT_NEXT_PROMPT, MedianWeight, PolicyName
from radix_tlru.learning.learner import Learner
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, PromptModel, Recency, ReturnModel, SingleGroup

__all__ = ["ORACLES", "POLICIES", "Exponential", "PartOfTrace", "StepPrompt", "TraceKnowledge", "simulated_cache"]

ORACLES = ("end-aware", "length-aware", "belady", "tail-belady", "tail-belady-ends")
"""Policies that look into the future of the trace."""

POLICIES = ("lru", "threshold-lru", "tlru", "etlru", "etlru-given", *ORACLES)

LONG_ENOUGH = 1024
"""Tokens from which threshold-lru caches a conversation (paper, section 5)."""


@dataclass(frozen=True, slots=True)
class LongEnough(Recency):
    """Recency for histories of at least ``threshold`` tokens; shorter ones are not worth caching."""

    threshold: int

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access if leaf.history >= self.threshold else -math.inf


@dataclass(frozen=True, slots=True)
class Unended(Recency):
    """Recency until the conversation ends; then it never returns. ``leaf.conversation`` is its Future."""

    def key(self, leaf: Leaf) -> float:
        return -math.inf if math.isinf(leaf.conversation.at) else leaf.last_access


@dataclass(frozen=True, slots=True)
class NextUse(SingleGroup):
    """The rate of what returns for certain, and when. ``leaf.conversation`` is its Future."""

    def key(self, leaf: Leaf) -> float:
        return -float(leaf.conversation.at)

    def rate(self, group: int, key: float, now: float) -> float:
        return 1.0 / max(-key - now, 1.0)


@dataclass(frozen=True, slots=True)
class TrueNextPrompt:
    """The next prompt is as long as it will be; ``estimate`` tokens where there is none.

    ``leaf.conversation`` is its Future.
    """

    estimate: int
    probabilities = (0.0, 1.0)

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        if step:
            return None
        return self.estimate if math.isinf(leaf.conversation.at) else leaf.conversation.prompt_tokens - leaf.history


@dataclass(frozen=True, slots=True)
class Exponential(SingleGroup):
    """Turns at a conversation's own rate λ_i while it lives, and a life that ends at rate μ (paper, Definition 1).

    λ_i e^{-μ (t - last turn)}: the belief that it is still alive falls alike for all, so leaves keep their order.
    ``leaf.conversation`` is (λ_i in 1/s, time of the last turn in s).
    """

    death_rate: float  # μ, 1/s
    origin_s: float = 0.0  # rates are stated as of then: at any later time all have fallen by one and the same factor

    def key(self, leaf: Leaf) -> float:
        rate, last_turn = leaf.conversation
        return float(math.log(rate) + self.death_rate * (last_turn - self.origin_s))

    def rate(self, group: int, key: float, now: float) -> float:
        return math.exp(max(key, -700.0))


@dataclass(frozen=True)
class StepPrompt:
    """A distribution of Q by its quantiles: P(Q > ·) in ``len(quantiles) + 1`` steps."""

    quantiles: tuple[int, ...]  # tokens, falling; each as likely as the others

    @classmethod
    def of(cls, lengths: Sequence[int], steps: int = 8) -> StepPrompt:
        """From lengths of prompts (tokens), at most ``steps`` different ones."""
        middles = (np.arange(steps) + 0.5) / steps
        return cls(tuple(sorted({round(q) for q in np.quantile(lengths, middles)}, reverse=True)))

    @cached_property
    def probabilities(self) -> tuple[float, ...]:
        return tuple(np.linspace(0.0, 1.0, len(self.quantiles) + 1).tolist())

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        return self.quantiles[step] if step < len(self.quantiles) else None


class TraceKnowledge:
    """What policies may know of a trace beyond what a server sees; worked out once, when first asked for."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    @cached_property
    def futures(self) -> list[list[Span]]:
        return futures(self._requests)

    def future(self, number: int) -> Sequence[Span]:
        """The futures of a context, span by span."""
        return self.futures[number]

    def end(self, number: int) -> Sequence[Span]:
        """The future of a context that is taken up again as a whole or not at all."""
        return self.future(number)[-1:]

    def turn_rate(self, number: int) -> Sequence[Span]:
        """λ_i (1/s; equal for all where the trace does not tell) and the time of this turn (s)."""
        request = self._requests[number]
        return [Span(len(request.context), (request.return_rate or 1.0, request.arrival_s))]

    @cached_property
    def last_arrival_s(self) -> float:
        """When the trace ends."""
        return self._requests[-1].arrival_s if self._requests else 0.0

    @cached_property
    def returns(self) -> list[tuple[int, float]]:
        """Of each context whose end is looked up again: the tokens that the next prompt adds, and the wait (s)."""
        found = []
        for request, spans in zip(self._requests, self.futures, strict=True):
            if spans and not math.isinf(spans[-1].known.at):
                later = self._requests[int(spans[-1].known.at) - 1]
                found.append((later.prompt_tokens - len(request.context), later.arrival_s - request.arrival_s))
        return found

    @cached_property
    def next_prompts(self) -> StepPrompt | None:
        """Distribution of Q over the trace; None if nothing in it returns."""
        return StepPrompt.of([added for added, _ in self.returns]) if self.returns else None

    @cached_property
    def death_rate(self) -> float:
        """μ (1/s) of the exponential model with the trace's own share p of returns and mean wait: (1 - p) / wait."""
        wait = sum(wait for _, wait in self.returns) / max(len(self.returns), 1)
        return (1 - len(self.returns) / len(self._requests)) / wait if wait else 0.0


class PartOfTrace(TraceKnowledge):
    """The same for a cache that is sent only some of the requests: its n-th is number ``numbers[n]`` of the trace.

    The next use of a token is still the next in the trace, by whichever cache.
    """

    def __init__(self, whole: TraceKnowledge, numbers: Sequence[int]) -> None:
        super().__init__(whole._requests)
        self._whole, self._numbers = whole, numbers

    @cached_property
    def futures(self) -> list[list[Span]]:
        return self._whole.futures  # once for all parts

    def future(self, number: int) -> Sequence[Span]:
        return self._whole.future(self._numbers[number])

    def turn_rate(self, number: int) -> Sequence[Span]:
        return self._whole.turn_rate(self._numbers[number])


def simulated_cache(
    name: str,
    capacity: int,
    *,
    threshold: int,
    next_prompt_estimate: int | None = None,
    median_weight: MedianWeight = 0.0,
    page_size: int = 1,
    trim_chunk: int | None = 1,
    knowledge: TraceKnowledge | None = None,
    death_rate: float = 0.0,
    prompts: PromptModel | None = None,
    forced: bool = True,
) -> SimulatedCache:
    """A simulated cache under the policy ``name``; lengths in tokens.

    Args:
        next_prompt_estimate: Q̂; None: 200, or learned (tlru, etlru).
        median_weight: w; ``load`` only for tlru and etlru.
        trim_chunk: of lru, tlru and etlru; 1 is exact to the page. None: what a server has whose pool is ``capacity``.
        knowledge: of the trace; needed by all but lru, threshold-lru, tlru and etlru.
        death_rate: μ of etlru-given, 1/s.
        prompts: distribution of Q for etlru-given; without one, Q̂.

    Raises:
        ValueError: no such policy, or it needs knowledge that was not given.
    """
    estimate = DEFAULT_NEXT_PROMPT if next_prompt_estimate is None else next_prompt_estimate
    step: PromptModel = FixedPrompt(estimate)
    beliefs = Exponential(death_rate, knowledge.last_arrival_s if knowledge else 0.0)
    weight = 0.0 if isinstance(median_weight, str) else median_weight
    policy: Policy | Learner
    models: dict[str, tuple[ReturnModel, PromptModel, float]] = {
        "threshold-lru": (LongEnough(LONG_ENOUGH), AnyPrompt(), 1.0),
        "etlru-given": (beliefs, prompts or step, weight),
        "end-aware": (Unended(), step, weight),
        "length-aware": (Recency(), TrueNextPrompt(estimate), weight),
        "belady": (NextUse(), AnyPrompt(), 1.0),
        "tail-belady": (NextUse(), TrueNextPrompt(estimate), 0.0),
        "tail-belady-ends": (NextUse(), TrueNextPrompt(estimate), 0.0),
    }
    if name in models:
        if isinstance(median_weight, str):
            raise ValueError(f"--median-weight {median_weight}: {name} does not learn; only tlru and etlru do")
        returns, prompt_model, weight = models[name]
        policy = Policy(returns, prompt_model, threshold, weight)
    elif name in get_args(PolicyName):
        weight_of = None if name == "lru" else median_weight
        asked = Config(name, threshold, next_prompt_estimate, weight_of, trim_chunk=trim_chunk)  # type: ignore[arg-type]
        config = asked.for_pool(capacity)
        pinned = next_prompt_estimate is not None and not isinstance(median_weight, str)
        learns = name == "etlru" or (name == "tlru" and not pinned)
        policy = Learner(config, capacity, page_size) if learns else policy_for(config)
    else:
        raise ValueError(f"--policy {name}: must be one of {', '.join(POLICIES)}")
    return SimulatedCache(policy, capacity, page_size, knowledge=_known_to(name, knowledge), forced=forced)


def _known_to(name: str, knowledge: TraceKnowledge | None) -> Knowledge | None:
    if name in ("lru", "threshold-lru", "tlru", "etlru"):
        return None
    if knowledge is None:
        raise ValueError(f"--policy {name}: needs knowledge of the trace")
    if name == "etlru-given":
        return knowledge.turn_rate
    return knowledge.end if name == "tail-belady-ends" else knowledge.future
