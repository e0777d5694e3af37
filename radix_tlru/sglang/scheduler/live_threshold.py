"""Where the Config does not pin ξ: one rank's cache is kept at the ξ that all ranks agree on.

Ranks of one model replica see the same batches in the same order but measure different times. So the *events* decide
when something happens (every 32nd prefill batch), and what differs is agreed on at those events, by a collective over
the process groups that SGLang gives to the cache. The slowest rank decides: it is the one that a first token waits for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from radix_tlru.config import percentile
from radix_tlru.objective.prefill_latency import Line, PrefillFit, WholePrompts
from radix_tlru.objective.threshold import EVERY, Overhead, Threshold, UncachedQuantile, time_for_prefill

if TYPE_CHECKING:
    from radix_tlru.sglang.cache.radix_cache import TailRadixCache
    from radix_tlru.sglang.requests.first_tokens import FirstToken

__all__ = ["LiveThreshold", "Prefill"]

logger = logging.getLogger(__name__)


class Prefill(NamedTuple):
    """A prefill batch, as every rank sees it."""

    prompts: tuple[str, ...]  # request ids with prompt tokens in it
    unfinished: str | None  # of them, the one that a later batch goes on with
    tokens: int  # prefilled
    uncached: tuple[int, ...] = ()  # of each request whose whole prompt has been prefilled with it
    first_tokens: tuple[FirstToken, ...] = ()  # of earlier requests, told with those


class LiveThreshold:
    """Moves the threshold of ``cache`` as its Config says: by an objective in ms, or by a percentile."""

    def __init__(self, cache: TailRadixCache) -> None:
        config = cache.tail.config
        self._cache = cache
        self._threshold = Threshold(config.start_threshold, config.next_prompt, cache.tail.page_size)
        self._objective_ms = config.objective_ms
        self._target = UncachedQuantile(percentile(config.target) or 0.0) if config.target else None
        self._whole, self._fit, self._overhead = WholePrompts(), PrefillFit(), Overhead()
        self._batches = 0
        self.line: Line | None = None
        """α and β near the objective that the ranks agreed on last; None before, and always with a target."""
        self.late = 1.0
        """δ: what 19 of 20 prefills take at most, in times what that line says."""
        self.overhead_ms = 0.0
        """γ: what first tokens wait for besides prefills; 0 until it is known."""

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
            known = float("nan") if ms is None else ms
            sample = self._whole.add(batch.prompts, batch.unfinished, batch.tokens, known)
            if sample is not None:
                self._fit.add(sample)
            self._overhead.prefilled(batch.prompts, known)
            for told in batch.first_tokens:
                self._overhead.first_token(told.request, told.ms)
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
        if self.line is None or self._objective_ms is None:
            return f"a quarter below {self._cache.tail.config.target}"
        alpha, beta = self.line
        left = time_for_prefill(self._objective_ms, self.overhead_ms, self.late)
        bounded = ", which leaves it less than half; it is given half" if left == self._objective_ms / 2.0 else ""
        return (
            f"as prefill takes {beta:.1f} ms and {alpha:.4f} ms a token, up to {self.late - 1.0:.0%} more, and a first "
            f"token {self.overhead_ms:.1f} ms besides, of {self._objective_ms:g} ms{bounded}"
        )

    def _by_objective(self) -> float | None:
        if self._objective_ms is None:
            return None
        overhead = self._overhead.ms() or 0.0
        near = self._fit.near(time_for_prefill(self._objective_ms, overhead, 1.0))
        # One maximum says it all: the slowest of each, and whether any rank has no line yet.
        own = [*near.line, near.late, overhead, 0.0] if near else [0.0, 0.0, 0.0, 0.0, 1.0]
        agreed = torch.tensor(own, dtype=torch.float64)
        self._cache._drain_async_work()
        self._cache._all_reduce(agreed, torch.distributed.ReduceOp.MAX)
        alpha, beta, late, overhead, missing = agreed.tolist()
        if missing:
            return None
        self.line, self.late, self.overhead_ms = Line(alpha, beta), late, overhead
        return self.line.tokens(time_for_prefill(self._objective_ms, overhead, late))
