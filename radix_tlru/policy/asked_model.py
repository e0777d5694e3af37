"""A model of one's own that is asked, answer by answer: what is wrong with one is said in a line.

In come questions as an order asks them. Out come the answers, or a :class:`ModelError` with the call, the answer and
what is allowed. Nothing here knows what the answers are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from radix_tlru.config import one_line
from radix_tlru.policy.models import Group, Leaf

__all__ = ["LATER", "AskedModel", "ModelError", "is_number", "is_real", "is_whole", "plain"]

LATER = (0.0, 0.5, 1.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0, 1e7)
"""Times that are asked about, after the last use of a leaf, in the model's time."""


class ModelError(ValueError):
    """A model breaks its contract; the message is one line: the method, what it returned and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class AskedModel:
    """A model that is asked, and whose answers are looked at one by one."""

    def __init__(self, model: object, role: str = "a model that was made and told alike") -> None:
        self.model: Any = model
        self.name = type(model).__name__
        self.role = role

    def must_have(self, *names: str, methods: bool = False) -> None:
        """Raise unless the model has what is named."""
        there = dir(self.model)
        for name in names:
            kind = "method" if methods else "attribute"
            if name not in there or (methods and not callable(getattr(self.model, name))):
                raise ModelError(f"{self.name}: has no {kind} {name}")

    def attribute(self, name: str, is_allowed: Callable[[Any], bool], allowed: str) -> Any:
        """The value of an attribute."""
        try:
            value = getattr(self.model, name)
        except Exception as error:  # whatever somebody else's code raises
            raise ModelError(f"{self.name}.{name} raised {type(error).__name__}: {error}") from error
        if not is_allowed(value):
            raise ModelError(f"{self.name}.{name} is {value!r}: must be {allowed}")
        return value

    def ask(self, method: str, question: tuple[Any, ...], is_allowed: Callable[[Any], bool], allowed: str) -> Any:
        """The answer of a method to a question, which is asked twice."""
        try:
            answer, again = (getattr(self.model, method)(*question) for _ in range(2))
        except Exception as error:  # whatever somebody else's code raises
            raise ModelError(f"{self._call(method, question)} raised {type(error).__name__}: {error}") from error
        self.require(is_allowed(answer), method, question, answer, allowed)
        self.require(answer == again, method, question, again, f"{plain(answer)}, as before: nothing has happened")
        return answer

    def require(self, is_right: bool, method: str, question: tuple[Any, ...], answer: Any, allowed: str) -> None:
        """Raise unless an answer is right."""
        if not is_right:
            raise ModelError(f"{self._call(method, question)} returned {plain(answer)}: must be {allowed}")

    def key(self, leaf: Leaf) -> float:
        """Where the leaf stands in its group."""
        key: float = self.ask(
            "key", (leaf,), lambda value: is_real(value) and value < math.inf, "a number; not nan or inf"
        )
        return key

    def stamp(self, leaf: Leaf) -> float:
        """The time of its last use."""
        stamp: float = self.ask("stamp", (leaf,), is_number, "a finite number")
        return stamp

    def group(self, leaf: Leaf, now: float, least: float | None = None) -> Group:
        """Its group at that time; with ``least``, the one that lasts."""
        method, question = ("group", (leaf, now)) if least is None else ("lasting_group", (leaf, now, least))
        allowed = f"a Group of a whole number and an expiry later than now, {now:g}"
        found: Group = self.ask(method, question, lambda value: _is_group(value) and value.expiry > now, allowed)
        return found

    def rate(self, group: int, key: float, now: float) -> float:
        """λ."""
        question = (group, key, now)
        rate: float = self.ask("rate", question, lambda value: is_number(value) and value >= 0.0, "a finite number ≥ 0")
        return rate

    def times(self, leaf: Leaf) -> list[float]:
        """At which an order might ask for the leaf: from its last use on."""
        return [self.stamp(leaf) + later for later in LATER]

    def answers(self, leaves: Sequence[Leaf]) -> Iterator[tuple[str, Any]]:
        """What an order would ask of these leaves, in the same order each time, and the answers."""
        for leaf in leaves:
            key = self.key(leaf)
            yield self._call("key", (leaf,)), key
            yield self._call("stamp", (leaf,)), self.stamp(leaf)
            for now in self.times(leaf):
                group = self.group(leaf, now)
                yield self._call("group", (leaf, now)), group
                rate = group.number, key, now
                yield self._call("rate", rate), self.rate(*rate)

    def _call(self, method: str, question: tuple[Any, ...]) -> str:
        return f"{self.name}.{method}({', '.join(map(plain, question))})"


def is_whole(value: Any) -> bool:
    """A whole number; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def is_real(value: Any) -> bool:
    """A number or an infinity."""
    return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)


def is_number(value: Any) -> bool:
    """A finite number."""
    return is_real(value) and math.isfinite(value)


def _is_group(value: Any) -> bool:
    return isinstance(value, Group) and is_whole(value.number) and is_real(value.expiry)


def plain(value: Any) -> str:
    """A part of a call, short: of a leaf no conversation."""
    if isinstance(value, Leaf):
        return f"leaf {value.start} to {value.end} used at {value.last_access:g}"
    if isinstance(value, Group):
        return f"Group({value.number}, expiry={value.expiry})"
    return repr(value)
