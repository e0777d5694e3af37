"""Agents that start subagents: several at once, beside each other, while the one that started them waits.

A subagent begins with the system prompt of its parent, or with all of its context (a fork). In real Claude Code
sessions a subagent makes 11 calls at the median and begins with about 12,000 tokens; three start at once as a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from numpy.random import Generator

from eval.traces.generators.agent_loop import AgentLoop, agent_calls, one_tool
from eval.traces.generators.talk import Talk, drawn_tokens, talks
from eval.traces.generators.workload import Workload
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Subagents(AgentLoop):
    """An agent loop whose tools may be subagents."""

    spawn_probability: float = 0.04  # that an answer starts subagents in place of a tool
    most_at_once_count: int = 5  # at least one; uniform
    forked_share: float = 0.3  # of the subagents: those that begin with their parent's whole context
    subagent_calls_median: float = 11.0
    subagent_calls_sigma: float = 0.4
    report_median: float = 1_500.0  # tokens that a subagent tells its parent
    report_sigma: float = 0.5


def generate(kind: Subagents) -> Iterator[Request]:
    """The requests of all sessions in order of arrival."""
    return talks(kind, lambda talk, rng: agent_calls(kind, talk, rng, tools=_Tools(kind).run))


class _Tools:
    """What an answer of the main agent calls."""

    def __init__(self, kind: Subagents) -> None:
        self._kind = kind
        self._tool = one_tool(kind)
        self._inner = replace(
            kind,
            calls_median=kind.subagent_calls_median,
            calls_sigma=kind.subagent_calls_sigma,
            turn_end_probability=0.0,  # nobody talks to a subagent: its only answer without a call is its last
            first_prompt_median=max(kind.first_prompt_median / 4, 1.0),
        )

    def run(self, talk: Talk, rng: Generator) -> Iterator[Request]:
        """A tool, or subagents until the last of them is done."""
        if rng.random() >= self._kind.spawn_probability:
            yield from self._tool(talk, rng)
            return
        ends_s = []
        for _ in range(int(rng.integers(1, self._kind.most_at_once_count, endpoint=True))):
            forked = rng.random() < self._kind.forked_share
            own = talk.path if forked else talk.path.first(1)
            subagent = talk.subagent(own)
            yield from agent_calls(self._inner, subagent, rng, tools=self._tool)
            ends_s.append(subagent.at_s)
        talk.wait(max(ends_s) - talk.at_s)
        for _ in ends_s:
            talk.add_result(drawn_tokens(rng, self._kind.report_median, self._kind.report_sigma))


SUBAGENTS = Workload("subagents", "agents with subagents that share their prefix", Subagents, generate)
