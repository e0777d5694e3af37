"""Rows of cells as `eval compare` keeps them, with figures that a test gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from eval.compare.changes import METRICS, changes, least, losses

THRESHOLD = 8_000
LRU = {"hit_ratio": 0.5, "mean": 2_000.0, "p50": 1_000.0, "p90": 5_000.0, "p95": 9_000.0, "p99": 20_000.0}
LRU |= {"violations": 500.0, "tel": 3_000_000.0}


def row(policy: str, capacity: int, **own: float) -> dict[str, Any]:
    """A row of a cell with the figures of LRU but for these; intervals are a tenth of a point around the change."""
    figures = LRU | own
    before, after = (np.array([each[name] for name in METRICS]) for each in (LRU, figures))
    lost = losses(after, before, least(5_000, THRESHOLD)).tolist()
    against = {
        name: [change, change - 0.001, change + 0.001]
        for name, change in zip(METRICS, changes(after, before).tolist(), strict=True)
    }
    settings = {"trace": "chats", "policy": policy, "capacity": capacity, "threshold": THRESHOLD, "page_size": 64}
    return {
        **settings,
        **figures,
        "median_weight": None if policy == "etlru" else 0.0,
        "requests": 5_000,
        "prefilled": 10_000_000,
        "against_lru": against,
        "losses": dict(zip(METRICS, lost, strict=True)),
        "gap_closed": 1 - figures["tel"] / LRU["tel"] if policy != "tail-belady" else 1.0,
        "capacity_asked": f"{capacity:,}",
        "cell": f"{policy}-{capacity}",
    }
