"""Turns that were served and wait to be recorded: in their order, and by the node at which their contexts end.

To find whose turn one is takes as long as to cache it. So a step of the scheduler records a few, however many wait.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

    from radix_tlru.learning.records import Turn

__all__ = ["LEAST_RECORDED", "ServedTurn", "UnrecordedTurns"]

LEAST_RECORDED = 2
"""Turns that a step records at least. If a 16th of those that wait is more, it records that many."""

_MOST_RECORDED = 4
"""Turns that a step records at most; or as many as it added itself, so that they do not pile up."""

_MOST_ADDED = 16
"""Of those, at most: few servers end more requests in each of their steps."""

_MOST_WAITING = 4_096
"""Turns that wait after a step, at most: it records those beyond. Where answers are short more than 16 may end in each
step, for hours."""


@dataclass(slots=True, eq=False)
class ServedTurn:
    """A turn that was served, and is not recorded yet."""

    node_id: NodeId | None  # at which its context ends; None: the tree was emptied
    turn: Turn
    rid: str
    is_leaf: bool  # whether nothing that was cached then continued it
    is_back: bool = False  # whether a request that continues it has come
    is_over: bool = False  # whether its session was closed, so that none will come
    is_last_of_tree: bool = False  # whether the tree was emptied before another one was served
    is_made_ahead: bool = False  # whether it is no turn, but what a conversation will go on with was prefilled


class UnrecordedTurns:
    """The turns that wait, the earliest first."""

    def __init__(self) -> None:
        self._waiting: deque[ServedTurn] = deque()
        self._at: dict[NodeId | None, list[ServedTurn]] = {}  # the same, by node
        self._added = 0  # since a step last took some

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, served: ServedTurn) -> None:
        """One more waits."""
        self._waiting.append(served)
        self._at.setdefault(served.node_id, []).append(served)
        self._added += 1

    def mark_back(self, node_id: NodeId) -> None:
        """A request has come that continues the contexts which end at a node."""
        for served in self._at.get(node_id, ()):
            served.is_back = True

    def leave(self, node_id: NodeId, left_id: NodeId) -> None:
        """A node, or its tail, is evicted: contexts that ended there end at ``left_id`` now."""
        moved = self._at.pop(node_id, None)
        if moved is not None:
            for served in moved:
                served.node_id = left_id
            self._at.setdefault(left_id, []).extend(moved)

    def last_at(self, node_id: NodeId) -> ServedTurn | None:
        """The latest of those whose contexts end at a node; None: none does."""
        waiting = self._at.get(node_id)
        return waiting[-1] if waiting else None

    def forget_nodes(self) -> None:
        """The tree was emptied: contexts end nowhere, and nothing is left that clients could have claimed."""
        for served in self._waiting:
            served.node_id, hints = None, served.turn.hints
            if hints is not None:
                served.turn = served.turn._replace(hints=hints.without_claims())
        if self._waiting:
            self._waiting[-1].is_last_of_tree = True
        self._at = {None: [*self._waiting]} if self._waiting else {}

    @property
    def in_a_step(self) -> int:
        """How many of them a step records. Ranks that served the same turns count alike."""
        most = max(_MOST_RECORDED, min(self._added, _MOST_ADDED))
        return max(min(max(LEAST_RECORDED, math.ceil(len(self) / 16)), most), len(self) - _MOST_WAITING)

    def take(self, most: int | None = None) -> Iterator[ServedTurn]:
        """Take turns off, the earliest first: ``most`` at most, or all that wait now."""
        self._added = 0
        for _ in range(len(self) if most is None else min(most, len(self))):
            served = self._waiting.popleft()
            others = self._at[served.node_id]
            others.remove(served)
            if not others:
                del self._at[served.node_id]
            yield served
