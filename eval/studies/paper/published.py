"""What the paper itself reports: Zhang et al., "Tail-Optimized Caching for LLM Inference", arXiv 2510.15152v1.

Copied from a stored text conversion of the paper, Tables 1–6 and sections 5 and G.2. Nothing here is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAPACITIES = (1_000, 2_000, 4_000, 6_000, 8_000, 10_000)
"""Capacities of all six tables. The paper gives no unit; its appendix F speaks of 10,000 *tokens*, so tokens."""

OBJECTIVE_MS = 200.0
"""The SLO of Tables 3 and 6."""

FIGURE_THRESHOLDS_MS = (100.0, 200.0, 300.0)
"""ξ_s of the panels of Figures 6 and 7."""


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the paper: per cent by capacity, ξ_s (ms) and what is compared (a percentile, or a baseline)."""

    columns: tuple[tuple[float, str], ...]
    rows: Mapping[int, tuple[float, ...]]

    def at(self, capacity: int, threshold_ms: float, column: str) -> float | None:
        """Per cent; None where the paper has no such cell."""
        if capacity not in self.rows or (threshold_ms, column) not in self.columns:
            return None
        return self.rows[capacity][self.columns.index((threshold_ms, column))]


def _columns(thresholds_ms: tuple[float, ...], names: tuple[str, str]) -> tuple[tuple[float, str], ...]:
    return tuple((threshold, name) for threshold in thresholds_ms for name in names)


_WILDCHAT = (50.0, 100.0, 150.0, 200.0, 500.0)
_SHAREGPT = (50.0, 100.0, 200.0, 300.0, 500.0)
_TAILS, _BASELINES = ("p90", "p95"), ("lru", "threshold-lru")

THRESHOLDS_MS = (50.0, 100.0, 150.0, 200.0, 300.0, 500.0)
"""ξ_s that appear in any of the tables."""

