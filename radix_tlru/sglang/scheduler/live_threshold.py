"""Where the Config does not pin ξ: one rank's cache is kept at the ξ that all ranks agree on.

Ranks of one model replica see the same batches in the same order but measure different times. So *events* decide when
something happens (every 32nd prefill batch). What differs is agreed on at those events, by a collective over the
process groups that SGLang gives to the cache. The slowest rank decides: it is the one that a first token waits for.
A rank that cannot time its prefills has nothing to say, and ξ stays; it goes on to count, as the others wait for it.
"""

from __future__ import annotations

import logging
import math
from typing import Protocol

import torch

from radix_tlru.config import Config
from radix_tlru.objective.calibration import EVERY, Calibration, Estimate, PrefillBatch, time_for_prefill
from radix_tlru.objective.prefill_latency import Line
from radix_tlru.objective.threshold import Threshold
from radix_tlru.sglang.scheduler.stopwatch import Stopwatch

__all__ = ["LiveThreshold", "ThresholdUser"]

logger = logging.getLogger(__name__)


class ThresholdUser(Protocol):
    """A rank's cache, as far as ξ is concerned."""

    def use_threshold(self, threshold: int) -> None:
        """Evict by another ξ (tokens) from now on."""

    def stop_measuring(self, error: Exception) -> None:
        """Say that prefills cannot be timed here any more, or raise ``error``."""

    def agree_on_maximum(self, values: torch.Tensor) -> None:
        """Replace each value by the largest of all ranks, in place."""


class LiveThreshold:
    """Moves the threshold of a cache as its Config says: by an objective in ms.

    Args:
        stages: of pipeline parallelism.
    """

    def __init__(self, cache: ThresholdUser, config: Config, page_size: int, stages: int) -> None:
        assert config.objective_ms is not None, "ξ is pinned"
        self.stopwatch = Stopwatch(stages)
        """What times the prefills."""
        self._cache = cache
        self._threshold = Threshold(config.start_threshold, config.next_prompt, page_size)
        self._objective_ms = config.objective_ms
        self._calibration = Calibration()
        self._batches = 0
        self.measures = True
        """Whether prefills are timed on this rank."""
        self.estimate: Estimate | None = None
        """What the ranks agreed on last; None before."""

    @property
    def samples(self) -> int:
        """Measured prefills that ξ is learned from: those not yet forgotten."""
        return self._calibration.samples

    def count_batch(self, batch: PrefillBatch, ms: float | None) -> None:
        """Every prefill batch in its turn, on every rank, with the time it took here (None: not known)."""
        if self.measures:
            try:
                self._calibration.count_batch(batch, ms, self.stopwatch.overlap_ms)
            except Exception as error:
                self.stop_measuring(error)
        self._batches += 1
        if self._batches % EVERY == 0:
            self._follow()

    def stop_measuring(self, error: Exception) -> None:
        """To time prefills has failed here, and perhaps nowhere else.

        Raises:
            Exception: ``error``, if faults are not survived.
        """
        self._cache.stop_measuring(error)
        self.measures = False

    def _own_estimate(self) -> Estimate | None:
        try:
            return self._calibration.estimate(self._objective_ms) if self.measures else None
        except Exception as error:
            self.stop_measuring(error)
            return None

    def _follow(self) -> None:
        estimate = self._agreed(self._own_estimate())
        if estimate is not None:
            self.estimate = estimate
            if self._threshold.follow(estimate.tokens):
                self._cache.use_threshold(self._threshold.tokens)
                self._log(estimate)

    def _agreed(self, own: Estimate | None) -> Estimate | None:
        """The lowest ξ of all ranks, and the slowest of each time it was read from; None while one has no estimate."""
        # One maximum says it all, of what is lower for a slower rank the negative; and whether an estimate is missing.
        values = [-own.tokens, *own.line, own.late, own.overhead_ms, 0.0] if own else [-math.inf] * 5 + [1.0]
        agreed = torch.tensor(values, dtype=torch.float64)
        self._cache.agree_on_maximum(agreed)
        negative, alpha, beta, late, overhead_ms, missing = agreed.tolist()
        return None if missing else Estimate(-negative, Line(alpha, beta), late, overhead_ms)

    def _log(self, estimate: Estimate) -> None:
        _, (alpha, beta), late, overhead_ms = estimate
        left = time_for_prefill(self._objective_ms, overhead_ms)
        bounded = ", which leaves it less than half; it is given half" if left == self._objective_ms / 2.0 else ""
        logger.info(
            f"radix_tlru: threshold {self._threshold.tokens} tokens, as prefill takes {beta:.1f} ms and {alpha:.4f} ms "
            f"a token, up to {late - 1.0:.0%} more, and a first token {overhead_ms:.1f} ms more, of "
            f"{self._objective_ms:g} ms{bounded}, from {self.samples} samples"
        )
