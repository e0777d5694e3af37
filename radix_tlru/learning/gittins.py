"""What a conversation is worth by its hazards: the Gittins index of waiting for it.

The hazard of the moment misleads. Chat users read before they answer, so a fresh conversation has a low hazard that
will soon be high. The index looks ahead, over the time for which it pays best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.age_bands import BANDS

__all__ = ["by_age_steps", "gittins"]

_WIDTHS = np.diff(BANDS)[::-1]  # s, of all bands but the last, which never ends; from the last to the first


def gittins(hazards: NDArray[np.float64]) -> list[float]:
    """The index of each age band, 1 / s: the best that a conversation promises for the time that its space is held.

    ``sup over h of P(returns within h) / E[time held until it returns or h has passed]``, with h at the ends of bands.
    The conversation has just come into the band.

    Over a band a conversation returns with some probability and is held for some time. The ratio of the two is the
    hazard. Over several bands both add up. So the index is the greatest mean of hazards from here on, weighted by the
    time held. Merging bands from the last to the first computes it.

    Args:
        hazards: of each band, 1 / s, above 0.

    >>> round(gittins(np.full(len(BANDS), 0.01))[3], 9)  # a constant hazard is its own index
    0.01
    """
    index: list[float] = []
    blocks: list[tuple[float, float, float]] = []  # bands taken together, the nearest last
    # P(returns in the band), if it is reached; 1 - exp(-x) would be 0 where little is, and the band never merged.
    hits = [1.0, *(-np.expm1(-hazards[-2::-1] * _WIDTHS)).tolist()]
    for hazard, hit in zip(hazards[::-1].tolist(), hits, strict=True):
        stays, held = 1.0 - hit, hit / hazard
        while blocks and blocks[-1][0] * held > hit * blocks[-1][1]:  # what follows promises more
            next_hit, next_held, next_stays = blocks.pop()
            hit, held, stays = hit + stays * next_hit, held + stays * next_held, stays * next_stays
        blocks.append((hit, held, stays))
        index.append(hit / held if held > 0.0 else hazard)
    return index[::-1]


def by_age_steps(index: Sequence[float]) -> list[float]:
    """The index of each band, interpolated to ``age_bands.AGES`` in the logarithms of both."""
    steps = [index[0]]
    for band in range(1, len(index)):
        own, cubed = index[band], index[band] ** 3
        steps += [
            (cubed * index[band - 1]) ** 0.25,
            (cubed * index[band + 1]) ** 0.25 if band + 1 < len(index) else own,
        ]
    return steps
