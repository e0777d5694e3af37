"""The two small models and the weight that make a policy.

What an eviction policy believes about the future is: how soon a conversation returns (:class:`ReturnModel`) and how
long its next prompt will be (:class:`PromptModel`). Put into the one formula of :mod:`~.tel` they give LRU,
T-LRU and their relatives:

===========  ==============  ====================================  ===
policy       return rate     P(Q > ·)                              w
===========  ==============  ====================================  ===
LRU          recency         not asked                             1
T-LRU        recency         step at Q̂, or learned                 0
ET-LRU       learned         learned                               w
===========  ==============  ====================================  ===

Both are of a form that lets ``EvictionOrder`` keep heaps instead of scoring every leaf: rates
that keep the order of leaves as time goes by, and a P(Q > ·) that changes at finitely many depths of a path.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from radix_tlru.config import Config
from radix_tlru.policy.tel import keep_within_budget, marginal_cost

__all__ = [
    "AnyPrompt",
    "FixedPrompt",
    "Group",
    "Leaf",
    "OneGroup",
    "Policy",
    "PromptModel",
    "Recency",
    "ReturnModel",
    "Wrapped",
    "policy_for",
]


class Leaf(NamedTuple):
    """What is known of an evictable leaf. Depths are tokens from the root, multiples of the page size."""

    start: int  # depth at which the leaf's own tokens begin: what stays if all of it is evicted
    end: int  # depth at which they end: X, the tokens of the path that are cached
    history: int  # L ≥ end: the deepest this path has ever been, evicted tails included
    last_access: float  # logical time of the last use
    known: Any = None  # what else the models of a policy look at
    rest: int | None = None  # if it goes whole or not at all: what a next turn can then still use. None: page by page


class Group(NamedTuple):
    """Leaves whose order is that of their keys for as long as they are in it."""

    number: int
    until: float  # when the leaf will be in a group of less rate, unless it is used before, in the model's time


_FOREVER = Group(0, math.inf)


class ReturnModel(Protocol):
    """How soon a conversation is worth its space again.

    Rates may rise and fall with age and differ between kinds of conversations, as long as leaves can be put into groups
    (a kind and a band of ages, say) within which the lower key has the lower rate.
    """

    @property
    def timeless(self) -> bool:
        """Whether all leaves of a group have one rate, which changes when ``version`` does and at no other time.

        If not there are few groups, as the first leaves of all are compared.
        """

    @property
    def version(self) -> int:
        """Counts the changes of timeless rates."""

    def key(self, leaf: Leaf) -> float:
        """Where the leaf stands in its group, whatever the time. While a leaf stays evictable its key may only grow."""

    def stamp(self, leaf: Leaf) -> float:
        """The time of the leaf's last use, in the model's time; the newest one seen is "now"."""

    def group(self, leaf: Leaf, now: float) -> Group:
        """The group that the leaf is in at time ``now``.

        It may be in another before ``until``, of a higher rate: that is seen when it would be the next to go.
        """

    def rate(self, group: int, key: float, now: float) -> float:
        """Return rate λ ≥ 0, in 1 / (unit of time), at time ``now`` of a leaf of that group with that key."""

    def floor(self, leaf: Leaf) -> int:
        """Depth, tokens from the root, down to which the leaf's tokens are all of its group; 0: all of them."""


class PromptModel(Protocol):
    """How many tokens the next prompt adds: a distribution with finitely many steps."""

    @property
    def probabilities(self) -> tuple[float, ...]:
        """P(Q > ξ - (L - X)) in each step of a path, from its tail to its root, rising."""

    @property
    def usual(self) -> int:
        """The step that ends at a prompt of usual length."""

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        """Q at which a step ends: it reaches from the tail to where L + Q - ξ tokens stay. None: to the root."""


class OneGroup:
    """The part of a return model that says: rates change with time, and one order of keys holds for all leaves."""

    __slots__ = ()
    timeless: ClassVar[bool] = False
    version: ClassVar[int] = 0

    def stamp(self, leaf: Leaf) -> float:
        return leaf.last_access

    def group(self, leaf: Leaf, now: float) -> Group:
        return _FOREVER

    def floor(self, leaf: Leaf) -> int:
        return 0


class Wrapped:
    """A return model that goes by another, but for what it knows better."""

    def __init__(self, returns: ReturnModel) -> None:
        self._returns = returns

    def __copy__(self) -> Self:
        ahead = object.__new__(type(self))
        vars(ahead).update(vars(self), _returns=copy.copy(self._returns))
        return ahead

    @property
    def timeless(self) -> bool:
        return self._returns.timeless

    @property
    def version(self) -> int:
        return self._returns.version

    def key(self, leaf: Leaf) -> float:
        return self._returns.key(leaf)

    def stamp(self, leaf: Leaf) -> float:
        return self._returns.stamp(leaf)

    def floor(self, leaf: Leaf) -> int:
        return self._returns.floor(leaf)


