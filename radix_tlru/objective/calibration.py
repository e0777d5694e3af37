"""How prefills become ξ: the uncached tokens that meet an objective in milliseconds.

TTFT grows with the tokens that must be prefilled, TTFT = γ + β + α·uncached (paper, equation 2, where γ and β are 0).
19 of 20 requests wait for at most δ times that. So an objective (SLO) allows ξ = (SLO / δ - γ - β) / α uncached tokens.
α, β and δ depend on the model, the machine and its load; they are fitted to the prefills as they are measured.

    batch, its time ──► WholePrompts ──► PrefillFit ──► α, β, δ ──► Estimate ──► ξ
    batch, its time; first token, its time ──► Overhead ──► γ ──────┘
"""

from __future__ import annotations

import math
from typing import NamedTuple

from radix_tlru.objective.overhead import FirstToken, Overhead
from radix_tlru.objective.prefill_latency import Line, PrefillFit, WholePrompts

__all__ = ["EVERY", "Calibration", "Estimate", "PrefillBatch", "time_for_prefill"]

EVERY = 32
"""Prefill batches from one estimate to the next."""


class PrefillBatch(NamedTuple):
    """A prefill batch, as every rank sees it."""

    requests: tuple[str, ...]  # ids of those with prompt tokens in it
    unfinished: str | None  # of them, the one that a later batch goes on with
    tokens: int  # prefilled
    first_tokens: tuple[FirstToken, ...] = ()  # of earlier requests, reported with these


class Estimate(NamedTuple):
    """What first tokens wait for, near an objective."""

    line: Line  # α and β
    late: float  # δ: what 19 of 20 prefills take at most, in times what the line says
    overhead_ms: float  # γ

    def threshold(self, objective_ms: float) -> float:
        """ξ in tokens."""
        return self.line.tokens(time_for_prefill(objective_ms, self.overhead_ms, self.late))


class Calibration:
    """Fits α, β, γ and δ to the prefills of one rank."""

    def __init__(self) -> None:
        self._whole, self._fit, self._overhead = WholePrompts(), PrefillFit(), Overhead()

    @property
    def samples(self) -> int:
        """Measured prefills that count: those not yet forgotten."""
        return len(self._fit)

    def count_batch(self, batch: PrefillBatch, ms: float | None) -> None:
        """A prefill batch took ``ms``; None: not known."""
        # A batch of unknown time still is one of its prompt's. NaN spoils that sample, and it is left out.
        known = math.nan if ms is None else ms
        sample = self._whole.add(batch.requests, batch.unfinished, batch.tokens, known)
        if sample is not None:
            self._fit.add(sample)
        self._overhead.count_prefill(batch.requests, known)
        for first_token in batch.first_tokens:
            self._overhead.count_first_token(first_token)

    def estimate(self, objective_ms: float) -> Estimate | None:
        """What prefills near an objective take; None before there is a line. Some milliseconds of work."""
        overhead = self._overhead.ms() or 0.0
        near = self._fit.near(time_for_prefill(objective_ms, overhead, 1.0))
        return None if near is None else Estimate(near.line, near.late, overhead)


def time_for_prefill(objective_ms: float, overhead_ms: float, late: float) -> float:
    """What a prefill may take by the line, in ms, so that 19 of 20 such requests meet the objective.

    T-LRU lets conversations decay to just under ξ. With ξ where the *line* meets the objective, half of these would
    miss it. A ξ that is too low costs little: fewer conversations are kept below it. One that is too high makes
    requests late that any other policy would have served in time. At least half the objective stays for prefill: a
    machine that has less cannot meet it, and then trimming everybody to nothing would help nobody.

    Args:
        overhead_ms: γ.
        late: δ.
    """
    return max(objective_ms / late - overhead_ms, objective_ms / 2.0)
