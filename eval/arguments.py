"""Arguments that several commands take: numbers within bounds, names, policies and page sizes.

A type raises ``ArgumentTypeError`` as "VALUE: must be …"; :class:`~eval.command.Parser` puts the flag before it.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from radix_tlru.config import REMOVED_WEIGHTS

THRESHOLD_HELP = "ξ, uncached tokens that still meet the TTFT objective"
NEXT_PROMPT_HELP = "Q̂, tokens that a next prompt is expected to add"

_FACTORS = {"k": 1_000, "K": 1_000, "m": 1_000_000, "M": 1_000_000}


def tokens(text: str) -> int:
    """A number of tokens, 0 or more: 65536, 64k (64,000) or 2M (2,000,000)."""
    factor = _FACTORS.get(text[-1:], 1)
    try:
        # Not as a float: 16.1 thousand would be a little more than 16,100.
        value = Decimal(text[:-1]) * factor if factor > 1 else Decimal(int(text))
    except (ValueError, ArithmeticError):
        value = Decimal("NaN")
    if not value.is_finite() or not 0 <= value < 2**53 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of tokens, such as 65536, 64k or 2M")
    return int(value)


def shell_words(text: str) -> list[str]:
    """Flags as they are typed in a shell."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: must be flags as in a shell ({error})") from None


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``; no upper bound by default. Also ``64k`` and ``2M``."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text) if text[:1] == "-" else tokens(text)
        except (ValueError, argparse.ArgumentTypeError):
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number, {allowed}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text}: must be {allowed}")
        return value

    return parse


def number(*, least: float | None = None, above: float | None = None, below: float | None = None,
           most: float | None = None) -> Callable[[str], float]:  # fmt: skip
    """A finite number within bounds: ``least`` and ``most`` are allowed, ``above`` and ``below`` are not."""
    bounds = (("{:g} or more", least), ("more than {:g}", above), ("less than {:g}", below), ("at most {:g}", most))
    allowed = " and ".join(text.format(bound) for text, bound in bounds if bound is not None) or "finite"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: must be a number, {allowed}") from None
        inside = (
            (least is None or value >= least)
            and (above is None or value > above)
            and (below is None or value < below)
            and (most is None or value <= most)
        )
        if not inside or not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text}: must be {allowed}")
        return value

    return parse


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """One of these names."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text}: must be one of {', '.join(names)}")
        return text

    return parse


def output_folder(text: str) -> Path:
    """A folder to write to, which is there or can be made: what is there of its path is no file."""
    if not text:  # a variable that is not set, and no name of the current folder
        raise argparse.ArgumentTypeError("'': must be the name of a folder")
    _check_folder(text, Path(text), "must be a folder")
    return Path(text)


def output_file(text: str) -> Path:
    """A file to write, in a folder that is there or can be made."""
    if not text or os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text or repr(text)}: must be the name of a file")
    _check_folder(text, Path(text).parent, "must be in a folder")
    return Path(text)


def _check_folder(text: str, path: Path, allowed: str) -> None:
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
    if there is not None and not os.path.isdir(there):
        raise argparse.ArgumentTypeError(f"{text}: {allowed}, and {there} is none")


def median_weight(text: str) -> float:
    """The weight w: a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        removed = f"; {text} was removed, as it did not pay" if text in REMOVED_WEIGHTS else ""
        raise argparse.ArgumentTypeError(f"{text}: must be a number from 0 to 1{removed}")
    return value


def weight_text(weight: float | None) -> str:
    """The weight w as it is given and shown; ``own``: that of a server that is told none."""
    return "own" if weight is None else f"{weight:g}"


# ---- arguments that several commands take ----


class Several(argparse.Action):
    """A flag with one or more values, which may be given again: ``--policy a b`` is ``--policy a --policy b``.

    The first use replaces the default, each later one adds to it.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **{"nargs": "+", **settings})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        known = getattr(namespace, self.dest)
        before = [] if known is None or known is self.default else known
        setattr(namespace, self.dest, [*before, *values])


def add_policies(parser: argparse.ArgumentParser, names: Sequence[str], default: Sequence[str], text: str = "") -> None:
    """``--policy``, one or more of ``names``."""
    parser.add_argument(
        "--policy",
        action=Several,
        type=one_of(names),
        default=list(default),
        metavar="P",
        help=text or f"any of {', '.join(names)} (default: {' '.join(default)})",
    )


def add_page_size(parser: argparse.ArgumentParser, default: int = 1, *, several: bool = False) -> None:
    """``--page-size`` in tokens; :func:`check_page_sizes` holds it against the capacity."""
    settings: dict[str, Any] = {"action": Several, "default": [default]} if several else {"default": default}
    parser.add_argument("--page-size", type=whole(1), metavar="N", help=f"tokens (default: {default})", **settings)


def add_median_weights(parser: argparse.ArgumentParser, text: str) -> None:
    """``--median-weight``, one or more; None: the policy's own."""
    parser.add_argument("--median-weight", action=Several, type=median_weight, default=[None], metavar="W", help=text)


def add_first_measured(parser: argparse.ArgumentParser) -> None:
    """``--from``: where in a trace the figures begin."""
    parser.add_argument(
        "--from",
        type=number(least=0, below=1),
        default=0.5,
        dest="share",
        metavar="SHARE",
        help="of the requests that are served before the figures begin (default: %(default)s)",
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """``--capacity``, ``--threshold`` and ``--page-size`` of one cache, in tokens; see :func:`check_page_sizes`."""
    add = parser.add_argument
    add("--capacity", type=tokens, required=True, metavar="TOKENS", help="of the pool, e.g. 1M")
    add("--threshold", type=tokens, required=True, metavar="TOKENS", help=THRESHOLD_HELP)
    add_page_size(parser)


def check_page_sizes(page_sizes: Sequence[int], capacities: Sequence[int]) -> None:
    """Refuse a cache that holds less than one page.

    Raises:
        ValueError: names the smallest capacity and the largest page.
    """
    if (least := min(capacities)) < (most := max(page_sizes)):
        raise ValueError(f"--capacity {least}: must be at least one page, --page-size {most}")
