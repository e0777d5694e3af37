"""What one decision of the eviction order costs, policy by policy, beside tlru.

A decision is one call of ``EvictionOrder.choose_victim``, and the leaves that were added and removed since the one
before. Learning is not included. ``--only simulator`` times whole requests.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from eval.caches.simulator import simulate
from eval.cost.simulator import POLICIES, TURN, Setting, simulated
from eval.terminal import show, table, track
from eval.traces import open_trace
from radix_tlru.policy.order import EvictionOrder


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    show(decisions(args.trace, Setting.of(args)))


def decisions(source: str, setting: Setting) -> Table:
    """Time of a decision on one trace. The policies take turns; the figure is the median of the turns."""
    trace = open_trace(source)
    caches = {row: simulated(row, setting) for row in POLICIES}
    clocks = {row: Clock(cache.order) for row, cache in caches.items()}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay"):
        for row, cache in caches.items():
            gc.freeze()  # a full collection looks at all caches, but one of them would be charged for it
            simulate(cache, trace.requests[start : start + TURN])
            clocks[row].turn()
    title = f"{trace.name}, {len(trace.requests):,} requests; {setting}; simulated"
    result = table(title, ("policy", "decisions", "µs / decision", "× tlru"))
    median = {row: statistics.median(clock.turns) if clock.turns else 0.0 for row, clock in clocks.items()}
    for row, clock in clocks.items():
        ratio = f"{median[row] / median['tlru']:.2f}" if median["tlru"] else "–"
        result.add_row(row, f"{clock.decisions:,}", f"{median[row] / 1000:.1f}", ratio)
    return result


class Clock:
    """Times the calls of a cache to its order."""

    def __init__(self, order: EvictionOrder) -> None:
        self.decisions = 0
        self.turns: list[float] = []
        """ns a decision, for each turn that had decisions."""
        self._spent = self._asked = 0
        order.choose_victim = self._timed(order.choose_victim, asked=1)  # type: ignore[method-assign]
        order.add_leaf = self._timed(order.add_leaf)  # type: ignore[method-assign]
        order.remove_leaf = self._timed(order.remove_leaf)  # type: ignore[method-assign]

    def turn(self) -> None:
        """End a turn and begin the next."""
        if self._asked:
            self.turns.append(self._spent / self._asked)
        self.decisions += self._asked
        self._spent = self._asked = 0

    def _timed(self, method: Callable[..., Any], asked: int = 0) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            before = time.perf_counter_ns()
            answer = method(*arguments)
            self._spent += time.perf_counter_ns() - before
            self._asked += asked
            return answer

        return timed
