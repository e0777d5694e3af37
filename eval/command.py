"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from decimal import Decimal
from typing import Any

from eval.traces import SOURCES, Arrivals
from eval.traces.parameters import parse
from radix_tlru.config import LOAD, MedianWeight

__all__ = [
    "TraceOptions",
    "add_text_arguments",
    "add_trace_arguments",
    "median_weight",
    "tokens",
    "trace_options",
    "weight_text",
]

TraceOptions = tuple[tuple[str, Any], ...]
"""Keywords of ``open_trace``; a tuple, so that a process can remember what it read."""

_FACTORS = {"k": 1_000, "K": 1_000, "m": 1_000_000, "M": 1_000_000}


def tokens(text: str) -> int:
    """A number of tokens: 65536, 64k (64,000) or 2M (2,000,000)."""
    factor = _FACTORS.get(text[-1:], 1)
    try:
        # Not as a float: 16.1 thousand would be a little more than 16,100.
        value = Decimal(text[:-1]) * factor if factor > 1 else Decimal(int(text))
    except (ValueError, ArithmeticError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, such as 65536, 64k or 2M") from None
    if not value.is_finite() or not 0 <= value < 2**53 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of tokens, 0 or more")
    return int(value)


def median_weight(text: str) -> MedianWeight:
    """The weight w: a number, or ``load``. Config says which numbers are allowed."""
    if text == LOAD:
        return LOAD
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 to 1 nor {LOAD}") from None


def weight_text(weight: MedianWeight) -> str:
    """w as it is given and shown."""
    return weight if isinstance(weight, str) else f"{weight:g}"


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say how texts are counted."""
    parser.add_argument("--tokenizer", metavar="NAME", help="Hugging Face tokenizer (name or path) that counts texts")
    parser.add_argument(
        "--characters-per-token",
        type=float,
        default=4.0,
        metavar="RATIO",
        help="of texts that no tokenizer counts (default: %(default)s)",
    )


def add_trace_arguments(
    parser: argparse.ArgumentParser, default: str | None = None, *, positional: str | None = None
) -> None:
    """The flags that name a trace and how to read it; required unless there is a default.

    Args:
        positional: the trace may also be given without the flag, under this name in ``--help``.
    """
    if positional is not None:
        parser.add_argument("positional_trace", nargs="?", metavar=positional, help="the same as --trace")
    required = default is None and positional is None
    parser.add_argument("--trace", required=required, default=default, metavar="PATH_OR_NAME", help=SOURCES)
    parser.add_argument("--format", default=None, help="of the file, if it is not to be detected")
    add_text_arguments(parser)
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens of a block (default: as the file says, or its lengths tell)"
    )
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="the first N requests only")
    parser.add_argument("--skip-bad", action="store_true", help="count bad records instead of stopping at the first")
    parser.add_argument(
        "--arrivals",
        default="",
        metavar="KEY=VALUE,…",
        help="when sessions start, where the trace does not tell: birth_rate (a second), turn_rate, seed, …",
    )


def trace_options(args: argparse.Namespace) -> TraceOptions:
    """What ``open_trace`` is to be called with.

    Raises:
        TraceError: a value of ``--arrivals`` is unknown or out of range.
    """
    positional = getattr(args, "positional_trace", None)
    return (
        ("source", positional if args.trace is None else args.trace),
        ("format", args.format),
        ("limit", args.limit),
        ("skip_bad", args.skip_bad),
        ("block_size", args.block_size),
        ("tokenizer", args.tokenizer),
        ("characters_per_token", args.characters_per_token),
        ("arrivals", parse(Arrivals, args.arrivals)),
    )
