"""Agents whose system prompt ends in something that changes: a date, a list of tasks, the state of a repository.

What follows the changed tail is another prefix, so all of it must be prefilled again; the head before it stays. The
defaults are assumptions: every client has such a tail, 300 tokens of it, and it changes before two calls in three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from numpy.random import Generator

from eval.traces.generators.agent_loop import AgentLoop, agent_calls, one_tool
from eval.traces.generators.talk import Talk, talks
from eval.traces.generators.workload import Workload
from eval.traces.request import Request

_TAIL = 1  # index of the unit: behind the system prompt that sessions share


@dataclass(frozen=True, slots=True)
class ChangingSystem(AgentLoop):
    """An agent loop with a changing tail of the system prompt."""

    clients_share: float = 1.0  # of the sessions: those whose tail changes
    tail_tokens: int = 300
    change_probability: float = 0.66  # that it has changed before a call


def generate(kind: ChangingSystem) -> Iterator[Request]:
    """The requests of all sessions in order of arrival."""
    return talks(kind, partial(_session, kind))


def _session(kind: ChangingSystem, talk: Talk, rng: Generator) -> Iterator[Request]:
    changes = rng.random() < kind.clients_share
    talk.add_shared(kind.system_tokens, int(rng.integers(kind.system_count)))
    talk.add(kind.tail_tokens)

    def before(talk: Talk, rng: Generator) -> Iterable[Request]:
        if rng.random() < kind.change_probability and changes:
            talk.replaced(_TAIL, kind.tail_tokens)
        return ()

    yield from agent_calls(kind, talk, rng, tools=one_tool(kind), before=before)


CHANGING_SYSTEM = Workload(
    "changing-system", "agents whose system prompt has a changing tail", ChangingSystem, generate
)
