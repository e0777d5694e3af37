"""Checks for models of one's own: does a model keep what :class:`~radix_tlru.policy.order.EvictionOrder` relies on?

A model that breaks its contract does not fail by itself. It evicts the wrong leaf, makes ranks differ, or never lets an
eviction end. These checks ask a model about some leaves and times, as an order would, and name the first wrong answer::

    check_return_model(MyReturns())    # raises ModelError: MyReturns.group(…) returned …: must …

The contracts are in :class:`~radix_tlru.policy.models.ReturnModel` and
:class:`~radix_tlru.policy.models.PromptModel`. A check takes some 100 ms. It cannot prove that a model is right.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from radix_tlru.policy.asked_model import LATER, AskedModel, ModelError, is_number, is_real, is_whole, plain
from radix_tlru.policy.models import Group, Leaf

__all__ = ["LEAVES", "ModelError", "check_prompt_model", "check_return_model"]

LEAVES = tuple(
    Leaf(start, end, history, last_access)
    for start, end, history in ((0, 64, 64), (1_024, 2_048, 2_048), (4_096, 8_192, 65_536))
    for last_access in (1.0, 2.0, 60.0, 4_000.0)
)
"""Leaves that a check asks about by default; no conversation is known of them."""

_LEAST = (0.0, 1e-6, 1e-3, 0.1, math.inf)  # rates that lasting groups are asked for
_LONGEST = (0, 1, 64, 200, 1_000, 8_192, 1 << 20)  # tokens, that first levels are asked for
_NEARLY_ALL = 1.0 - 1e-6  # of the time until an expiry
_ROUNDING = 1e-9  # by which rates may differ and count as equal, relative


def check_return_model(model: object, leaves: Sequence[Leaf] = LEAVES, twin: object | None = None) -> None:
    """Ask a return model as an order does, and hold its answers against the contract of ``ReturnModel``.

    Args:
        model: the model. It is not told of anything, but may keep what it finds.
        leaves: that it is asked about, with the conversations that it expects of them.
        twin: another model, made in the same way and told the same. It has to answer alike, as on another rank.

    Raises:
        ModelError: an attribute is missing, an answer is not allowed, or the same question has two answers.
    """
    asked = AskedModel(model)
    asked.must_have("timeless")
    asked.must_have("key", "stamp", "group", "rate", "floor", methods=True)
    asked.attribute("timeless", lambda value: isinstance(value, bool), "True or False")
    if hasattr(model, "in_seconds"):
        asked.attribute("in_seconds", lambda value: isinstance(value, bool), "True or False")
    _compare(asked, [_copy_of(asked), *([] if twin is None else [AskedModel(twin)])], leaves)
    for leaf in leaves:
        _check_leaf(asked, leaf)
    _check_groups(asked, leaves)


def check_prompt_model(model: object, leaves: Sequence[Leaf] = LEAVES) -> None:
    """Ask a prompt model as an order does, and hold its answers against the contract of ``PromptModel``.

    Raises:
        ModelError: an attribute is missing, or an answer is not allowed.
    """
    asked = AskedModel(model)
    asked.must_have("probabilities")
    asked.must_have("next_prompt", methods=True)
    levels = asked.attribute(
        "probabilities",
        lambda found: isinstance(found, tuple) and bool(found) and all(is_number(each) for each in found),
        "a tuple of one number or more",
    )
    in_order = list(levels) == sorted(levels) and levels[0] >= 0.0 and levels[-1] <= 1.0
    asked.attribute("probabilities", lambda found: in_order, "from 0 to 1, rising")
    for leaf in leaves:
        ends = [_level_end(asked, leaf, level) for level in range(len(levels) - 1)]
        for level, (end, next_end) in enumerate(pairwise(ends), start=1):
            allowed = f"at most {end}, at which the level before it ends"
            asked.require(next_end <= end, "next_prompt", (leaf, level), next_end, allowed)
        asked.ask("next_prompt", (leaf, len(ends)), lambda end: end is None, "None: the last level reaches to the root")
        if hasattr(model, "first_level"):
            for longest in _LONGEST:
                first = next((level for level, end in enumerate(ends) if end <= longest), len(ends))
                found = asked.ask("first_level", (leaf, longest), is_whole, "a whole number")
                allowed = f"{first}, the first level that next_prompt ends at {longest} tokens or less"
                asked.require(found == first, "first_level", (leaf, longest), found, allowed)


def _level_end(asked: AskedModel, leaf: Leaf, level: int) -> int:
    """Q (tokens) at which a level ends that is not the last."""
    allowed = "a whole number of tokens: only the last level reaches to the root"
    end: int = asked.ask("next_prompt", (leaf, level), is_whole, allowed)
    return end


# ---- what a return model says of one leaf ----


def _check_leaf(asked: AskedModel, leaf: Leaf) -> None:
    """Its key, its stamp, how far down it may be trimmed, and the groups that it is in at later times."""
    key = asked.key(leaf)
    later = leaf._replace(last_access=leaf.last_access + 1.0)
    asked.ask(
        "key", (later,), lambda value: is_real(value) and value >= key, f"at least {key}, as before: keys only grow"
    )
    asked.ask(
        "floor",
        (leaf,),
        lambda value: is_whole(value) and 0 <= value < leaf.end,
        f"a whole number of tokens from 0 to {leaf.end - 1}, or nothing of the leaf could go",
    )
    for now in asked.times(leaf):
        group = asked.group(leaf, now)
        _check_holds(asked, leaf, now, group, "group", (leaf, now))
        if hasattr(asked.model, "lasting_group"):
            for least in _LEAST:
                lasting = asked.group(leaf, now, least)
                _check_holds(asked, leaf, now, lasting, "lasting_group", (leaf, now, least))


def _check_holds(
    asked: AskedModel, leaf: Leaf, now: float, group: Group, method: str, question: tuple[Any, ...]
) -> None:
    """Until its expiry a group's rate is at most that of the group in which the leaf would be then."""
    key = asked.key(leaf)
    lasts = group.expiry - now  # an age may be rounded up to that of the expiry, if it is just below it
    ends = [now + share * lasts for share in (0.5, _NEARLY_ALL)] if lasts < math.inf else []
    for then in sorted({now, *asked.times(leaf), *ends}):
        if not now <= then < group.expiry:
            continue
        rate, current = asked.rate(group.number, key, then), asked.group(leaf, then)
        current_rate = asked.rate(current.number, key, then)
        asked.require(
            rate <= current_rate * (1.0 + _ROUNDING),
            method,
            question,
            group,
            f"a group whose rate, {rate:g} at {then:g}, is until its expiry at most that of the leaf: {current_rate:g}",
        )


