"""Agents whose history is compacted: near the limit of the context it is replaced by a short summary.

A call reads the whole history once more and writes the summary. The next prompt is the system prompt, the summary and
what was said last; all other history is of no more use. In real Claude Code sessions prompts fall from 150,000 tokens
at the median to 37,000 (113 times in 22,327 calls): the defaults come from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from numpy.random import Generator

from eval.traces.generators.agent_loop import AgentLoop, agent_calls, one_tool
from eval.traces.generators.talk import Talk, drawn_tokens, talks
from eval.traces.generators.workload import Workload
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Compaction(AgentLoop):
    """An agent loop with a limit of the context."""

    limit_tokens: int = 150_000  # a longer prompt is compacted before its call
    instruction_tokens: int = 600  # that ask for the summary
    summary_median: float = 3_000.0
    summary_sigma: float = 0.5
    kept_tokens: int = 18_000  # of files and messages that are repeated behind the summary
    first_prompt_median: float = 12_000.0
    result_median: float = 700.0


def generate(kind: Compaction) -> Iterator[Request]:
    """The requests of all sessions in order of arrival."""
    before = partial(_compact, kind)
    return talks(kind, lambda talk, rng: agent_calls(kind, talk, rng, tools=one_tool(kind), before=before))


def _compact(kind: Compaction, talk: Talk, rng: Generator) -> Iterable[Request]:
    if len(talk.path) <= kind.limit_tokens:
        return
    system = talk.path.first(1)
    talk.add(kind.instruction_tokens)
    summary = drawn_tokens(rng, kind.summary_median, kind.summary_sigma)
    yield talk.ask(summary)
    talk.path = system
    talk.add(summary)
    talk.add(kind.kept_tokens)


COMPACTION = Workload("compaction", "agents whose history is replaced by a summary", Compaction, generate)
