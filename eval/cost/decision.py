"""What it costs to choose a victim, and to keep the order of which it is chosen: policy by policy, beside tlru.

A decision is one answer of ``EvictionOrder.choose_victim``, with the leaves that came and went since the one before.
What a policy learns beside it is not in it; ``--only simulator`` has a request as a whole.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.caches.simulator import simulate
from eval.cost.simulator import POLICIES, TURN, Setting, simulated
from eval.traces import open_trace
from radix_tlru.policy.order import EvictionOrder


def run(source: str, setting: Setting, console: Console) -> None:
    """Print the table."""
    console.print(decisions(source, setting))


def decisions(source: str, setting: Setting) -> Table:
    """Time of a decision on one trace; the policies take turns, and what counts is the median of these."""
    trace = open_trace(source)
    caches = {row: simulated(row, setting) for row in POLICIES}
    clocks = {row: Clock(cache.order) for row, cache in caches.items()}
    starts = range(0, len(trace.requests), TURN)
    for start in track(starts, "replay", console=Console(stderr=True), transient=True):
        for row, cache in caches.items():
            gc.freeze()  # a full collection looks at all caches, and would be charged to the one it comes upon
            simulate(cache, trace.requests[start : start + TURN])
            clocks[row].turn()
    title = f"{trace.name}, {len(trace.requests):,} requests; {setting}; simulated"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("policy", "decisions", "µs / decision", "× tlru"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    median = {row: statistics.median(clock.turns) if clock.turns else 0.0 for row, clock in clocks.items()}
    for row, clock in clocks.items():
        ratio = f"{median[row] / median['tlru']:.2f}" if median["tlru"] else "–"
        table.add_row(row, f"{clock.decisions:,}", f"{median[row] / 1000:.1f}", ratio)
    return table


class Clock:
    """Stands between a cache and its order, and takes the time of what the cache asks of it."""

    def __init__(self, order: EvictionOrder) -> None:
        self.decisions = 0
        self.turns: list[float] = []
        """ns a decision in each turn that had any."""
        self._spent = self._asked = 0
        order.choose_victim = self._timed(order.choose_victim, asked=1)  # type: ignore[method-assign]
        order.add_leaf = self._timed(order.add_leaf)  # type: ignore[method-assign]
        order.remove_leaf = self._timed(order.remove_leaf)  # type: ignore[method-assign]

    def turn(self) -> None:
        """The end of one, and the beginning of the next."""
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
