"""An agent at work, the base of the kinds of agent workloads: calls of tools within seconds, then a user reads.

The defaults are medians and spreads of 22,698 calls of 355 real Claude Code sessions. An answer has 224 tokens, a tool
result 322. Calls are 18 s apart, a session has 43 of them, and a user is back after 195 s. 8 in 100 answers end a turn.
System prompt and tools have about 15,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from numpy.random import Generator

from eval.traces.generators.talk import Talk, drawn_s, drawn_tokens
from eval.traces.parameters import check_ranges
from eval.traces.request import Request

Action = Callable[[Talk, Generator], Iterable[Request]]
"""Moves a conversation on; yields the requests that it makes on the way."""


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Lengths in tokens, times in seconds; all lengths and times are log-normal.

    Raises:
        TraceError: a value is out of range.
    """

    sessions: int = 150
    span_s: float = 14_400.0  # sessions start at uniformly random times within this span
    system_count: int = 4  # different system prompts, with their tools; each session has one of them
    system_tokens: int = 15_000
    first_prompt_median: float = 4_000.0  # what a session adds to it: a task, files
    first_prompt_sigma: float = 1.0
    calls_median: float = 43.0  # of a session
    calls_sigma: float = 1.0
    answer_median: float = 224.0
    answer_sigma: float = 1.0
    result_median: float = 322.0  # of a tool
    result_sigma: float = 1.7
    result_limit_tokens: int = 25_000  # longer ones are cut, as Claude Code does by default
    tool_median_s: float = 10.0  # from the end of an answer to the next call
    tool_sigma: float = 1.1
    turn_end_probability: float = 0.08  # that an answer calls no tool: the turn is over, and a user reads
    next_prompt_median: float = 183.0  # of the user who is back
    next_prompt_sigma: float = 1.6
    user_median_s: float = 195.0  # until then
    user_sigma: float = 1.8
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


def nothing(talk: Talk, rng: Generator) -> Iterable[Request]:
    """An action that does nothing."""
    del talk, rng
    return ()


def agent_calls(
    agents: AgentLoop,
    talk: Talk,
    rng: Generator,
    *,
    tools: Action,
    before: Action = nothing,
) -> Iterator[Request]:
    """All calls of one session.

    Args:
        agents: lengths and times.
        talk: a new conversation, or one with a context.
        rng: of this session.
        tools: runs what an answer calls, until its results are part of the context.
        before: what happens before each call.
    """
    if not talk.path.ids:
        talk.add_shared(agents.system_tokens, int(rng.integers(agents.system_count)))
    talk.add(drawn_tokens(rng, agents.first_prompt_median, agents.first_prompt_sigma))
    left = drawn_tokens(rng, agents.calls_median, agents.calls_sigma)
    while True:
        yield from before(talk, rng)
        left -= 1
        answer = drawn_tokens(rng, agents.answer_median, agents.answer_sigma)
        if left <= 0 or rng.random() < agents.turn_end_probability:
            yield talk.ask(answer, "stop")
            if left <= 0:
                return
            talk.wait(drawn_s(rng, agents.user_median_s, agents.user_sigma))
            talk.add(drawn_tokens(rng, agents.next_prompt_median, agents.next_prompt_sigma))
        else:
            yield talk.ask(answer, "tool_calls")
            yield from tools(talk, rng)


def one_tool(agents: AgentLoop) -> Action:
    """An answer calls one tool."""

    def run(talk: Talk, rng: Generator) -> Iterable[Request]:
        talk.wait(drawn_s(rng, agents.tool_median_s, agents.tool_sigma))
        talk.add_result(drawn_result(agents, rng))
        return ()

    return run


def drawn_result(agents: AgentLoop, rng: Generator) -> int:
    """Tokens of a tool's result."""
    return min(drawn_tokens(rng, agents.result_median, agents.result_sigma), agents.result_limit_tokens)
