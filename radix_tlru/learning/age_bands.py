"""Bands of ages: the time since a conversation's last turn, in s, in steps that widen."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

__all__ = ["BANDS", "WIDTHS", "band_of"]

# Doubling while nobody has read the answer yet, then two to a doubling.
_STARTS = (0.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 45.0, 64.0, 90.0, 128.0, 180.0, 256.0, 360.0, 512.0, 720.0)
BANDS = (*_STARTS, 1024.0, 1440.0, 2048.0, 4096.0, 8192.0, 16384.0)
"""Ages at which bands begin, s; the last one never ends."""

WIDTHS = (*(end - start for start, end in pairwise(BANDS)), math.inf)
"""Of the bands, s."""


def band_of(age_s: float) -> int:
    """The band of an age (s); of a negative one, the first."""
    return max(bisect_right(BANDS, age_s) - 1, 0)
