"""The paper's stochastic model of conversations (section 4): born, alive for a while, and asking at random meanwhile.

Conversations are born by a Poisson process and live for an exponential time. While one lives it takes turns by a
Poisson process of its own rate λ_i, the first at its birth. Prompts and answers have independent random lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.traces.arrivals import CHAT_BIRTHS, Arrivals, turn_rates
from eval.traces.generators.workload import Workload
from eval.traces.parameters import LONGEST
from eval.traces.request import Path, Request

_CHUNK = 4096  # conversations drawn at once; always as many, so that asking for more of them changes none of the first

_TURN = np.dtype(
    [
        *(("arrival_s", "f8"), ("conversation", "i8"), ("first_unit", "i8"), ("last", "?")),
        *(("prompt", "i8"), ("answer", "i8"), ("return_rate", "f8")),
    ]
)


@dataclass(frozen=True, slots=True)
class Synthetic(Arrivals):
    """Lengths are log-normal, or drawn from a given sample.

    The built-in lengths and lives are assumptions made to resemble WildChat: prompts of 200 tokens on average (the
    paper, section 5) with a long tail, answers of a few hundred, and 1 + mean_life_s · turn_rate = 2.5 turns.
    """

    birth_rate: float = CHAT_BIRTHS

    conversations: int = 1_000

    mean_life_s: float = 180.0
    """1 / μ."""

    prompt_mean: float = 200.0
    prompt_sigma: float = 1.5  # of the logarithm: median 65, p95 766 tokens
    answer_mean: float = 350.0
    answer_sigma: float = 0.8  # of the logarithm: median 254, p95 947 tokens

    prompt_lengths: tuple[int, ...] = ()
    """A sample to draw from instead, tokens."""

    answer_lengths: tuple[int, ...] = ()


def generate(model: Synthetic) -> Iterator[Request]:
    """The requests of all conversations in order of arrival; memory grows with the conversations that live at once."""
    contexts: dict[int, tuple[int, ...]] = {}  # of conversations that take another turn: the ends of their units
    for turn in _turns(model):
        for arrival_s, conversation, first_unit, last, prompt, answer, return_rate in turn.tolist():
            ends = contexts.pop(conversation, ())
            length = (ends[-1] if ends else 0) + prompt
            asked = (*ends, length)
            answered = (*asked, length + answer)
            if not last:
                contexts[conversation] = answered
            yield Request(
                arrival_s,
                str(conversation),
                Path(range(first_unit, first_unit + len(asked)), asked),
                Path(range(first_unit, first_unit + len(answered)), answered),
                length,
                answer,
                return_rate,
            )


def _turns(model: Synthetic) -> Iterator[NDArray[Any]]:
    """Turns in order of arrival, some at a time: those that come before the births that are yet to be drawn."""
    rng = np.random.default_rng(model.seed)
    birth_s, first_unit = 0.0, 0
    waiting = np.empty(0, _TURN)
    for first in range(0, model.conversations, _CHUNK):
        births_s = birth_s + np.cumsum(rng.exponential(1 / model.birth_rate, _CHUNK))
        drawn = _draw(model, rng, births_s)
        drawn["conversation"] += first
        drawn["first_unit"] += first_unit
        birth_s, first_unit = float(births_s[-1]), int(drawn["first_unit"][-1]) + 2 * len(drawn)
        waiting = np.concatenate([waiting, drawn[drawn["conversation"] < model.conversations]])
        waiting = waiting[np.argsort(waiting["arrival_s"], kind="stable")]
        settled = np.searchsorted(waiting["arrival_s"], birth_s)
        yield waiting[:settled]
        waiting = waiting[settled:]
    yield waiting


def _draw(model: Synthetic, rng: np.random.Generator, births_s: NDArray[np.float64]) -> NDArray[Any]:
    """All turns of the conversations born at these times, conversation by conversation."""
    born = len(births_s)
    rates = turn_rates(model, rng, born)
    lives_s = rng.exponential(model.mean_life_s, born)
    later = rng.poisson(rates * lives_s)  # turns after the first: given their number, each is anywhere in the life
    firsts = np.cumsum(later + 1) - (later + 1)
    owner = np.repeat(np.arange(born), later + 1)
    offsets_s = rng.random(len(owner)) * lives_s[owner]
    offsets_s[firsts] = 0.0
    offsets_s = offsets_s[np.lexsort((offsets_s, owner))]
    turns = np.empty(len(owner), _TURN)
    turns["arrival_s"] = births_s[owner] + offsets_s
    turns["conversation"] = owner
    turns["first_unit"] = 2 * firsts[owner]
    turns["last"] = False
    turns["last"][firsts + later] = True
    turns["prompt"] = _lengths(rng, len(owner), model.prompt_lengths, model.prompt_mean, model.prompt_sigma)
    turns["answer"] = _lengths(rng, len(owner), model.answer_lengths, model.answer_mean, model.answer_sigma)
    turns["return_rate"] = rates[owner]
    return turns


def _lengths(
    rng: np.random.Generator, size: int, sample: tuple[int, ...], mean: float, sigma: float
) -> NDArray[np.int64]:
    if sample:
        return np.asarray(sample, np.int64)[rng.integers(len(sample), size=size)]
    drawn = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, size)
    return np.asarray(np.ceil(np.minimum(drawn, LONGEST)), np.int64)


SYNTHETIC = Workload("synthetic", "the paper's model of conversations (section 4)", Synthetic, generate)