@dataclass(frozen=True, slots=True)
class Recency(OneGroup):
    """The longer unused, the longer until used again: λ = 1 / age.

    The order of LRU, with a scale: unused for twice as long is taken to be half as likely to return soon. The scale
    matters only between steps and only if 0 < w < 1. The clock is logical (any unit, the same for all leaves).
    """

    def key(self, leaf: Leaf) -> float:
        return leaf.last_access

    def rate(self, group: int, key: float, now: float) -> float:
        return 1.0 / (now - key + 1.0)


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """Every next prompt adds Q̂ tokens: what lies beyond the budget is free, what lies within it is dear."""

    estimate: int
    probabilities = (0.0, 1.0)
    usual = 0

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        return self.estimate if step == 0 else None

    def first_step(self, leaf: Leaf, longest: int) -> int:
        """The first step that ends at no more than so many tokens."""
        return 0 if self.estimate <= longest else 1


@dataclass(frozen=True, slots=True)
class AnyPrompt:
    """No opinion: every token of a path costs the same. With it a policy is its return model alone."""

    probabilities = (1.0,)
    usual = 0

    def next_prompt(self, leaf: Leaf, step: int) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class Policy:
    """A pair of models, the threshold ξ (tokens) they are judged by, and the weight w between median and tail.

    ``trim_chunk``: tokens taken from a leaf at a time, if as many cost the same, and what a cache makes room for at
    least when it is full; 1 is what is asked for.

    ``median``: m, the tokens beyond which the weight w counts. A request that stays below them is in the better half
    whatever else it has to prefill, so nothing that is cached for it helps the median. With 0, every token counts.
    """

    returns: ReturnModel
    prompts: PromptModel
    threshold: int
    median_weight: float
    trim_chunk: int = 1
    median: int = 0

    @property
    def probabilities(self) -> tuple[float, ...]:
        """P(Q > ξ - (L - X)) in each step of a path, from its tail to its root."""
        return tuple(probability for probability, _ in self._steps)

    @property
    def shares(self) -> tuple[float, ...]:
        """What a token of each step costs, for a return rate of 1."""
        return tuple(marginal_cost(1.0, tail, self.median_weight, median) for tail, median in self._steps)

    @property
    def _steps(self) -> tuple[tuple[float, float], ...]:
        """P(Q > ξ - (L - X)) and, of a next prompt of usual length, whether it is beyond m: two steps to each."""
        beyond_m = (0.0, 1.0) if self.median else (1.0,)
        return tuple((probability, beyond) for probability in self.prompts.probabilities for beyond in beyond_m)

    @property
    def first_step(self) -> Callable[[Leaf, int], int] | None:
        """Says of a leaf which step is the first to end at a Q of so many tokens or less; None: ask one after another.

        A prompt model may be able to (``first_step``), and is asked once then instead of once for each step.
        """
        find: Callable[[Leaf, int], int] | None = getattr(self.prompts, "first_step", None)
        if find is None or not self.median:
            return find
        next_prompt, usual, beyond_m = self.prompts.next_prompt, self.prompts.usual, self.threshold - self.median

        def of_two(leaf: Leaf, longest: int) -> int:
            tokens = next_prompt(leaf, usual)
            return 2 * find(leaf, longest) + (tokens is not None and tokens + beyond_m > longest)

        return of_two

    def step_end(self, leaf: Leaf, step: int) -> int | None:
        """Q at which a step ends: it reaches from the tail to where L + Q - ξ tokens stay. None: to the root."""
        if not self.median:
            return self.prompts.next_prompt(leaf, step)
        step, beyond = divmod(step, 2)
        ends = self.prompts.next_prompt(leaf, step)
        usual = None if beyond else self.prompts.next_prompt(leaf, self.prompts.usual)
        if usual is None:
            return ends
        usual += self.threshold - self.median
        return usual if ends is None else max(usual, ends)

    def keep(self, leaf: Leaf, step: int, page_size: int) -> int:
        """Tokens that stay, from the root, when all of a step has been taken from the path of ``leaf``."""
        next_prompt = self.step_end(leaf, step) if self.median else self.prompts.next_prompt(leaf, step)
        if next_prompt is None:
            return 0
        return keep_within_budget(leaf.history, next_prompt, self.threshold, page_size)


def policy_for(config: Config) -> Policy:
    """The policy that a configuration begins with: its start threshold, and T-LRU before anything was learned.

    Trims are exact to the page if the configuration says no chunk and is of no pool yet (:meth:`Config.for_pool`).
    """
    chunk = config.trim_chunk or 1
    if config.policy == "lru":
        return Policy(Recency(), AnyPrompt(), config.start_threshold, median_weight=1.0, trim_chunk=chunk)
    return Policy(Recency(), FixedPrompt(config.next_prompt), config.start_threshold, config.start_weight, chunk)
