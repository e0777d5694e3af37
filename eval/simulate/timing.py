"""From uncached tokens to milliseconds and back: TTFT = β + α·uncached (paper, equation 2, where β is 0).

A GPU may compute a short prefill faster than its kernels can be launched. Then 64 tokens take as long as 1,000: the
line begins at a corner, and below it TTFT is a ``floor``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray


class TimingError(ValueError):
    """α and β that cannot be used; one line that names the flag or the field, the value and what is allowed."""


class Point(NamedTuple):
    """One measured request."""

    uncached: int  # tokens
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Timing:
    """TTFT of a request as a line over its uncached tokens, and at least ``floor``.

    Raises:
        TimingError: α is not above 0, or one of them is not a number.
    """

    alpha: float  # ms a token
    beta: float  # ms
    origin: str  # how they were found, for the reader of the results
    r2: float | None = None  # share of the variance of the points that the line explains
    points: tuple[Point, ...] = ()  # the measurements that the line was fitted to
    floor: float = 0.0  # ms that a request takes with however few uncached tokens

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise TimingError(f"alpha {self.alpha:g}: must be a number of ms a token above 0")
        if not math.isfinite(self.beta):
            raise TimingError(f"beta {self.beta:g}: must be a number of ms")
        if not (math.isfinite(self.floor) and self.floor >= 0):
            raise TimingError(f"floor {self.floor:g}: must be a number of ms, 0 or more")

    def __str__(self) -> str:
        """The formula."""
        line = f"{self.beta:.4g} ms + {self.alpha:.4g} ms · uncached"
        return f"TTFT = max({self.floor:.4g} ms, {line})" if self.floor else f"TTFT = {line}"

    @property
    def corner(self) -> float:
        """Uncached tokens from which on TTFT rises."""
        return max(0.0, (self.floor - self.beta) / self.alpha)

    def ms(self, tokens: float) -> float:
        """TTFT in ms of a request with ``tokens`` uncached tokens."""
        return max(self.floor, self.beta + self.alpha * tokens)

    def tokens(self, ms: float) -> int:
        """ξ: the most uncached tokens whose TTFT is at most ``ms``.

        Raises:
            TimingError: no request can be that fast, or ``ms`` is no number of ms.
        """
        # Rounded first: 200 ms at 200 / 2,048 ms a token are 2,048 tokens, whatever the last bit says.
        tokens = round((ms - self.beta) / self.alpha, 6)
        if not tokens < 2**53:
            raise TimingError(f"{ms:g} ms: must be a number of ms, and less than 2^53 tokens take")
        if tokens < 0 or ms < self.floor:
            raise TimingError(f"{ms:g} ms: cannot be met, a request without uncached tokens takes {self.ms(0):g} ms")
        return math.floor(tokens)


ASSUMED = Timing(
    200 / 2048, 0.0, "assumed, not measured: 2,048 uncached tokens are 200 ms, about a 7B model on an A100; the paper "
    "plots a line for Vicuna-7B on an A100 (Figure 3) but does not state α"
)  # fmt: skip
"""What holds where nothing was measured or given."""


CORNERS = 8
"""Parts of equal size into which the lengths are divided, to look for the corner between them."""

EXPLAINED = 0.8
"""Share of the absolute error of a line without a corner: one with a corner has to leave less."""

COUNTED = 0.75
"""Share of the points that count for these errors: those nearest to the line."""


def fit(points: Sequence[Point], origin: str) -> Timing:
    """The line through measured points, with a corner where they have one.

    Both halves are robust, each up to half of its points may be outliers: the line is of Siegel's repeated medians, the
    floor a median. A line alone, through lengths of which most lie below the corner, is that of the floor.

    Raises:
        TimingError: fewer than two lengths, or TTFT does not rise with length.
    """
    lengths = sorted({point.uncached for point in points})
    if len(lengths) < 2:
        raise TimingError(f"{len(points)} points: a line needs at least two lengths")
    tokens, ms = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))

    def errors(line: _Line) -> tuple[float, float]:
        """Of the points that count and, where these say nothing, of all; 0 of points on a line."""
        rising = np.sort(np.abs(ms - line.at(tokens)))
        return round(float(rising[: math.ceil(COUNTED * len(ms))].sum()), 6), round(float(rising.sum()), 6)

    best = _line(tokens, ms, 0.0)
    splits = {len(lengths) * part // CORNERS for part in range(CORNERS)}
    bent = [
        _line(tokens[~flat], ms[~flat], float(np.median(ms[flat])))
        for split in sorted(splits)
        if 2 <= split <= len(lengths) - 2
        for flat in [tokens < lengths[split]]
    ]
    bent = [line for line in bent if line.slope > 0 and line.floor > line.intercept]
    counted, total = errors(best)
    if bent and errors(least := min(bent, key=errors)) < (EXPLAINED * counted, EXPLAINED * total):
        best = least
    if best.slope <= 0:
        raise TimingError(
            f"TTFT of {lengths[0]:,} to {lengths[-1]:,} uncached tokens: must rise with length, and changes by "
            f"{best.slope:.3g} ms a token; does the server do anything else, or does the machine?"
        )
    left = ms - best.at(tokens)
    r2 = 1 - float(left @ left) / float(np.square(ms - ms.mean()).sum())
    return Timing(best.slope, best.intercept, origin, r2, tuple(points), best.floor)


class _Line(NamedTuple):
    slope: float
    intercept: float
    floor: float

    def at(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(self.floor, self.intercept + self.slope * tokens)


def _line(tokens: NDArray[np.float64], ms: NDArray[np.float64], floor: float) -> _Line:
    from scipy.stats import siegelslopes

    found = siegelslopes(ms, tokens)
    return _Line(float(found.slope), float(found.intercept), floor)


class _File(msgspec.Struct):
    alpha: float
    beta: float
    origin: str | None = None
    r2: float | None = None
    points: list[Point] = []
    floor: float = 0.0


def read_timing(path: Path) -> Timing:
    """α and β from a file that :func:`write_timing` wrote, or ``{"alpha": ms a token, "beta": ms}``.

    Raises:
        TimingError: there is no such file, or it has another form.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise TimingError(f"--timing {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise TimingError(f"--timing {path}: not an object with alpha and beta in ms: {error}") from None
    origin = found.origin or f"from {path}"
    try:
        return Timing(found.alpha, found.beta, origin, found.r2, tuple(found.points), found.floor)
    except TimingError as error:
        raise TimingError(f"--timing {path}: {error}") from None


def write_timing(path: Path, timing: Timing, **measured_on: Any) -> None:
    """Write α, β and their points as JSON, with the facts of the machine in ``measured_on``."""
    path.write_text(json.dumps({**asdict(timing), **measured_on}) + "\n")
