"""Running the cells of a setting, each beside lru and Tail-Optimized Belady on the same requests, and their rows.

A row of ``cells.jsonl`` has what ``simulate`` writes (settings, figures, ``gap_closed``), and

| field | what |
|---|---|
| `hits` | the hit ratio, 0 to 1 |
| `prefilled` | uncached tokens of all requests |
| `against_lru` | by figure: [relative change, low, high]; null where lru has 0 |
| `losses` | by figure: the loss against lru; above 0.01 it counts (``changes.py``) |
| `gap_interval` | [low, high] of ``gap_closed`` |
| `capacity_asked`, `working_set` | the capacity as it was asked for; tokens |
| `trace_digest` | that of the trace that was run; cells of another one of its name are dropped |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.compare.bootstrap import Drawn, Sample, draws, interval, resampled
from eval.compare.changes import METRICS, changes, figures_of, least, losses
from eval.compare.settings import BASELINE, OPTIMUM, Setting
from eval.parallel import in_parallel
from eval.simulate.cells import Cell, Outcome, outcome, uncached_tokens
from eval.simulate.evaluate import serve, trace_of
from eval.simulate.rows import Rows
from eval.trace_arguments import TraceSource
from eval.traces.variants import sessions_of

AT_ONCE = 4
"""Cells of one call. More save runs of lru and the optimum; fewer lose less when a run is cut off."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """Cells of one setting that are run in one call."""

    setting: Setting
    baseline: Cell
    optimum: Cell
    cells: tuple[Cell, ...]


class _Ran(NamedTuple):
    """A cell that was run."""

    outcome: Outcome
    resampled: Floats  # figures of each resample, columns in the order of METRICS
    prefilled: int


def check_own(rows: Rows) -> None:
    """Refuse a folder that another command filled.

    Raises:
        ValueError: a row was not written by this command.
    """
    if any("trace_digest" not in rows[name] for name in rows):
        raise ValueError(f"--out {rows.path.parent}: holds cells of another command; give another folder")


def drop_stale(rows: Rows, settings: Iterable[Setting]) -> None:
    """Drop the cells of traces that are other ones now, so that no table has both."""
    digests = {setting.trace.name: setting.trace.digest for setting in settings}
    rows.keep(lambda row: bool(row["trace_digest"] == digests.get(row["trace"], row["trace_digest"])))


def fill(rows: Rows, wanted: Sequence[tuple[Setting, Sequence[Cell]]], jobs: int) -> int:
    """Run the cells that have no row yet, and append their rows as they are done.

    Returns:
        How many cells were run.
    """
    calls = []
    at_once = AT_ONCE if jobs > 1 else 1  # one process remembers its references from call to call
    for setting, cells in wanted:
        baseline, optimum = (next(c for c in cells if c.policy == name) for name in (BASELINE, OPTIMUM))
        missing = [cell for cell in cells if cell.name not in rows]
        for first in range(0, len(missing), at_once):
            calls.append((Work(setting, baseline, optimum, tuple(missing[first : first + at_once])),))
    title = f"batches of up to {at_once} cells" if at_once > 1 else "cells"
    count = 0
    for made in in_parallel(rows_of, calls, jobs=jobs, title=title, ordered=False):
        for row in made:
            rows.append(row)
            count += 1
    return count


def rows_of(work: Work) -> list[dict[str, Any]]:
    """Run the cells, and make their rows."""
    rows = []
    setting, source = work.setting, work.setting.trace.source
    lru, optimum = _reference(work.baseline, source), _reference(work.optimum, source)
    tel = METRICS.index("tel")
    smallest = least(lru.outcome.requests, setting.threshold)
    gap = lru.outcome.tel - optimum.outcome.tel
    gaps = lru.resampled[:, tel] - optimum.resampled[:, tel]
    for cell in work.cells:
        is_reference = cell in (work.baseline, work.optimum)
        ran = _reference(cell, source) if is_reference else _run(cell, source)
        saved = lru.outcome.tel - ran.outcome.tel
        closed = round(saved / gap, 6) if gap > 0 else None
        figures = figures_of(ran.outcome), figures_of(lru.outcome)
        change, ends = changes(*figures), interval(changes(ran.resampled, lru.resampled))
        some = gaps > 0
        shares = (lru.resampled[some, tel] - ran.resampled[some, tel]) / gaps[some]
        row = {
            **ran.outcome.row(cell, closed),
            "hits": ran.outcome.hit_ratio,
            "prefilled": ran.prefilled,
            "against_lru": {
                name: [None if np.isnan(value) else round(float(value), 6) for value in each]
                for name, each in zip(METRICS, np.stack([change, *ends], axis=1), strict=True)
            },
            "losses": dict(zip(METRICS, losses(*figures, smallest).round(6).tolist(), strict=True)),
            "gap_interval": None if closed is None or not len(shares) else interval(shares).round(6).tolist(),
            "capacity_asked": setting.size.text,
            "working_set": setting.trace.working_set,
            "trace_digest": setting.trace.digest,
        }
        rows.append(row)
    return rows


@lru_cache(maxsize=2)
def _reference(cell: Cell, source: TraceSource) -> _Ran:
    """Lru or the optimum: run once for the calls of a setting that one process has in turn."""
    return _run(cell, source)


def _run(cell: Cell, source: TraceSource) -> _Ran:
    requests = trace_of(source).requests
    served = serve(cell, source)
    uncached = uncached_tokens(requests, served.cached)
    of_trace = _grouped(source)
    sample = Sample(uncached, of_trace.prompt, of_trace.session)
    found = outcome(requests, served.cached, cell.threshold, served.evicted, served.seconds)
    return _Ran(found, resampled(sample, cell.threshold, of_trace.drawn), int(uncached.sum()))


class _Grouped(NamedTuple):
    """What all cells of a trace share."""

    prompt: NDArray[np.int64]
    session: NDArray[np.int64]
    drawn: Drawn


@lru_cache(maxsize=1)
def _grouped(source: TraceSource) -> _Grouped:
    requests = trace_of(source).requests
    prompt = np.array([request.prompt_tokens for request in requests], dtype=np.int64)
    session = np.array(sessions_of(requests), dtype=np.int64)
    return _Grouped(prompt, session, draws(int(session.max()) + 1))
