"""`python -m eval queue-check`: does the model of `queue --itl` say what clients measured?

In go folders of `replay`, played at several loads on one machine. The folder that is given to ``--calibrate``, in which
requests seldom wait, gives the times of the engine: β and α of a prefill, and of a decoding step. With them the model
serves the requests of each folder: sent at the same times, with the uncached tokens that the server had to prefill and
the answers that it gave. So times alone are judged; `replay` itself holds the cache against the simulator.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from eval.arguments import whole
from eval.caches.simulator import Hold
from eval.live.replay.predict import fitted_line
from eval.live.replay.rows import Folder, FolderError, Row
from eval.simulate.timing import Point
from eval.studies.batching import Batched, Engine, serve_batches
from eval.studies.figures import change, four_digits, shown
from eval.terminal import show, table
from eval.traces.request import Path as Units
from eval.traces.request import Request

COLUMNS = ("TTFT p50", "p95", "p99", "ITL p50", "p95", "tokens/s")
"""ITL is the mean of a request; all but the last in ms."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folders, and what a step of their servers takes at most."""
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="of `replay --loop open --out DIR`")
    add("--calibrate", type=Path, required=True, metavar="DIR", help="one in which requests seldom wait")
    add("--chunk", type=whole(1), default=2048, metavar="TOKENS", help="prefilled in a step (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        FolderError: a folder holds no finished run, or none that times can be learned from.
    """
    calibrated = _parts(Folder(args.calibrate))
    try:
        engine = engine_of([row for rows in calibrated.values() for row in rows], args.chunk)
    except FolderError as error:
        raise FolderError(f"--calibrate {args.calibrate}: {error}; give a run in which requests seldom wait") from None
    show(_table([Folder(path) for path in args.folders], engine))
    return 0


def engine_of(rows: Sequence[Row], chunk: int) -> Engine:
    """Times of the engine that answered ``rows``, of which few waited.

    β and α are the line of TTFT over uncached tokens, with its floor if it has one. A decoding step is the line of the
    median ITL of an answer over how many others were decoded meanwhile. Both lines are of repeated medians, so those
    that waited do not matter.

    Raises:
        FolderError: TTFT does not rise with uncached tokens, or no answer has two tokens.
    """
    line = fitted_line([Point(row.uncached_tokens, row.ttft_ms) for row in rows if row.ttft_ms is not None])
    decoded = [row for row in rows if row.itl_ms]
    if line is None:
        raise FolderError("TTFT does not rise with uncached tokens")
    if not decoded:
        raise FolderError("no answer has two tokens or more")
    medians = np.array([np.median(row.itl_ms) for row in decoded])
    others = _others(decoded)
    step = np.median(medians)
    slope = 0.0
    if others.max() > others.min():
        from scipy.stats import siegelslopes

        slope, step = siegelslopes(medians, others)
    return Engine(line, float(step), max(float(slope), 0.0), chunk)


def _others(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many other answers were decoded while each of these was, on average over its time."""
    starts = np.array([1000 * row.sent_s + (row.ttft_ms or 0.0) for row in rows])
    ends = np.array([1000 * row.sent_s + row.e2e_ms for row in rows])
    shared = np.minimum(ends[:, None], ends[None, :]) - np.maximum(starts[:, None], starts[None, :])
    together = np.maximum(shared, 0.0).sum(axis=1) - (ends - starts)
    counted: np.ndarray[tuple[int], np.dtype[np.float64]] = together / np.maximum(ends - starts, 1e-9)
    return counted


class _Measured:
    """Stands for the cache of a server: of each request it has what that server had."""

    def __init__(self, cached: dict[int, int]) -> None:
        self._cached = cached  # tokens, by the unit of a prompt

    def request(self, request: Request) -> int:
        return self._cached[request.prompt.ids[0]]

    def fits(self, request: Request) -> bool:
        """A full pool is the cache's part."""
        return True

    def hold(self, request: Request) -> Hold:
        return Hold(None)

    def release(self, held: Hold) -> None:
        pass

    def touch(self, request: Request) -> None:
        pass


def modelled(rows: Sequence[Row], engine: Engine) -> Batched:
    """What the model says of the requests that were sent."""
    prompts = [Units((number,), (row.prompt_tokens,)) for number, row in enumerate(rows)]
    requests = [
        Request(row.sent_s, None, prompt, prompt, row.prompt_tokens, row.output_tokens)
        for prompt, row in zip(prompts, rows, strict=True)
    ]
    return serve_batches(_Measured({number: row.cached_tokens for number, row in enumerate(rows)}), requests, engine)


def _parts(folder: Folder) -> dict[str, list[Row]]:
    """The requests that succeeded, by part: its arm and repeat. They are in the order in which they were sent."""
    parts = {
        f"{part.arm} #{part.repeat + 1}": sorted(
            (row for row in folder.rows(part.arm, part.repeat) if row.error is None), key=lambda row: row.sent_s
        )
        for part in folder.parts
    }
    found = {name: rows for name, rows in parts.items() if rows}
    if not found:
        raise FolderError(f"{folder.path}: no part of a run was played to its end")
    return found


def _table(folders: Sequence[Folder], engine: Engine) -> Table:
    floor = f", {engine.line.floor:.1f} ms at least" if engine.line.floor else ""
    title = (
        f"prefill {engine.line.beta:.1f} ms + {engine.line.alpha:.4f} ms a token{floor}, "
        f"decoding {engine.itl_ms:.2f} ms + {engine.slope_ms:.2f} ms for each other request"
    )
    result = table(title, ("run", "part", "busy", *(name for column in COLUMNS for name in (column, "model"))), texts=2)
    for folder in folders:
        for name, rows in _parts(folder).items():
            served = modelled(rows, engine)
            pairs = zip(_live(rows), _figures(served), strict=True)
            texts = [text for live, model in pairs for text in (four_digits(live), _held_against(model, live))]
            result.add_row(folder.path.name, name, f"{served.busy:.0%}", *texts)
        result.add_section()
    return result


def _held_against(model: float, live: float) -> str:
    """The change of the model against what was measured; a dash where that is 0, or there is none."""
    return shown(change(model, live), "{:+.0%}")


def _live(rows: Sequence[Row]) -> tuple[float, ...]:
    """The columns, as clients measured them."""
    ttft = [row.ttft_ms for row in rows if row.ttft_ms is not None]
    itl = [float(np.mean(row.itl_ms)) for row in rows if row.itl_ms]
    seconds = max(row.sent_s + row.e2e_ms / 1000 for row in rows) - rows[0].sent_s
    return (
        *np.percentile(ttft, [50, 95, 99]).tolist(),
        *(np.percentile(itl, [50, 95]).tolist() if itl else (float("nan"),) * 2),
        sum(row.output_tokens for row in rows) / seconds,
    )


def _figures(served: Batched) -> tuple[float, ...]:
    itl_s = served.itl_s[~np.isnan(served.itl_s)]  # of answers of more than one token
    return (
        *(1000 * np.percentile(served.ttft_s, [50, 95, 99])).tolist(),
        *((1000 * np.percentile(itl_s, [50, 95])).tolist() if len(itl_s) else (float("nan"),) * 2),
        served.tokens_per_s,
    )
