"""A chat mix for small servers: questions and long documents, a few turns each, with time to read between them.

First prompts are log-normal: most are questions, some bring a long document. The number of turns is geometric. Waits
between turns are log-normal: people read before they answer, and some come back much later. A model may think before
it answers (``thought_range``); later prompts have its answer, and not what it thought, as chat templates have it. While
it calls tools (``tool_probability``) prompts have its thoughts, until a user says something again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from eval.traces.generators.talk import drawn_s
from eval.traces.generators.workload import Workload
from eval.traces.parameters import LONGEST, check_ranges
from eval.traces.request import Path, Request, ending


@dataclass(frozen=True, slots=True)
class ChatMix:
    """Lengths in tokens, times in seconds. Ranges have both ends in them.

    Raises:
        TraceError: a value is out of range.
    """

    conversations: int = 72
    arrival_span_s: float = 15.0  # conversations start at uniformly random times within this span
    first_prompt_median: float = 600.0
    first_prompt_sigma: float = 0.9
    first_prompt_range: tuple[int, int] = (200, 3000)  # longer and shorter ones are clipped to it
    next_prompt_range: tuple[int, int] = (20, 200)  # uniform
    answer_range: tuple[int, int] = (8, 48)  # uniform
    thought_range: tuple[int, int] = (0, 0)  # uniform
    thoughts_told: int = 1  # whether a server's reasoning parser counts them
    tool_probability: float = 0.0  # that an answer calls a tool; its result is the next prompt, with the thoughts
    result_range: tuple[int, int] = (50, 2000)  # of a tool; uniform
    tool_median_s: float = 8.0  # that a tool takes; log-normal
    tool_sigma: float = 0.8
    continue_probability: float = 0.75  # that another turn follows
    max_turns: int = 6
    wait_median_s: float = 1.8
    wait_sigma: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, _ALLOWED)


_ALLOWED = {
    "conversations": (1, 1e6),
    "max_turns": (1, 1000),
    "thoughts_told": (0, 1),
    "arrival_span_s": (0, 1e9),
    "thought_range": (0, LONGEST),
    "continue_probability": (0, 0.999),
    "tool_probability": (0, 0.99),
}


def generate(mix: ChatMix) -> Iterator[Request]:
    """The requests of all conversations in order of arrival; the same for the same mix.

    Every conversation has a stream of its own, so that a larger mix starts with the texts of the smaller one.
    """
    seeds = np.random.SeedSequence(mix.seed).spawn(mix.conversations)
    made = [turn for index, one in enumerate(seeds) for turn in _conversation(mix, index, np.random.default_rng(one))]
    yield from sorted(made, key=lambda request: request.arrival_s)


def _conversation(mix: ChatMix, index: int, rng: np.random.Generator) -> Iterator[Request]:
    arrival_s = float(rng.uniform(0.0, mix.arrival_span_s))
    turns = min(int(rng.geometric(1.0 - mix.continue_probability)), mix.max_turns)
    history = Path((), ())
    first_unit = index * 2 * mix.max_turns
    # Units of what is in no later prompt, or in those of a chain of calls alone.
    others = count((1 << 40) + (index << 20))
    for turn in range(turns):
        if turn == 0:
            drawn = rng.lognormal(np.log(mix.first_prompt_median), mix.first_prompt_sigma)
            prompt_tokens = round(float(np.clip(drawn, *mix.first_prompt_range)))
        else:
            prompt_tokens = int(rng.integers(*mix.next_prompt_range, endpoint=True))
            arrival_s += drawn_s(rng, mix.wait_median_s, mix.wait_sigma)
        asked = prompt = history.plus(prompt_tokens, first_unit + 2 * turn)
        said_unit, said = first_unit + 2 * turn + 1, 0
        while True:
            answer = int(rng.integers(*mix.answer_range, endpoint=True))
            thought = int(rng.integers(*mix.thought_range, endpoint=True)) if mix.thought_range[1] else 0
            # What comes behind a thought is in no later prompt as the same tokens of a prefix.
            unit = next(others) if thought or mix.tool_probability else said_unit
            context = prompt.plus(thought + answer, unit)
            told = thought * mix.thoughts_told
            calls = bool(mix.tool_probability) and rng.random() < mix.tool_probability
            sent = (arrival_s, str(index), prompt, context, len(prompt), thought + answer)
            yield Request(*sent, thought_tokens=told, ending=ending(unit, calls) if mix.tool_probability else ())
            said += answer
            if not calls:
                break
            arrival_s += drawn_s(rng, mix.tool_median_s, mix.tool_sigma)
            result = int(rng.integers(*mix.result_range, endpoint=True))
            said += result
            prompt = context.plus(result, next(others))
        history = asked.plus(said, said_unit) if mix.thought_range[1] else context


CHAT_MIX = Workload("chat-mix", "questions and documents, a few turns each, for small servers", ChatMix, generate)
