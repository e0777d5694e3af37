"""Cells of a simulation by hand, and the scene of a report on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.render.report.rows import read_rows
from eval.render.report.scene import Scene, groups

__all__ = ["cell", "scene", "written"]


def cell(policy: str, tel: int, p50: float = 100, **other: Any) -> dict[str, Any]:
    sizes = {"capacity": 2_000_000, "threshold": 4096, "next_prompt_estimate": 200, "median_weight": 0.0}
    figures = {"requests": 10, "hit_ratio": 0.5, "mean": 300.0, "p50": p50, "p90": 500, "p95": 600, "p99": 700}
    rest: dict[str, Any] = {"violations": 3, "gap_closed": None, "seconds": 0.1, "evicted": {}, "page_size": 16}
    return {"trace": "t", "policy": policy, "tel": tel, "cell": f"{policy}-{tel}", **sizes, **figures, **rest, **other}


def written(folder: Path, *cells: dict[str, Any]) -> Path:
    (folder / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    return folder


def scene(folder: Path, *cells: dict[str, Any]) -> Scene:
    rows = read_rows(written(folder, *cells))
    return Scene(folder, groups(rows)[0], rows)
