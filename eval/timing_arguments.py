"""The flags that say how long uncached tokens take, the same for all commands that turn a TTFT objective into ξ."""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.arguments import number
from eval.simulate.timing import ASSUMED, Timing, TimingError, read_timing


def add_timing_arguments(parser: argparse.ArgumentParser) -> None:
    """``--alpha`` and ``--beta``, or ``--timing`` in place of both."""
    add = parser.add_argument
    default = f"default: {ASSUMED.alpha:.3g}, assumed; `eval paper --calibrate` measures it"
    add("--alpha", type=number(above=0), metavar="MS", help=f"ms a prefilled token ({default})")
    add("--beta", type=number(least=0), metavar="MS", help="ms of a request without any (default: 0)")
    add("--timing", type=Path, metavar="FILE", help="α and β from a file, such as gpu's timing.json")


def timing_of(args: argparse.Namespace) -> Timing:
    """α and β from the flags or the file; assumed where none is given.

    Raises:
        ValueError: they contradict each other, or cannot be used.
    """
    if args.timing is not None:
        if args.alpha is not None or args.beta is not None:
            raise ValueError(f"--timing {args.timing}: not together with --alpha or --beta; give one of them")
        return read_timing(args.timing)
    if args.alpha is None:
        if args.beta is not None:
            raise ValueError(f"--beta {args.beta:g}: needs --alpha")
        return ASSUMED
    return Timing(args.alpha, args.beta or 0.0, "given")


def threshold_of(flag: str, objective_ms: float, timing: Timing) -> int:
    """ξ (tokens): the most that a request may prefill within a TTFT objective.

    Args:
        flag: that gave the objective, for errors.

    Raises:
        ValueError: the objective cannot be met, or leaves no token to prefill.
    """
    try:
        threshold = timing.tokens(objective_ms)
    except TimingError as error:
        raise ValueError(f"{flag} {error}") from None
    if not threshold:
        raise ValueError(f"{flag} {objective_ms:g}: leaves no token to prefill: {timing}")
    return threshold
