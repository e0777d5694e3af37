"""Bands of ages: the time since a conversation's last turn, in s. Half-octaves, and spans of them."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["AGES", "BANDS", "MIDDLES", "SPANS", "SPAN_OF"]

_FIRST_S = 4.0  # s, at which the second band begins: only programs return earlier
_HALF_OCTAVES = 28  # bands of half an octave from there, up to 13 hours

BANDS: tuple[float, ...] = (0.0, *(_FIRST_S * 2.0 ** (half / 2) for half in range(_HALF_OCTAVES)))
"""Ages at which bands begin, s; the last one never ends. Within a band a hazard is constant."""

SPANS: tuple[float, ...] = (0.0, 22.0, 128.0, 1_024.0, 8_000.0)
"""Ages at which spans of bands begin, s: a program, a quick answer, reading, a pause, another day. What is known of a
turn may count differently in each."""

SPAN_OF = np.searchsorted(np.array(SPANS), np.array(BANDS), side="right") - 1
"""The span of each band."""

MIDDLES = np.append(2.0, np.sqrt(np.array(BANDS[1:]) * np.array([*BANDS[2:], 2.0 * BANDS[-1]])))
"""An age in the middle of each band, s."""


AGES: tuple[float, ...] = (
    0.0,
    *(_FIRST_S * 2.0 ** (quarter / 4) for quarter in range(2 * _HALF_OCTAVES)),
    math.inf,
)
"""Ages at which the price of a leaf is looked at again, s: quarter-octaves, half a band each."""
