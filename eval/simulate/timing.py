"""From uncached tokens to milliseconds and back: TTFT = β + α·uncached (paper, equation 2, where β is 0)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

__all__ = ["ASSUMED", "Point", "Timing", "TimingError", "fit", "read", "write"]


class TimingError(ValueError):
    """α and β that cannot be used; one line that names the flag or the field, the value and what is allowed."""


class Point(NamedTuple):
    """One measured request."""

    uncached: int  # tokens
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Timing:
    """TTFT of a request as a line over its uncached tokens.

    Raises:
        TimingError: α is not above 0, or one of them is not a number.
    """

    alpha: float  # ms a token
    beta: float  # ms
    origin: str  # how they were found, for the reader of the results
    r2: float | None = None  # share of the variance of the points that the line explains
    points: tuple[Point, ...] = ()  # the measurements that the line was fitted to

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise TimingError(f"alpha {self.alpha:g}: must be a number of ms a token above 0")
        if not math.isfinite(self.beta):
            raise TimingError(f"beta {self.beta:g}: must be a number of ms")

    def ms(self, tokens: float) -> float:
        """TTFT in ms of a request with ``tokens`` uncached tokens."""
        return self.beta + self.alpha * tokens

    def tokens(self, ms: float) -> int:
        """ξ: the most uncached tokens whose TTFT is at most ``ms``.

        Raises:
            TimingError: no request can be that fast, or ``ms`` is no number of ms.
        """
        # Rounded first: 200 ms at 200 / 2,048 ms a token are 2,048 tokens, whatever the last bit says.
        tokens = round((ms - self.beta) / self.alpha, 6)
        if not tokens < 2**53:
            raise TimingError(f"{ms:g} ms: must be a number of ms, and less than 2^53 tokens take")
        if tokens < 0:
            raise TimingError(f"{ms:g} ms: cannot be met, a request without uncached tokens takes {self.beta:g} ms")
        return math.floor(tokens)


ASSUMED = Timing(
    200 / 2048, 0.0, "assumed, not measured: 2,048 uncached tokens are 200 ms, about a 7B model on an A100; the paper "
    "plots a line for Vicuna-7B on an A100 (Figure 3) but does not state α"
)  # fmt: skip
"""What holds where nothing was measured or given."""


def fit(points: Sequence[Point], origin: str) -> Timing:
    """The line through measured points, by Siegel's repeated medians: up to half of the points may be outliers.

    Raises:
        TimingError: fewer than two lengths, or TTFT does not rise with length.
    """
    from scipy.stats import siegelslopes

    if len({point.uncached for point in points}) < 2:
        raise TimingError(f"{len(points)} points: a line needs at least two lengths")
    tokens, ms = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    line = siegelslopes(ms, tokens)
    left = ms - (line.intercept + line.slope * tokens)
    r2 = 1 - float(left @ left) / float(np.square(ms - ms.mean()).sum() or 1.0)
    return Timing(float(line.slope), float(line.intercept), origin, r2, tuple(points))


class _File(msgspec.Struct):
    alpha: float
    beta: float
    origin: str | None = None
    r2: float | None = None
    points: list[Point] = []


def read(path: Path) -> Timing:
    """α and β from a file that ``write`` wrote, or ``{"alpha": ms a token, "beta": ms}``.

    Raises:
        TimingError: there is no such file, or it has another form.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise TimingError(f"--timing {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise TimingError(f"--timing {path}: not an object with alpha and beta in ms: {error}") from None
    return Timing(found.alpha, found.beta, found.origin or f"from {path}", found.r2, tuple(found.points))


def write(path: Path, timing: Timing, **measured_on: Any) -> None:
    """Write α, β and their points as JSON, with the facts of the machine in ``measured_on``."""
    path.write_text(json.dumps({**asdict(timing), **measured_on}) + "\n")
