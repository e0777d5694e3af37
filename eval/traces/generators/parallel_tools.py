"""Agents whose answers call several tools at once: the next call waits for the slowest, and has the results of all.

The defaults are assumptions: three in ten answers that call tools call more than one, three on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from numpy.random import Generator

from eval.traces.generators.agent_loop import AgentLoop, agent_calls, drawn_result
from eval.traces.generators.talk import Talk, drawn_s, talks
from eval.traces.generators.workload import Workload
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class ParallelTools(AgentLoop):
    """An agent loop with several tools at a time."""

    several_probability: float = 0.3  # that more than one tool is called
    more_probability: float = 0.5  # that one more is called, and again, within `most_tools_count`
    most_tools_count: int = 10


def generate(kind: ParallelTools) -> Iterator[Request]:
    """The requests of all sessions in order of arrival."""

    def tools(talk: Talk, rng: Generator) -> Iterable[Request]:
        called = 1
        if rng.random() < kind.several_probability:
            called = 2
            while called < kind.most_tools_count and rng.random() < kind.more_probability:
                called += 1
        talk.wait(max(drawn_s(rng, kind.tool_median_s, kind.tool_sigma) for _ in range(called)))
        for _ in range(called):
            talk.add_result(drawn_result(kind, rng))
        return ()

    return talks(kind, lambda talk, rng: agent_calls(kind, talk, rng, tools=tools))


PARALLEL_TOOLS = Workload("parallel-tools", "agents that call several tools at once", ParallelTools, generate)
