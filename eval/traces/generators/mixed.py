"""Chats and agents in one trace, the base of the kinds that change over time: a day, and a change of workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from numpy.random import Generator

from eval.traces.generators.agent_loop import AgentLoop, agent_calls, one_tool
from eval.traces.generators.chat_loop import ChatLoop, chat_turns
from eval.traces.generators.talk import Talk, play
from eval.traces.request import Request

_AGENTS = AgentLoop(system_tokens=15_000)
_CHATS = ChatLoop(system_count=8)
_FIRST_CHAT_SYSTEM = 1 << 16  # numbers of shared units: chats have other system prompts than agents


@dataclass(frozen=True, slots=True)
class Start:
    """Of one session."""

    at_s: float
    agent: bool  # else a chat


def mixed(starts: Sequence[Start], seed: int) -> Iterator[Request]:
    """The requests of agents and chats with the defaults of their loops, in order of arrival."""

    def session(index: int, start_s: float, rng: Generator) -> Iterable[Request]:
        if starts[index].agent:
            return agent_calls(_AGENTS, Talk(index, start_s, "agent"), rng, tools=one_tool(_AGENTS))
        return chat_turns(_CHATS, Talk(index, start_s, "chat"), rng, first_system=_FIRST_CHAT_SYSTEM)

    return play([start.at_s for start in starts], seed, session)
