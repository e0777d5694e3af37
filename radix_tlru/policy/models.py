"""The two models that a policy is made of: how soon a conversation returns, and how long its next prompt is.

Put into the formula of :func:`~radix_tlru.policy.tel.marginal_cost` they give LRU, T-LRU and their relatives:

===========  ==================  ====================================  ===
policy       return rate λ       P(Q > ·)                              w
===========  ==================  ====================================  ===
LRU          recency             not asked                             1
T-LRU        recency             step at Q̂, or learned                 0
ET-LRU       learned             learned                               w
===========  ==================  ====================================  ===

Both have a form that lets :class:`~radix_tlru.policy.order.EvictionOrder` keep queues instead of scoring every leaf.
A return model puts leaves into groups that are ordered by a key. A prompt model has finitely many price levels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

__all__ = [
    "AnyPrompt",
    "FixedPrompt",
    "Group",
    "Leaf",
    "PromptModel",
    "Recency",
    "ReturnModel",
    "ReturnModelWrapper",
    "SingleGroup",
    "for_another_order",
    "without_wrappers",
]


class Leaf(NamedTuple):
    """What is known of an evictable leaf. Depths are tokens from the root, multiples of the page size."""

    start: int  # depth at which the leaf's own tokens begin: what stays if all of it is evicted
    end: int  # depth at which they end: X, the tokens of the path that are cached
    history: int  # L ≥ end: the deepest this path has ever been, evicted tails included
    last_access: float  # logical time of the last use
    conversation: Any = None  # record of the turn that used it last, for models that look at one
    usable_without: int | None = None
    """Of a leaf that is evicted whole (hybrid models): tokens from the root that a next turn can use without it.
    None: the leaf is evicted page by page."""


class Group(NamedTuple):
    """Leaves whose order is that of their keys for as long as they are in it."""

    number: int
    expiry: float  # when the leaf will be in a group of a lower rate, if it is not used before; in the model's time


_FOREVER = Group(0, math.inf)


class ReturnModel(Protocol):
    """How soon a conversation is worth its space again.

    Rates may rise and fall with age and differ between conversations. Leaves are put into groups, within which the
    lower key has the lower rate. A group can be a class of conversations and a band of ages.
    """

    @property
    def timeless(self) -> bool:
        """Whether all leaves of a group have one rate, which never changes.

        If not, a decision compares the first leaf of every group, so there should be few.
        """

    def key(self, leaf: Leaf) -> float:
        """Where the leaf stands in its group, whatever the time. While a leaf stays evictable its key may only grow."""

    def stamp(self, leaf: Leaf) -> float:
        """The time of the leaf's last use, in the model's time; the newest one seen is "now".

        A model whose time is that of stamps, in s, says so by an attribute ``in_seconds = True``.
        """

    def group(self, leaf: Leaf, now: float) -> Group:
        """The group that the leaf is in at time ``now``.

        Before ``expiry`` it may move to a group of a higher rate. The order sees that when the leaf would be next.

        A model may also have ``lasting_group(leaf, now, least)``. For a leaf whose rate is at least ``least`` it is a
        group that holds for longer, at a rate from ``least`` to that of the leaf. So a leaf that is far from being next
        is moved less often.
        """

    def rate(self, group: int, key: float, now: float) -> float:
        """Return rate λ ≥ 0, in 1 / (unit of time), at time ``now`` of a leaf of that group with that key."""

    def floor(self, leaf: Leaf) -> int:
        """Depth, tokens from the root, down to which the leaf's tokens are all of its group; 0: all of them."""


class PromptModel(Protocol):
    """How many tokens the next prompt adds: a distribution with finitely many price levels.

    A price level is a stretch of a path whose tokens exceed the threshold with the same probability if they are
    missing. Level 0 is at the tail; the last level reaches the root.
    """

    @property
    def probabilities(self) -> tuple[float, ...]:
        """P(Q > ξ - (L - X)) in each price level of a path, from its tail to its root, rising."""

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        """Q (tokens) at which a level ends: it reaches from the tail to where L + Q - ξ tokens stay. None: to the root.

        A model may also have ``first_level(leaf, longest)``: the first level that ends at a Q of ``longest`` tokens or
        less. It is then asked once, instead of ``next_prompt`` once for each level.
        """


class SingleGroup:
    """The part of a return model that says: rates change with time, and one order of keys holds for all leaves."""

    __slots__ = ()
    timeless: ClassVar[bool] = False

    def stamp(self, leaf: Leaf) -> float:
        return leaf.last_access

    def group(self, leaf: Leaf, now: float) -> Group:
        return _FOREVER

    def floor(self, leaf: Leaf) -> int:
        return 0


class ReturnModelWrapper:
    """A return model that answers as another does, but for what a subclass knows better."""

    def __init__(self, returns: ReturnModel) -> None:
        self._returns = returns

    def __copy__(self) -> Self:
        """For a preview of the order: the model inside is copied, too."""
        preview = object.__new__(type(self))
        vars(preview).update(vars(self), _returns=copy.copy(self._returns))
        return preview

    @property
    def timeless(self) -> bool:
        return self._returns.timeless

    @property
    def in_seconds(self) -> bool:
        """Whether the time of the model inside is that of stamps, in s."""
        return getattr(self._returns, "in_seconds", False)

    def key(self, leaf: Leaf) -> float:
        return self._returns.key(leaf)

    def stamp(self, leaf: Leaf) -> float:
        return self._returns.stamp(leaf)

    def floor(self, leaf: Leaf) -> int:
        return self._returns.floor(leaf)

    def inner_group(self, leaf: Leaf, now: float, least: float) -> Group:
        """The group of the leaf in the model inside, a lasting one if it has those."""
        lasting_group: Callable[[Leaf, float, float], Group] | None = getattr(self._returns, "lasting_group", None)
        return self._returns.group(leaf, now) if lasting_group is None else lasting_group(leaf, now, least)


def without_wrappers(returns: ReturnModel) -> ReturnModel:
    """The model inside, whose time and whose rates a wrapper goes by."""
    return without_wrappers(returns._returns) if isinstance(returns, ReturnModelWrapper) else returns


def for_another_order(returns: ReturnModel) -> ReturnModel:
    """The same model, for an order with a clock of its own: what wrappers keep of the time of one begins anew.

    The model inside is shared, so that both learn alike.
    """
    if isinstance(returns, ReturnModelWrapper):
        return type(returns)(for_another_order(returns._returns))
    return returns


@dataclass(frozen=True, slots=True)
class Recency(SingleGroup):
    """The longer unused, the longer until used again: λ = 1 / (age + 1).

    The order of LRU, with a scale: unused for twice as long is taken to be half as likely to return soon. The scale
    matters only between price levels and only if 0 < w < 1. The clock is logical (any unit, the same for all leaves).
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

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        return self.estimate if level == 0 else None

    def first_level(self, leaf: Leaf, longest: int) -> int:
        return 0 if self.estimate <= longest else 1


@dataclass(frozen=True, slots=True)
class AnyPrompt:
    """No opinion: every token of a path costs the same. With it a policy is its return model alone."""

    probabilities = (1.0,)

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        return None
