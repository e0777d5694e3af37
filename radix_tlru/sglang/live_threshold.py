"""Where the Config does not pin ξ: one rank's cache is kept at the ξ that all ranks agree on.

Ranks of one model replica see the same batches in the same order but measure different times. So the *events* decide
when something happens (every 32nd prefill batch), and what differs is agreed on at those events, by a collective over
the process groups that SGLang gives to the cache. The slowest rank decides: it is the one that a first token waits for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from radix_tlru.calibration import EVERY, Threshold, UncachedQuantile
from radix_tlru.config import percentile
from radix_tlru.prefill import Line, PrefillFit, WholePrompts

if TYPE_CHECKING:
    from radix_tlru.sglang.cache import TailRadixCache

__all__ = ["LiveThreshold", "Prefill"]

logger = logging.getLogger(__name__)


class Prefill(NamedTuple):
    """A prefill batch, as every rank sees it."""

    prompts: tuple[str, ...]  # request ids with prompt tokens in it
    unfinished: str | None  # of them, the one that a later batch goes on with
    tokens: int  # prefilled
    uncached: tuple[int, ...] = ()  # of each request whose whole prompt has been prefilled with it


class LiveThreshold:
    """Moves the threshold of ``cache`` as its Config says: by an objective in ms, or by a percentile."""

    def __init__(self, cache: TailRadixCache) -> None:
        config = cache.tail.config
        self._cache = cache
        self._threshold = Threshold(config.start_threshold, config.next_prompt, cache.tail.page_size)
        self._objective_ms = config.objective_ms
        self._target = UncachedQuantile(percentile(config.target) or 0.0) if config.target else None
        self._whole, self._fit = WholePrompts(), PrefillFit()
        self._batches = 0
        self.line: Line | None = None
        """α and β that the ranks agreed on last; None before, and always with a target percentile."""

    @property
    def samples(self) -> int:
        """What ξ is learned from: measured prefills, or requests with a target percentile; those not yet forgotten."""
        return len(self._fit if self._target is None else self._target)

    def prefilled(self, batch: Prefill, ms: float | None) -> None:
        """Every prefill batch in its turn, on every rank, with the time it took here (None: not known)."""
        if self._target is not None:
            for uncached in batch.uncached:
                self._target.add(uncached)
        else:
            # A batch of unknown time still is one of its prompt's: NaN spoils that sample, which then is none.
            sample = self._whole.add(batch.prompts, batch.unfinished, batch.tokens, float("nan") if ms is None else ms)
            if sample is not None:
                self._fit.add(sample)
        self._batches += 1
        if self._batches % EVERY == 0:
            self._look()

    def _look(self) -> None:
        wanted = self._by_objective() if self._target is None else self._target.threshold()
        if wanted is not None and self._threshold.follow(wanted):
            xi = self._threshold.tokens
            self._cache.tail.use_threshold(xi)
            logger.info("radix_tlru: threshold %d tokens, %s, from %d samples", xi, self._reason(), self.samples)
        self._cache.report()

    def _reason(self) -> str:
        if self.line is None:
            return f"a quarter below {self._cache.tail.config.target}"
        return f"as prefill takes {self.line.beta:.1f} ms and {self.line.alpha:.4f} ms a token"

    def _by_objective(self) -> float | None:
        line = self._fit.line()
        # One maximum says it all: the slowest α and β, and whether any rank has none yet.
        agreed = torch.tensor([line.alpha, line.beta, 0.0] if line else [0.0, 0.0, 1.0], dtype=torch.float64)
        self._cache._drain_async_work()
        self._cache._all_reduce(agreed, torch.distributed.ReduceOp.MAX)
        alpha, beta, missing = agreed.tolist()
        if missing or self._objective_ms is None:
            return None
        self.line = Line(alpha, beta)
        return self.line.tokens(self._objective_ms)
