"""How prefills become ξ: the uncached tokens that meet an objective in milliseconds.

TTFT grows with the tokens that must be prefilled, TTFT = γ + β + α·uncached (paper, equation 2, where γ and β are 0).
ξ is the largest number of uncached tokens whose prefill takes at most SLO - γ in 19 of 20 cases. It is read from the
prefills as they are measured, and γ from what else first tokens wait for.

    batch, its time ──► WholePrompts ──► PrefillTimes ──► p95 by size ──► Estimate ──► ξ
    batch, its time; first token, its time ──► Overhead ──► γ ─────────────┘
"""

from __future__ import annotations

import math
from typing import NamedTuple

from radix_tlru.objective.overhead import FirstToken, Overhead
from radix_tlru.objective.prefill_latency import Line, PrefillTimes, WholePrompts

__all__ = ["EVERY", "Calibration", "Estimate", "PrefillBatch", "time_for_prefill"]

EVERY = 32
"""Prefill batches from one estimate to the next."""


class PrefillBatch(NamedTuple):
    """A prefill batch, as every rank sees it."""

    requests: tuple[str, ...]  # ids of those with prompt tokens in it
    unfinished: str | None  # of them, the one that a later batch goes on with
    tokens: int  # prefilled, without those that others decoded in it
    first_tokens: tuple[FirstToken, ...] = ()  # of earlier requests, reported with these


class Estimate(NamedTuple):
    """ξ, and what it was read from: the times of prefills of about ξ tokens."""

    tokens: float  # ξ before it is bounded; negative if not even a request without uncached tokens is quick enough
    line: Line  # α and β of the usual time
    late: float  # δ: what 19 of 20 prefills take at most, in times what the line says
    overhead_ms: float  # γ


class Calibration:
    """Reads ξ from the prefills of one rank."""

    def __init__(self) -> None:
        self._whole, self._times, self._overhead = WholePrompts(), PrefillTimes(), Overhead()

    @property
    def samples(self) -> int:
        """Measured prefills that count: those not yet forgotten."""
        return len(self._times)

    def count_batch(self, batch: PrefillBatch, ms: float | None, overlap_ms: float = 0.0) -> None:
        """A prefill batch took ``ms``; None: not known. In ``overlap_ms`` of them the one before was not yet done."""
        # A batch of unknown time still is one of its prompt's. NaN spoils that sample, and it is left out.
        known = math.nan if ms is None else ms
        sample = self._whole.add(batch.requests, batch.unfinished, batch.tokens, known, overlap_ms)
        if sample is not None:
            self._times.add(sample)
        self._overhead.count_prefill(batch.requests, known, overlap_ms, unfinished=batch.unfinished)
        for first_token in batch.first_tokens:
            self._overhead.count_first_token(first_token)

    def estimate(self, objective_ms: float) -> Estimate | None:
        """ξ for an objective; None before enough prefills were measured. Some tenths of a millisecond of work."""
        overhead = self._overhead.ms() or 0.0
        left = time_for_prefill(objective_ms, overhead)
        near = self._times.near(left)
        if near is None:
            return None
        line, usual = near.line, left / near.late
        if line.tokens(usual) > near.most:
            line = Line(usual / near.most, 0.0)
        return Estimate(line.tokens(usual), line, near.late, overhead)


def time_for_prefill(objective_ms: float, overhead_ms: float) -> float:
    """What 19 of 20 prefills of ξ tokens may take, in ms.

    T-LRU lets conversations decay to just under ξ. With ξ where the *usual* time meets the objective, half of these
    would miss it. A ξ that is too low costs little: fewer conversations are kept below it. One that is too high makes
    requests late that any other policy would have served in time. At least half the objective stays for prefill: a
    machine that has less cannot meet it, and then trimming everybody to nothing would help nobody.

    Args:
        overhead_ms: γ.
    """
    return max(objective_ms - overhead_ms, objective_ms / 2.0)
