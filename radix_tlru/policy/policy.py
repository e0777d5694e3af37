"""A policy: two models, a threshold and a weight, and what a token costs by them."""

from __future__ import annotations

from dataclasses import dataclass

from radix_tlru.config import Config
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Leaf, PromptModel, Recency, ReturnModel
from radix_tlru.policy.tel import keep_within_budget, marginal_cost

__all__ = ["Policy", "policy_for"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A pair of models, the threshold ξ (tokens) that they are judged by, and the weight w between median and tail.

    ``trim_chunk``: tokens taken from a leaf at a time if as many cost the same, and the least that a full cache makes
    room for. 1 takes exactly what is asked for.
    """

    returns: ReturnModel
    prompts: PromptModel
    threshold: int
    median_weight: float
    trim_chunk: int = 1

    @property
    def level_costs(self) -> tuple[float, ...]:
        """What a token of each price level costs at a return rate of 1, from the tail to the root, rising."""
        return tuple(marginal_cost(1.0, exceed, self.median_weight) for exceed in self.prompts.probabilities)

    @property
    def sees_threshold(self) -> bool:
        """Whether tokens are told apart by P(Q > ξ - (L - X)). If not, P is unknown, and so is what is TEL-safe."""
        return len(self.prompts.probabilities) > 1

    def has_levels_of(self, other: Policy) -> bool:
        """Whether every leaf is in the same group and at the same price level by both, whatever it costs."""
        if self.returns != other.returns:
            return False
        if self.prompts.probabilities == other.prompts.probabilities and not self.sees_threshold:
            return True
        return self.prompts == other.prompts and self.threshold == other.threshold

    def keep(self, leaf: Leaf, level: int, page_size: int) -> int:
        """Tokens that stay, from the root, when all of a price level has been taken from the path of ``leaf``."""
        next_prompt = self.prompts.next_prompt(leaf, level)
        if next_prompt is None:
            return 0
        return keep_within_budget(leaf.history, next_prompt, self.threshold, page_size)


def policy_for(config: Config) -> Policy:
    """The policy that a configuration begins with, before anything is learned: recency, a step at Q̂, its first ξ.

    Trims are exact to the page if the configuration names no chunk and no pool (:meth:`Config.for_pool`).
    """
    chunk = config.trim_chunk or 1
    if config.policy == "lru":
        return Policy(Recency(), AnyPrompt(), config.start_threshold, median_weight=1.0, trim_chunk=chunk)
    return Policy(Recency(), FixedPrompt(config.next_prompt), config.start_threshold, config.weight, chunk)
