"""One frozen configuration, validated in one place; flags, ``Engine`` arguments and files all end here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

__all__ = ["FLAGS", "Config", "ConfigError", "PolicyName"]

PolicyName = Literal["tlru", "etlru", "lru"]

# Field → command-line flag; the keyword of `sglang.Engine` is the flag in snake case.
FLAGS = {
    "policy": "--radix-eviction",
    "threshold": "--tlru-threshold",
    "next_prompt_estimate": "--tlru-next-prompt-estimate",
    "median_weight": "--tlru-median-weight",
}


class ConfigError(ValueError):
    """A value that cannot be served; the message is one line naming the flag, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """What to evict first, in tokens.

    Raises:
        ConfigError: a value is out of range, of the wrong type, or leaves nothing for the policy to do.
    """

    policy: PolicyName = "tlru"
    """What goes first: ``tlru``, TEL-safe tails, then LRU. ``etlru``: what is least likely to be missed, learned while
    serving. ``lru``: stock order at page granularity, for comparison."""

    threshold: int = 2048
    """ξ, uncached tokens that still meet the TTFT objective. 2,048 is about 200 ms of prefill (7B model, A100)."""

    next_prompt_estimate: int = 200
    """Q̂, tokens that the next prompt is expected to add. 200 is the WildChat mean (paper, section 5)."""

    median_weight: float = 0.0
    """w in [0, 1]: 0 protects the tail alone, 1 is LRU; in between a token's age counts against its being safe."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(PolicyName):
            raise _error("policy", self.policy, f"one of {', '.join(get_args(PolicyName))}")
        for field in ("threshold", "next_prompt_estimate"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _error(field, value, "a whole number of tokens, 0 or more")
        weight = self.median_weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise _error("median_weight", weight, "a number from 0 to 1")
        if not 0.0 <= weight <= 1.0:
            raise _error("median_weight", weight, "a number from 0 to 1")
        if self.policy != "lru" and self.threshold <= self.next_prompt_estimate:
            flag = FLAGS["next_prompt_estimate"]
            raise _error(
                "threshold",
                self.threshold,
                f"more than {flag} {self.next_prompt_estimate}, or nothing is ever TEL-safe",
            )

    def __str__(self) -> str:
        if self.policy == "lru":
            return "lru"
        return (
            f"{self.policy} (threshold={self.threshold} tokens, next_prompt_estimate={self.next_prompt_estimate} "
            f"tokens, median_weight={self.median_weight:g})"
        )


def _error(field: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{FLAGS[field]} {value}: must be {allowed}")