TABLES = {
    1: Published(
        (*_columns(_WILDCHAT, _TAILS), (500.0, "p99")),
        {
            1_000: (4.0, 0.0, 4.5, 1.0, 5.3, 1.5, 7.3, 2.0, -1.4, -1.3, 3.2),
            2_000: (1.2, 0.6, 3.4, 0.6, 5.1, 3.4, 9.2, 4.4, -4.9, -2.8, 3.3),
            4_000: (1.7, 0.7, 4.1, 2.8, 10.5, 4.2, 13.3, 10.8, -7.5, -3.4, 3.4),
            6_000: (5.0, 2.1, 10.6, 4.0, 16.0, 11.4, 14.3, 15.4, -8.7, -4.2, 3.4),
            8_000: (2.2, 0.7, 10.5, 8.5, 23.0, 15.8, 8.8, 19.5, -13.7, -3.5, 1.4),
            10_000: (3.6, 7.4, 20.0, 15.7, 27.5, 20.1, 6.9, 23.9, -13.3, -3.5, 0.0),
        },
    ),
    2: Published(
        (*_columns(_WILDCHAT, _TAILS), (500.0, "p99")),
        {
            1_000: (1.5, 0.0, 2.0, 1.0, 2.9, 1.5, 4.8, 2.0, -4.0, -1.3, 3.2),
            2_000: (0.4, 0.6, 2.7, 0.6, 4.4, 3.4, 8.6, 4.4, -5.7, -2.8, 3.3),
            4_000: (0.3, 0.0, 2.7, 2.1, 9.3, 3.5, 12.0, 10.2, -9.0, -4.2, 3.4),
            6_000: (4.7, 1.2, 10.4, 3.1, 15.7, 10.6, 14.1, 14.6, -9.1, -5.2, 3.4),
            8_000: (1.1, 0.7, 9.5, 8.5, 22.2, 15.8, 7.8, 19.5, -14.9, -3.5, 1.4),
            10_000: (2.4, 6.1, 19.0, 14.6, 26.6, 19.0, 5.7, 22.8, -14.7, -5.0, 0.0),
        },
    ),
    3: Published(
        _columns(_WILDCHAT, _BASELINES),
        {
            1_000: (1.2, -1.2, 4.1, 1.8, 6.5, 4.2, 8.8, 6.6, -1.8, -4.2),
            2_000: (2.4, 1.2, 6.1, 4.9, 9.1, 8.0, 13.3, 12.3, -4.8, -6.1),
            4_000: (3.9, 1.3, 7.1, 4.7, 14.3, 12.0, 22.1, 20.0, -12.3, -15.3),
            6_000: (2.0, 0.7, 12.2, 11.0, 20.9, 19.9, 30.4, 29.5, -12.2, -13.7),
            8_000: (4.3, 2.2, 16.4, 14.6, 29.3, 27.7, 33.6, 32.1, -19.3, -21.9),
            10_000: (7.4, 4.6, 25.9, 23.7, 31.9, 29.8, 40.7, 38.9, -19.3, -22.9),
        },
    ),
    4: Published(
        _columns(_SHAREGPT, _TAILS),
        {
            1_000: (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.6, 0.9, 0.9),
            2_000: (0.7, 0.0, 0.7, 0.2, 0.9, 1.5, 1.4, 2.0, 2.7, 2.3),
            4_000: (0.6, 0.6, 0.7, 1.8, 2.0, 2.5, 2.5, 3.0, 4.2, 3.5),
            6_000: (0.7, 1.3, 2.1, 2.9, 4.9, 3.6, 8.1, 4.2, 10.0, 4.7),
            8_000: (1.5, 0.9, 2.6, 1.8, 3.5, 2.5, 4.8, 3.6, 9.6, 5.0),
            10_000: (0.9, 0.7, 3.6, 1.7, 4.3, 2.9, 5.1, 3.6, 9.0, 6.9),
        },
    ),
    5: Published(
        _columns(_SHAREGPT, _TAILS),
        {
            1_000: (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.6, 0.9, 0.9),
            2_000: (0.7, 0.0, 0.7, 0.2, 0.9, 1.5, 1.4, 2.0, 2.7, 2.3),
            4_000: (0.6, 0.6, 0.7, 1.8, 2.0, 2.5, 2.5, 3.0, 4.2, 3.5),
            6_000: (0.7, 0.8, 2.1, 2.4, 4.9, 3.1, 8.1, 3.7, 10.0, 4.2),
            8_000: (0.8, 0.3, 2.0, 1.2, 2.9, 2.0, 4.1, 3.0, 9.0, 4.5),
            10_000: (0.9, 0.6, 3.6, 1.6, 4.3, 2.8, 5.1, 3.5, 9.0, 6.8),
        },
    ),
    # A fifth pair of columns is left out: its ξ_s cannot be read in the copy.
    6: Published(
        _columns(_WILDCHAT[:4], _BASELINES),
        {
            1_000: (0.7, 0.0, 1.7, 1.0, 2.3, 1.6, 2.3, 1.6),
            2_000: (1.1, 1.0, 1.9, 1.8, 2.6, 2.5, 3.1, 3.0),
            4_000: (1.8, 1.3, 3.9, 3.4, 4.7, 4.2, 4.8, 4.3),
            6_000: (1.9, 1.1, 4.7, 3.9, 6.0, 5.2, 4.7, 3.9),
            8_000: (1.2, 0.9, 4.3, 4.0, 4.9, 4.6, 2.9, 2.6),
            10_000: (2.2, 1.8, 6.5, 6.1, 7.9, 7.6, 3.3, 3.0),
        },
    ),
}
"""The paper's tables by number."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the paper, and what the paper says of it."""

    name: str
    hub: str  # its name on the Hugging Face hub
    next_prompt_estimate: int  # Q̂: the average prompt, tokens
    lru_ms: tuple[float, float, float, float]  # p50, p90, p95, p99 of TTFT under LRU at a capacity of 1,000
    tables: tuple[int, int, int]  # T-LRU against LRU, against Threshold-LRU, violations
    figures: tuple[int, int]  # distributions, latencies by capacity


WILDCHAT = DataSet("WildChat", "allenai/WildChat-1M", 200, (40.0, 240.0, 326.0, 505.0), (1, 2, 3), (4, 6))
SHAREGPT = DataSet(
    # Section 5.2 says 150, section G.2, which describes these experiments, "approximately 100 … we thus set Q̂ = 100".
    "ShareGPT", "anon8231489123/ShareGPT_Vicuna_unfiltered", 100, (209.0, 1415.0, 2447.0, 3649.0), (4, 5, 6), (5, 7)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure of the abstract, and the cell of a table that it is from."""

    what: str
    per_cent: float
    table: int
    capacity: int
    threshold_ms: float
    column: str


HEADLINE = (
    Headline("p90 TTFT against LRU", 27.5, 1, 10_000, 150.0, "p90"),
    Headline("p95 TTFT against LRU", 23.9, 1, 10_000, 200.0, "p95"),
    Headline("violations of 200 ms against Threshold-LRU", 38.9, 3, 10_000, 200.0, "threshold-lru"),
)
