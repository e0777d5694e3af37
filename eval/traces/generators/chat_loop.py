"""People who chat, the base of the kinds of chat workloads: a question, an answer, time to read, another question.

The defaults resemble the Mooncake conversation trace. Answers have 343 tokens on average. Waits are 123 s at the
median, 66 and 264 s at the quartiles. Most next prompts are short, some are long. First prompts are shorter than there
(4,000 tokens at the median), so that small servers can play them. Three in five turns are followed by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from numpy.random import Generator

from eval.traces.generators.agent_loop import Action, nothing
from eval.traces.generators.talk import Talk, drawn_s, drawn_tokens
from eval.traces.parameters import check_ranges
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class ChatLoop:
    """Lengths in tokens, times in seconds; all lengths and times are log-normal.

    Raises:
        TraceError: a value is out of range.
    """

    sessions: int = 1_500
    span_s: float = 14_400.0  # conversations start at uniformly random times within this span
    system_count: int = 8  # different system prompts; each conversation has one of them
    system_tokens: int = 500
    first_prompt_median: float = 4_000.0
    first_prompt_sigma: float = 1.2
    next_prompt_median: float = 60.0
    next_prompt_sigma: float = 2.0
    answer_median: float = 250.0
    answer_sigma: float = 0.8
    follow_probability: float = 0.6  # that a turn is followed by another, within `most_turns_count`
    most_turns_count: int = 60
    read_median_s: float = 123.0  # from the end of an answer to the next prompt
    read_sigma: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


def chat_turns(
    chats: ChatLoop, talk: Talk, rng: Generator, *, back: Action = nothing, first_system: int = 0
) -> Iterator[Request]:
    """All turns of one conversation.

    Args:
        chats: lengths and times.
        talk: a new conversation.
        rng: of this conversation.
        back: what happens when the user is back, before the next prompt.
        first_system: number of the first of the system prompts.
    """
    talk.add_shared(chats.system_tokens, first_system + int(rng.integers(chats.system_count)))
    talk.add(drawn_tokens(rng, chats.first_prompt_median, chats.first_prompt_sigma))
    for _ in range(chats.most_turns_count - 1):
        yield talk.ask(drawn_tokens(rng, chats.answer_median, chats.answer_sigma))
        if rng.random() >= chats.follow_probability:
            return
        talk.wait(drawn_s(rng, chats.read_median_s, chats.read_sigma))
        yield from back(talk, rng)
        talk.add(drawn_tokens(rng, chats.next_prompt_median, chats.next_prompt_sigma))
    yield talk.ask(drawn_tokens(rng, chats.answer_median, chats.answer_sigma))
