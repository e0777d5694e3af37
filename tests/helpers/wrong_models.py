"""Models that break their contract, each in one way, and the right ones that they are made from."""

from __future__ import annotations

import math
import random
from typing import Any

from radix_tlru import Leaf
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Group, Recency


class Right(Recency):
    """A right one, with what a model of one's own has."""

    def observe(self, turn: Any, conversation: Any) -> None:
        assert (len(turn.prompt_ids), len(turn.answer_ids)) == (turn.prompt_len, turn.answer_len)
        conversation.annotation = len(turn.answer_ids)


class EndsAtOnce(Right):
    def group(self, leaf: Leaf, now: float) -> Group:
        return Group(0, now)


class PlainPair(Right):
    def group(self, leaf: Leaf, now: float) -> Any:
        return 0, math.inf


class Negative(Right):
    def rate(self, group: int, key: float, now: float) -> float:
        return key - now - 1.0


class Endless(Right):
    def rate(self, group: int, key: float, now: float) -> float:
        return math.inf if key == now else 1.0


class OldFirst(Right):
    """The most recently used goes first, by the order of keys, and costs most."""

    def rate(self, group: int, key: float, now: float) -> float:
        return now - key + 1.0


class KeysFall(Right):
    def key(self, leaf: Leaf) -> float:
        return -leaf.last_access


class NoNumber(Right):
    def key(self, leaf: Leaf) -> float:
        return math.nan


class NeverUsed(Right):
    def stamp(self, leaf: Leaf) -> float:
        return -math.inf


class HoldsAll(Right):
    def floor(self, leaf: Leaf) -> int:
        return leaf.end


class Halves(Right):
    def floor(self, leaf: Leaf) -> int:
        return leaf.end / 2  # type: ignore[return-value]


class FallsUnseen(Right):
    """Half as likely to return after a minute, which its group does not say."""

    timeless = True

    def group(self, leaf: Leaf, now: float) -> Group:
        return Group(1 if now - leaf.last_access < 60.0 else 0, math.inf)

    def rate(self, group: int, key: float, now: float) -> float:
        return (1.0 + group) / 2.0


class SaysWhen(FallsUnseen):
    """The same, but for saying so."""

    def group(self, leaf: Leaf, now: float) -> Group:
        fresh = now < leaf.last_access + 60.0
        return Group(int(fresh), leaf.last_access + 60.0 if fresh else math.inf)


class LastsTooDear(SaysWhen):
    def lasting_group(self, leaf: Leaf, now: float, least: float) -> Group:
        return Group(1, math.inf)


class LastsRight(SaysWhen):
    def lasting_group(self, leaf: Leaf, now: float, least: float) -> Group:
        return Group(0, math.inf) if least <= 0.5 else self.group(leaf, now)


class NotTimeless(Right):
    timeless = True


class Rolls(Right):
    def rate(self, group: int, key: float, now: float) -> float:
        return random.random()


class Counts(Right):
    __slots__ = ("asked",)

    def __init__(self) -> None:
        object.__setattr__(self, "asked", 0.0)

    def key(self, leaf: Leaf) -> float:
        object.__setattr__(self, "asked", self.asked + 1.0)
        return self.asked


class Raises(Right):
    def stamp(self, leaf: Leaf) -> float:
        stamp: float = leaf.conversation.stamp
        return stamp


class FailsToSay(Right):
    @property
    def timeless(self) -> bool:  # type: ignore[override]
        raise LookupError("it depends")


class OneOfAKind(Right):
    def __copy__(self) -> OneOfAKind:
        raise TypeError("there is but one")


class Sometimes(Right):
    timeless = "no"


class Nothing:
    timeless = True


# ---- models that are right for as long as a check asks them ----


class NoNumberLater(Right):
    def rate(self, group: int, key: float, now: float) -> float:
        return math.nan if now > 1e8 else 1.0


class NoOrderLater(Right):
    def key(self, leaf: Leaf) -> float:
        return math.nan if leaf.last_access > 1e8 else leaf.last_access


class HoldsAllLater(Right):
    def floor(self, leaf: Leaf) -> int:
        return leaf.end if leaf.last_access > 1e8 else 0


# ---- prompt models ----


class Step(FixedPrompt):
    def __init__(self) -> None:
        super().__init__(200)


class Unlikely(Step):
    probabilities = (0.0, 1.5)


class Falls(Step):
    probabilities = (1.0, 0.0)


class NoLevels(Step):
    probabilities = ()


class EndsNowhere(Step):
    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        return 200


class OneLevel(Step):
    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        return None


class Rises(AnyPrompt):
    probabilities = (0.0, 0.5, 1.0)

    def next_prompt(self, leaf: Leaf, level: int) -> int | None:
        return (100, 200, None)[level]


class FirstIsOther(Step):
    def first_level(self, leaf: Leaf, longest: int) -> int:
        return 0


# ---- models that are wrong once they have been told of turns ----


class Forgets(Right):
    def observe(self, turn: Any, conversation: Any) -> None:
        raise KeyError(turn.prompt_len)


class ByIdentity(Right):
    """Remembers a conversation by its address, which no two ranks have in common."""

    def rate(self, group: int, key: float, now: float) -> float:
        return 1.0

    def group(self, leaf: Leaf, now: float) -> Group:
        return Group(0 if leaf.conversation is None else id(self), math.inf)
