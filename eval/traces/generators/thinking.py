"""Chats with a model that thinks before it answers, and whose thoughts chat templates drop.

As with the templates of Qwen3 and DeepSeek, thoughts stay in the prompts of a chain of tool calls. The prompt of the
next user turn leaves them out, so what was cached behind them is of no more use. Lengths of thoughts are an assumption:
800 tokens at the median, with a long tail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from numpy.random import Generator

from eval.traces.generators.chat_loop import ChatLoop
from eval.traces.generators.talk import Talk, drawn_s, drawn_tokens, talks
from eval.traces.generators.workload import Workload
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Thinking(ChatLoop):
    """A chat loop with thoughts, and with tools between them."""

    thought_median: float = 800.0
    thought_sigma: float = 1.0
    tool_probability: float = 0.3  # that an answer calls a tool, and the next again, within `most_calls_count`
    most_calls_count: int = 60
    result_median: float = 600.0
    result_sigma: float = 1.0
    tool_median_s: float = 4.0
    tool_sigma: float = 0.8


def generate(kind: Thinking) -> Iterator[Request]:
    """The requests of all conversations in order of arrival."""
    return talks(kind, partial(_session, kind))


def _session(kind: Thinking, talk: Talk, rng: Generator) -> Iterator[Request]:
    talk.add_shared(kind.system_tokens, int(rng.integers(kind.system_count)))
    talk.add(drawn_tokens(rng, kind.first_prompt_median, kind.first_prompt_sigma))
    for _ in range(kind.most_turns_count):
        asked = talk.path
        said = 0  # of this turn, without thoughts: answers and results of tools
        for called in itertools.count():
            answer = drawn_tokens(rng, kind.answer_median, kind.answer_sigma)
            calls = rng.random() < kind.tool_probability and called < kind.most_calls_count
            thought = drawn_tokens(rng, kind.thought_median, kind.thought_sigma)
            yield talk.ask(answer, "tool_calls" if calls else "stop", thought)
            said += answer
            if not calls:
                break
            talk.wait(drawn_s(rng, kind.tool_median_s, kind.tool_sigma))
            result = drawn_tokens(rng, kind.result_median, kind.result_sigma)
            talk.add_result(result)
            said += result
        if rng.random() >= kind.follow_probability:
            return
        talk.wait(drawn_s(rng, kind.read_median_s, kind.read_sigma))
        talk.path = asked
        talk.add(said)
        talk.add(drawn_tokens(rng, kind.next_prompt_median, kind.next_prompt_sigma))


THINKING = Workload("thinking", "chats with thoughts that later prompts have not", Thinking, generate)
