"""A change of workload in the middle: chats until a moment, then agents, or the other way round.

What was learned of the one is wrong for the other. Sessions of the first kind that are under way go on to their ends.
The defaults are assumptions: four hours, the change after two, as many requests of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eval.traces.generators.mixed import Start, mixed
from eval.traces.generators.talk import uniform_starts
from eval.traces.generators.workload import Workload
from eval.traces.parameters import check_ranges
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Shift:
    """Sessions of two kinds, one after the other.

    Raises:
        TraceError: a value is out of range.
    """

    chat_sessions: int = 1_800
    agent_sessions: int = 70
    span_s: float = 14_400.0
    change_share: float = 0.5  # of the span that is over when the workload changes
    agents_first: int = 0  # 1: agents, then chats
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, {"agents_first": (0, 1)})


def generate(kind: Shift) -> Iterator[Request]:
    """The requests of both halves in order of arrival."""
    change_s = kind.span_s * kind.change_share
    spans_s = {False: (0.0, change_s), True: (change_s, kind.span_s - change_s)}  # begin and length, by "second"
    starts: list[Start] = []
    for agent, sessions in ((False, kind.chat_sessions), (True, kind.agent_sessions)):
        begin_s, length_s = spans_s[agent != bool(kind.agents_first)]
        starts += [Start(begin_s + at_s, agent) for at_s in uniform_starts(sessions, length_s, kind.seed + agent)]
    return mixed(sorted(starts, key=lambda start: start.at_s), kind.seed)


SHIFT = Workload("shift", "chats, and from a moment on agents", Shift, generate)
