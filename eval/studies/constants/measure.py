"""One trace through one cache with another value of one constant, as a server would serve it.

The cache has the trim chunk, w and learning of a server. Requests queue for prefills. α is chosen so that lru is busy
for a given share of the time (:func:`~eval.studies.queue_model.line_for`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import uncached_tokens
from eval.simulate.evaluate import trace_of
from eval.simulate.timing import Timing
from eval.studies.constants.changed import changed
from eval.studies.constants.table import Constant
from eval.studies.figures import Figures, figures
from eval.studies.queue_model import line_for, serve
from eval.trace_arguments import TraceSource

BETA_MS = 20.0
"""β of every prefill, ms."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A trace, and the cache that serves it. Lengths in tokens."""

    source: TraceSource
    capacity: int
    threshold: int  # ξ
    page_size: int
    load: float  # share of the time that lru is busy

    @property
    def title(self) -> str:
        """The file or the generator, without its parameters."""
        name, _, _ = self.source.source.partition(":")
        return name

    def cache(self, policy: str) -> SimulatedCache:
        """An empty cache as a server has it: trim chunk and w by default, Q̂ learned."""
        return simulated_cache(
            policy,
            self.capacity,
            threshold=self.threshold,
            page_size=self.page_size,
            trim_chunk=None,
        )


def line_of(setting: Setting) -> Timing:
    """The server on which lru is busy for that share of the time.

    Raises:
        TraceError: the trace cannot be read.
        ValueError: it has more requests than β allows for.
    """
    requests = trace_of(setting.source).requests
    uncached = uncached_tokens(requests, simulate(setting.cache("lru"), requests))
    return line_for(setting.load, BETA_MS, requests, int(uncached.sum()))


def measured(setting: Setting, line: Timing, policy: str, constant: Constant | None, factor: float) -> dict[str, Any]:
    """A row: the figures with the constant at ``factor`` times its value, or with all as they are (None)."""
    requests = trace_of(setting.source).requests
    with changed(constant, factor) if constant is not None else nullcontext():
        served = serve(setting.cache(policy), requests, line)
    cached = [request.prompt_tokens - tokens for request, tokens in zip(requests, served.uncached, strict=True)]
    found: Figures = figures(requests, cached, setting.threshold)
    return {"run": name_of(setting, policy, constant, factor), **found._asdict()}


def name_of(setting: Setting, policy: str, constant: Constant | None, factor: float) -> str:
    """The name of a row: all that it depends on but the code."""
    settings = asdict(setting)
    what = "as it is" if constant is None else f"{constant.key}={constant.value} x {factor:g}"
    return f"{policy} {what} {settings}"
