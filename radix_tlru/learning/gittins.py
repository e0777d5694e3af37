"""What a conversation is worth by its hazards: the Gittins index of waiting for it.

The hazard of the moment misleads. Chat users read before they answer, so a fresh conversation has a low hazard that
will soon be high. The index looks ahead, over the time for which it pays best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from radix_tlru.learning.age_bands import WIDTHS

__all__ = ["BandRun", "gittins", "merge_bands"]

_ALIKE = 1.1  # how much the index of two bands may differ that are taken for one
_LONGEST_RUN = 4  # bands in a row that are taken for one


def gittins(hazards: Sequence[float]) -> list[float]:
    """The index of each age band, 1 / s: the best that a conversation promises for the time that its space is held.

    ``sup over h of P(returns within h) / E[time held until it returns or h has passed]``, with h at the ends of bands,
    for a conversation that has just come into the band.

    Args:
        hazards: of each band, 1 / s.

    >>> from radix_tlru.learning.age_bands import BANDS
    >>> gittins([0.01] * len(BANDS))[3] == gittins([0.01] * len(BANDS))[10]  # a constant hazard is its own index
    True
    """
    alive, held = [1.0], [0.0]  # at the start of each band: P(silent so far) and E[time held until then]
    for hazard, width in zip(hazards[:-1], WIDTHS[:-1], strict=True):
        survival = math.exp(-hazard * width)
        held.append(held[-1] + alive[-1] * (1.0 - survival) / hazard)
        alive.append(alive[-1] * survival)
    index = []
    for band, hazard in enumerate(hazards):
        best = hazard
        silent, spent = alive[band], held[band]
        for later in range(band + 1, len(hazards)):
            if held[later] > spent:
                best = max(best, (silent - alive[later]) / (held[later] - spent))
        index.append(best)
    return index


class BandRun(NamedTuple):
    """Bands in a row that are taken for one, as their index is nearly the same."""

    first: int
    end: int  # the band after the last
    falls: int  # the first band behind them whose index is lower than that of the first


def merge_bands(index: Sequence[float]) -> list[BandRun]:
    """Of each band, the run that it is in: up to four bands whose index is, to a tenth, that of their first.

    A leaf need not be moved between bands where it is worth what it was. Runs are short, because what is known of a
    conversation changes while it is in them.

    >>> from radix_tlru.learning.age_bands import BANDS
    >>> [tuple(run) for run in merge_bands([0.02] * 5 + [0.01] * (len(BANDS) - 5))[:6]]
    [(0, 4, 5), (0, 4, 5), (0, 4, 5), (0, 4, 5), (4, 5, 5), (5, 9, 22)]
    """
    found: list[BandRun] = []
    while len(found) < len(index):
        first, end = len(found), len(found) + 1
        least, most = index[first] / _ALIKE, index[first] * _ALIKE
        while end < min(first + _LONGEST_RUN, len(index)) and least <= index[end] <= most:
            end += 1
        falls = next((band for band in range(end, len(index)) if index[band] < index[first]), len(index))
        found += [BandRun(first, end, falls)] * (end - first)
    return found
