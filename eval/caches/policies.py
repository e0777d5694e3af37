"""Every policy of the simulator, by name: two models and a weight for the server's own eviction order.

================  =====================================  ==========================  ===
name              return rate λ                          P(Q > ·)                    w
================  =====================================  ==========================  ===
lru               recency                                –                           1
tlru              recency                                step at Q̂, or learned       w
etlru             learned while serving                  learned while serving       w
threshold-lru     0 for histories under 1,024 tokens,    –                           1
                  else recency
etlru-given       λ_i e^{−μ (t − last turn)}, given      given distribution of Q     w
end-aware         0 once ended, else recency             step at Q̂                   w
length-aware      recency                                step at the true Q          w
belady            1 / time to the next use               –                           1
tail-belady       1 / time to the next use               step at the true Q          0
tail-belady-ends  the same, for whole contexts only      step at the true Q          0
================  =====================================  ==========================  ===

``lru``, ``tlru`` and ``etlru`` are the package's own. The others are entries of ``DEFINITIONS``, which also say what
has to be known of the trace. In the paper contexts are lines: ``tail-belady-ends`` knows when the whole of a context is
used again, ``tail-belady`` knows it of each part.

Sources: Zhang et al., "Tail-Optimized Caching for LLM Inference": Algorithm 1 (tlru), Definition 1 (etlru), section 5.3
(end-aware, length-aware, threshold-lru), Theorem 1 (tail-belady).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eval.caches.knowledge import TraceKnowledge
from eval.caches.models import Exponential, LongEnough, NextUse, TrueNextPrompt, Unended
from eval.caches.simulator import Knowledge, SimulatedCache
from radix_tlru import Config, Policy, policy_for
from radix_tlru.config import DEFAULT_NEXT_PROMPT, PolicyName
from radix_tlru.learning.learner import Learner
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, PromptModel, Recency

SERVER_POLICIES: tuple[PolicyName, ...] = ("lru", "tlru", "etlru")
"""Policies that the package has: a server can run them."""

LONG_ENOUGH = 1024
"""Tokens from which threshold-lru caches a conversation (paper, section 5)."""


@dataclass(frozen=True, slots=True)
class Given:
    """The settings that a definition builds its policy from. Lengths in tokens."""

    threshold: int  # ξ
    estimate: int  # Q̂
    weight: float  # w
    prompts: PromptModel  # the given distribution of Q; a step at Q̂ where none was given
    death_rate: float  # μ, 1/s
    last_arrival_s: float  # when the trace ends


@dataclass(frozen=True, slots=True)
class Definition:
    """A policy that a server does not have."""

    build: Callable[[Given], Policy]
    knowledge: Callable[[TraceKnowledge], Knowledge] | None = None
    """What it has to know of each context; None: nothing."""

    is_oracle: bool = False
    """Whether it looks into the future of the trace."""


DEFINITIONS: dict[str, Definition] = {
    "threshold-lru": Definition(lambda given: Policy(LongEnough(LONG_ENOUGH), AnyPrompt(), given.threshold, 1.0)),
    "etlru-given": Definition(
        lambda given: Policy(
            Exponential(given.death_rate, given.last_arrival_s), given.prompts, given.threshold, given.weight
        ),
        lambda trace: trace.turn_rate,
    ),
    "end-aware": Definition(
        lambda given: Policy(Unended(), FixedPrompt(given.estimate), given.threshold, given.weight),
        lambda trace: trace.future,
        is_oracle=True,
    ),
    "length-aware": Definition(
        lambda given: Policy(Recency(), TrueNextPrompt(given.estimate), given.threshold, given.weight),
        lambda trace: trace.future,
        is_oracle=True,
    ),
    "belady": Definition(
        lambda given: Policy(NextUse(), AnyPrompt(), given.threshold, 1.0),
        lambda trace: trace.future,
        is_oracle=True,
    ),
    "tail-belady": Definition(
        lambda given: Policy(NextUse(), TrueNextPrompt(given.estimate), given.threshold, 0.0),
        lambda trace: trace.future,
        is_oracle=True,
    ),
    "tail-belady-ends": Definition(
        lambda given: Policy(NextUse(), TrueNextPrompt(given.estimate), given.threshold, 0.0),
        lambda trace: trace.end,
        is_oracle=True,
    ),
}
"""Policies that only a simulation can run, by name. A new policy is a new entry."""

ORACLES = tuple(name for name, definition in DEFINITIONS.items() if definition.is_oracle)
"""Policies that look into the future of the trace."""

POLICIES = (*SERVER_POLICIES, *DEFINITIONS)
"""All policies of the simulator."""


def simulated_cache(
    name: str,
    capacity: int,
    *,
    threshold: int,
    next_prompt_estimate: int | None = None,
    median_weight: float | None = None,
    page_size: int = 1,
    trim_chunk: int | None = 1,
    knowledge: TraceKnowledge | None = None,
    death_rate: float = 0.0,
    prompts: PromptModel | None = None,
    forced: bool = True,
) -> SimulatedCache:
    """An empty simulated cache under the policy ``name``. Lengths in tokens.

    Args:
        next_prompt_estimate: Q̂; None: learned by tlru and etlru, 200 elsewhere.
        median_weight: w. None: that of a server for etlru, which chooses, and 0 for any other policy.
        trim_chunk: of lru, tlru and etlru; 1: exact to the page. None: that of a server whose pool is ``capacity``.
        knowledge: of the trace; needed by the policies whose definition says so.
        death_rate: μ of etlru-given, 1/s.
        prompts: the distribution of Q for etlru-given; without one, a step at Q̂.
        forced: every context is cached as it is served; else it may be trimmed at once.

    Raises:
        ValueError: no such policy, or knowledge that it needs was not given.
        ConfigError: a server would not take these settings.
    """
    if name in DEFINITIONS:
        definition = DEFINITIONS[name]
        if definition.knowledge is not None and knowledge is None:
            raise ValueError(f"--policy {name}: needs knowledge of the trace")
        estimate = DEFAULT_NEXT_PROMPT if next_prompt_estimate is None else next_prompt_estimate
        last_arrival_s = knowledge.last_arrival_s if knowledge is not None else 0.0
        step = FixedPrompt(estimate)
        given = Given(threshold, estimate, median_weight or 0.0, prompts or step, death_rate, last_arrival_s)
        known = definition.knowledge(knowledge) if definition.knowledge and knowledge else None
        return SimulatedCache(definition.build(given), capacity, page_size, knowledge=known, forced=forced)
    if name not in SERVER_POLICIES:
        raise ValueError(f"--policy {name}: must be one of {', '.join(POLICIES)}")
    weight = None if name == "lru" else median_weight  # Config takes none for lru
    asked = Config(name, threshold, next_prompt_estimate, weight, trim_chunk=trim_chunk)
    config = asked.for_pool(capacity)
    learns = name == "etlru" or (name == "tlru" and next_prompt_estimate is None)
    policy = Learner(config, capacity, page_size) if learns else policy_for(config)
    return SimulatedCache(policy, capacity, page_size, forced=forced)
