"""The leaves that go next, if nothing is used before."""

from __future__ import annotations

import math
import time
from typing import Any

from radix_tlru.learning.return_model import RecentTurns
from radix_tlru.policy.models import Recency, ReturnModel, without_wrappers
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.preview import preview
from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.metrics.maker import Maker

__all__ = ["VictimMetrics"]

_NEXT = 5
"""Victims that are shown before they are evicted."""

_SHARE = 0.002
"""Share of the time that looking for them may take: about three looks a second."""

_SECONDS, _TURNS, _USES, _OTHER = _UNITS = (
    "1 / s",
    "1 / turns",
    "1 / (matches and inserts)",
    "1 / (time of --tlru-return-model)",
)


class VictimMetrics:
    """The leaves that go next, if nothing is used before: how deep they are, and why they go before the others."""

    def __init__(self, make: Maker, tail: TailComponent) -> None:
        self._tail = tail
        self._next_look, self._shown = 0.0, 0
        positions = [str(position) for position in range(1, _NEXT + 1)]

        def gauges(name: str, documentation: str) -> list[Any]:
            return list(make.gauges(f"sglang:tlru_next_victim_{name}", documentation, "position", positions).values())

        self._cached = gauges(
            "cached_tokens", "Resident tokens of the path to a leaf that goes next; 0: there is none."
        )
        self._keep = gauges(
            "keep_tokens",
            "Tokens of such a path that stay once all has gone that costs the same.",
        )
        self._history = gauges("history_tokens", "The most tokens that the path to a leaf that goes next has ever had.")
        self._silent = gauges(
            "silent_seconds", "Since the last turn that used a leaf that goes next, by the newest stamp; NaN: unknown."
        )
        self._rate = gauges(
            "return_rate",
            "How soon a leaf that goes next is expected to be used: sglang:tlru_return_rate_unit has the unit.",
        )
        self._unit = make.gauges(
            "sglang:tlru_return_rate_unit", "1 for the unit of the return rates of leaves that go next.", "unit", _UNITS
        )
        self._exceed = gauges(
            "exceed_probability",
            "That for want of the next token to go a turn goes beyond the threshold; 0: TEL-safe. Only under a policy "
            "with a threshold: tlru, etlru with w < 1; else NaN.",
        )
        self._cost = gauges("cost", "What leaves are ordered by: return rate * ((1 - w) * exceed probability + w).")

    def report(self) -> None:
        """Look again if the last look was long enough ago."""
        # The clock decides what is shown, never what is evicted.
        began = time.perf_counter()
        if began < self._next_look and (self._tail.order or not self._shown):  # once there is none, none is shown
            return
        self.look()
        done = time.perf_counter()
        self._next_look = done + (done - began) / _SHARE

    def look(self) -> None:
        """Show the next victims, whether or not it is time to look."""
        order = self._tail.order
        in_force = _unit_of(order.policy.returns)
        for unit, gauge in self._unit.items():
            gauge.set(unit == in_force)
        victims = preview((order,) if isinstance(order, EvictionOrder) else order.parts, _NEXT)
        self._shown = len(victims)
        for cached in self._cached[len(victims) :]:
            cached.set(0)
        for position, (victim, price) in enumerate(victims):
            leaf = victim.leaf
            silent = math.nan
            if self._tail.learner is not None and leaf.conversation is not None:
                # The stamp may be the newer one: of a prompt that others continue, or of a turn that is learned later.
                silent = max(0.0, self._tail.learner.now - leaf.conversation.stamp)
            self._cached[position].set(leaf.end)
            self._keep[position].set(victim.keep)
            self._history[position].set(leaf.history)
            self._silent[position].set(silent)
            self._rate[position].set(price.return_rate)
            self._exceed[position].set(math.nan if price.exceed_probability is None else price.exceed_probability)
            self._cost[position].set(price.cost)


def _unit_of(returns: ReturnModel) -> str:
    """The unit of a model's return rates."""
    inside = without_wrappers(returns)
    if getattr(inside, "in_seconds", False):
        return _SECONDS
    if isinstance(inside, RecentTurns):
        return _TURNS
    return _USES if isinstance(inside, Recency) else _OTHER
