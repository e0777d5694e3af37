"""What users send: conversations of several turns with time between them, generated from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation. Its prompt is the whole history, real answers included, and then `new_ids`."""

    new_ids: tuple[int, ...]  # token ids that the user adds
    output_tokens: int  # length of the answer to ask for
    wait_s: float  # seconds from the turn before to this one: its answer, reading, thinking; 0 for the first turn


@dataclass(frozen=True, slots=True)
class Conversation:
    index: int
    start_s: float  # when its first turn is sent, in seconds after the replay starts
    turns: tuple[Turn, ...]

    def times(self) -> list[float]:
        """When each turn is due, in seconds after the replay starts."""
        return list(accumulate((turn.wait_s for turn in self.turns[1:]), initial=self.start_s))


@dataclass(frozen=True, slots=True)
class ChatMix:
    """A multi-turn chat mix. Lengths in tokens, times in seconds.

    First prompts are log-normal: most are questions, some bring a long document. The number of turns is geometric.
    Waits between turns are log-normal: people read before they answer, and some come back much later.
    """

    conversations: int
    arrival_span_s: float  # conversations start at uniformly random times within this span
    first_prompt_median: float = 600.0
    first_prompt_sigma: float = 0.9
    first_prompt_range: tuple[int, int] = (200, 3000)  # longer and shorter ones are clipped to it
    next_prompt_range: tuple[int, int] = (20, 200)  # uniform, both ends included
    answer_range: tuple[int, int] = (8, 48)  # uniform, both ends included
    continue_probability: float = 0.75  # that another turn follows
    max_turns: int = 6
    wait_median_s: float = 1.8
    wait_sigma: float = 0.5
    token_range: tuple[int, int] = (0, 256)  # ids to draw from, the second one excluded


def generate(mix: ChatMix, seed: int) -> list[Conversation]:
    """The conversations of `mix`; the same for the same seed.

    Every conversation has a stream of its own, so that a larger mix starts with the texts of the smaller one.
    """
    seeds = np.random.SeedSequence(seed).spawn(mix.conversations)
    return [_conversation(mix, index, np.random.default_rng(one)) for index, one in enumerate(seeds)]


def request_count(workload: Sequence[Conversation]) -> int:
    """Requests that the workload sends when no turn fails."""
    return sum(len(conversation.turns) for conversation in workload)


def token_count(workload: Sequence[Conversation]) -> int:
    """Tokens of all conversations at their end, answers included: what a pool without eviction would have to hold."""
    return sum(len(turn.new_ids) + turn.output_tokens for conversation in workload for turn in conversation.turns)


def _conversation(mix: ChatMix, index: int, rng: np.random.Generator) -> Conversation:
    start_s = float(rng.uniform(0.0, mix.arrival_span_s))
    turn_count = min(int(rng.geometric(1.0 - mix.continue_probability)), mix.max_turns)
    return Conversation(index, start_s, tuple(_turn(mix, number, rng) for number in range(turn_count)))


def _turn(mix: ChatMix, number: int, rng: np.random.Generator) -> Turn:
    if number == 0:
        drawn = rng.lognormal(np.log(mix.first_prompt_median), mix.first_prompt_sigma)
        new_tokens = round(float(np.clip(drawn, *mix.first_prompt_range)))
        wait_s = 0.0
    else:
        new_tokens = int(rng.integers(*mix.next_prompt_range, endpoint=True))
        wait_s = float(rng.lognormal(np.log(mix.wait_median_s), mix.wait_sigma))
    return Turn(
        new_ids=tuple(rng.integers(*mix.token_range, size=new_tokens).tolist()),
        output_tokens=int(rng.integers(*mix.answer_range, endpoint=True)),
        wait_s=wait_s,
    )
