"""Generated traces whose parameters are drawn: does a verdict hold on loads that nobody chose?

==============================  ========================================================================
a parameter                     is drawn
==============================  ========================================================================
a number                        log-uniform, from half to twice what it is by default
a spread (``_sigma``)           from 0.7 to 1.4 times that: it is one of logarithms
a share, a probability          by its odds, from a quarter to four times those
==============================  ========================================================================

What a name gives stays as it is, such as how many sessions start in which time; so do switches, hours and samples.
"""

from __future__ import annotations

import random
from typing import Any

from eval.traces.trace import generator_of

_KEPT = ("seed", "_hour")
"""Ends of names of parameters that are never drawn."""


def drawn(name: str, seed: int) -> str:
    """The name of a trace of the same kind with other parameters, which the seed tells; its requests have that seed.

    Args:
        name: of a generated trace with a seed, which it does not give.
    """
    generator = generator_of(name)
    assert generator is not None, f"{name} is not generated"
    head, _, text = name.partition(":")
    given = {pair.partition("=")[0] for pair in text.split(",")}
    rng = random.Random(f"{name} {seed}")
    pairs = [text] if text else []
    for key, value in generator.defaults().items():
        if key not in given and not key.endswith(_KEPT) and isinstance(value, int | float) and value not in (0, 1):
            pairs.append(f"{key}={_drawn_value(key, value, rng)}")
    return f"{head}:{','.join([*pairs, f'seed={seed}'])}"


def _drawn_value(key: str, value: float, rng: random.Random) -> Any:
    factor = 2.0 ** rng.uniform(-1.0, 1.0)
    if key.endswith(("_share", "_probability")):
        odds = factor**2 * value / (1.0 - value)
        return round(odds / (1.0 + odds), 3)
    if key.endswith("_sigma"):
        factor **= 0.5
    return max(round(value * factor), 1) if isinstance(value, int) else float(f"{value * factor:.3g}")
