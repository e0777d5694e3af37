"""The policies that are compared: which they are, and how each follows what is learned and said.

The candidates of ``etlru`` are the learned rates alone (w = 1), the same with a threshold (w = 0.6), and lru. Where w
is given, there are two: the learned rates with that w, and lru. The candidates of ``tlru`` are itself and lru.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from radix_tlru.config import Config
from radix_tlru.hints.models import HintedPrompts, with_hints
from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.learning.reuse import reusable_only
from radix_tlru.policy.models import AnyPrompt, PromptModel, ReturnModel
from radix_tlru.policy.policy import Policy, policy_for

__all__ = ["Candidates"]

_TAIL_WEIGHT = 0.6
"""w of the candidate that trades the median for the tail."""


class Candidates(Mapping[str, Policy]):
    """Policies by name; the first is the one that was asked for, the last is lru.

    Args:
        config: with the policy ``etlru`` or ``tlru``.
        returns: who comes back, as it is learned for ``etlru``.
    """

    def __init__(self, config: Config, returns: ReturnModel) -> None:
        self._policies = _etlru(config, returns) if config.policy == "etlru" else _tlru(config)
        self.takes_hints = False
        """Whether they believe what clients say."""
        self.evicts_unreusable = False
        """Whether they evict first what no next prompt repeats."""
        self.on_new_version: Callable[[str, Policy], None] | None = None
        """Called with each candidate that is another policy now."""

    def __getitem__(self, name: str) -> Policy:
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def take_hints(self) -> None:
        """Have all of them believe clients, lru too. A server that never had a hint saves the calls."""
        if not self.takes_hints:
            self.takes_hints = True
            self._replace({name: with_hints(policy) for name, policy in self.items()})

    def evict_unreusable(self) -> None:
        """Have them evict first what no prompt repeats. lru does not: it is lru as it is."""
        if not self.evicts_unreusable:
            self.evicts_unreusable = True
            self._replace({name: reusable_only(policy) for name, policy in self.items() if name != "lru"})

    def use_threshold(self, threshold: int) -> None:
        """Judge by another ξ (tokens) from now on."""
        self._replace({name: replace(policy, threshold=threshold) for name, policy in self.items()})

    def expect_prompts(self, prompts: PromptModel) -> None:
        """Have those that look at the next prompt expect such lengths."""
        model = HintedPrompts(prompts) if self.takes_hints else prompts
        self._replace({name: replace(policy, prompts=model) for name, policy in self.items() if policy.sees_threshold})

    def _replace(self, policies: Mapping[str, Policy]) -> None:
        for name, policy in policies.items():
            if policy is not self._policies[name]:
                self._policies[name] = policy
                if self.on_new_version is not None:
                    self.on_new_version(name, policy)


def _tlru(config: Config) -> dict[str, Policy]:
    pinned = policy_for(config)
    learns = config.next_prompt_estimate is None
    lru = replace(pinned, prompts=AnyPrompt(), median_weight=1.0)
    return {"tlru": replace(pinned, returns=RecentTurns()) if learns else pinned, "lru": lru}


def _etlru(config: Config, returns: ReturnModel) -> dict[str, Policy]:
    policy = policy_for(config)
    lru = replace(policy, prompts=AnyPrompt(), median_weight=1.0)
    learned = replace(policy, returns=returns)
    if policy.median_weight == 1.0:
        learned = replace(learned, prompts=AnyPrompt())
    if config.median_weight is not None:
        return {"etlru": learned, "lru": lru}
    tail = replace(learned, prompts=policy.prompts, median_weight=_TAIL_WEIGHT)
    return {"etlru": learned, f"etlru w={_TAIL_WEIGHT:g}": tail, "lru": lru}