def _check_groups(asked: AskedModel, leaves: Sequence[Leaf]) -> None:
    """Within a group a lower key has a lower rate, at any time; in a timeless one all have the same."""
    newest = max((asked.stamp(leaf) for leaf in leaves), default=0.0)
    for now in [newest + later for later in LATER]:
        keys: dict[int, set[float]] = {}
        for leaf in leaves:
            keys.setdefault(asked.group(leaf, now).number, set()).add(asked.key(leaf))
        for number, in_group in keys.items():
            below: tuple[float, float] | None = None
            for key in sorted(in_group):
                rate = asked.rate(number, key, now)
                if below is not None:
                    allowed = f"at least {below[1]:g}, the rate of the lower key {below[0]:g}"
                    asked.require(rate >= below[1], "rate", (number, key, now), rate, allowed)
                if asked.model.timeless:
                    first = asked.rate(number, 0.0, newest)
                    allowed = f"{first:g}, as of key 0 at {newest:g}: the model is timeless"
                    asked.require(rate == first, "rate", (number, key, now), rate, allowed)
                below = key, rate


def _copy_of(asked: AskedModel) -> AskedModel:
    """A copy, as :func:`~radix_tlru.policy.preview.preview` makes one to look ahead."""
    try:
        return AskedModel(copy.copy(asked.model), "a copy of the model")
    except Exception as error:  # whatever somebody else's code raises
        raise ModelError(f"copy.copy({asked.name}) raised {type(error).__name__}: {error}") from error


def _compare(asked: AskedModel, others: Sequence[AskedModel], leaves: Sequence[Leaf]) -> None:
    """Ask all of them the same in the same order: a model may keep what it finds."""
    for (call, answer), *rest in zip(*(each.answers(leaves) for each in (asked, *others)), strict=True):
        for other, (_, expected) in zip(others, rest, strict=True):
            if answer != expected:
                raise ModelError(f"{call} returned {plain(answer)}: must be {plain(expected)}, as of {other.role}")
