"""A day: sessions start more often in the afternoon than at night, and at night more of them are agents.

The rate is a sine over 24 hours between a peak and a trough. The defaults are assumptions: a peak at 15 h, at night a
fifth of its rate; one session in ten is an agent by day, and three in ten at night.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from numpy.random import SeedSequence, default_rng

from eval.traces.generators.mixed import Start, mixed
from eval.traces.generators.workload import Workload
from eval.traces.parameters import check_ranges
from eval.traces.request import Request

_HOURS = 24.0


@dataclass(frozen=True, slots=True)
class Day:
    """Sessions of one day, which begins at midnight.

    Raises:
        TraceError: a value is out of range.
    """

    sessions: int = 2_000
    peak_hour: float = 15.0
    trough_share: float = 0.2  # of the peak's rate, 12 hours from it
    agents_share: float = 0.1  # of the sessions that start at the peak
    night_agents_share: float = 0.3  # of those that start at the trough
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, {"peak_hour": (0, _HOURS)})


def generate(kind: Day) -> Iterator[Request]:
    """The requests of the day in order of arrival; the last sessions go on after midnight."""
    rng = default_rng(SeedSequence(kind.seed, spawn_key=(1 << 20,)))
    starts: list[Start] = []
    while len(starts) < kind.sessions:
        hour = float(rng.uniform(0.0, _HOURS))
        peak = (1.0 + math.cos((hour - kind.peak_hour) / _HOURS * 2.0 * math.pi)) / 2.0  # 1 at the peak
        if rng.random() < kind.trough_share + (1.0 - kind.trough_share) * peak:
            agents = kind.night_agents_share + (kind.agents_share - kind.night_agents_share) * peak
            starts.append(Start(hour * 3600.0, bool(rng.random() < agents)))
    return mixed(sorted(starts, key=lambda start: start.at_s), kind.seed)


DAY = Workload("day", "a day of chats and agents, busy by day, quiet at night", Day, generate)
