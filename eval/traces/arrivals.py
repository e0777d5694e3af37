"""When conversations start and their turns come, for data that does not tell: births and waits of the paper's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.traces.parameters import check_ranges

CHAT_BIRTHS = 0.5
"""Conversations a second, where none are given. An assumption: the paper names none."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When turns come.

    Raises:
        TraceError: a value is out of range.
    """

    birth_rate: float | None = None
    """λ_conv, conversations a second; None: as fits the format, 0.5 for chats."""

    turn_rate: float = 1 / 120
    """λ_i, turns a second of one conversation, on average; a wait of 2 minutes is the median of the Mooncake trace."""

    turn_rate_sigma: float = 0.0
    """Of log λ_i, normally distributed; 0: the same rate for all."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


def turn_rates(arrivals: Arrivals, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """λ_i of so many conversations, 1/s."""
    sigma = arrivals.turn_rate_sigma
    return arrivals.turn_rate * rng.lognormal(-(sigma**2) / 2, sigma, size)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Arrivals of the turns of one conversation."""

    times_s: Sequence[float]
    return_rate: float  # λ_i, 1/s


class Stamper:
    """Times for conversations whose number of turns is known: births and waits as in the model."""

    def __init__(self, arrivals: Arrivals, birth_rate: float = CHAT_BIRTHS) -> None:
        self._arrivals = arrivals
        self.birth_rate = birth_rate if arrivals.birth_rate is None else arrivals.birth_rate
        self._rng = np.random.default_rng(arrivals.seed)
        self._birth_s = 0.0

    def birth(self) -> float:
        """When the next conversation starts, s."""
        self._birth_s += float(self._rng.exponential(1 / self.birth_rate))
        return self._birth_s

    def stamp(self, turns: int) -> Stamps:
        """Times of the turns of the next conversation to be born."""
        birth_s = self.birth()
        rate = float(turn_rates(self._arrivals, self._rng, 1)[0])
        waits_s = self._rng.exponential(1 / rate, turns - 1)
        return Stamps((birth_s + np.cumsum([0.0, *waits_s])).tolist(), rate)

    def said(self, what: str) -> str:
        """What was drawn, for the notes of a trace."""
        return (
            f"{what}: {self.birth_rate * 3600:,.4g} an hour, seed {self._arrivals.seed} "
            "(--arrivals birth_rate=A_SECOND,seed=N changes them)"
        )
