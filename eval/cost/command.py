"""The flags of `python -m eval bench`, and its sections one after the other."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol

from eval.arguments import Several, add_page_size, check_page_sizes, one_of, tokens, whole
from eval.traces.parameters import LONGEST

SECTIONS = (
    *("simulator", "served", "decision", "eviction", "decode", "trim", "memory", "longest"),
    *("scheduler", "latency"),  # of live servers
)
"""A module each. The simulator is the first: its peak memory is that of the process."""

_SIZES = ("capacity", "threshold", "page_size")

USED: dict[str, tuple[str, ...]] = {
    "simulator": ("trace", *_SIZES, "turns"),
    "served": ("trace", *_SIZES),
    "decision": ("trace", *_SIZES),
    "eviction": ("leaves", "samples"),
    "decode": (),
    "trim": ("trace",),
    "memory": (),
    "longest": ("leaves",),
    "scheduler": ("chunks", "repeats", "aging", "pool"),
    "latency": ("repeats", "requests", "answers", "pool"),
}
"""Flags that each section reads, as attributes."""

LEAVES = (1_000, 10_000, 40_000, 200_000, 1_000_000)


class Section(Protocol):
    """A part of the bench: a module."""

    def run(self, args: argparse.Namespace) -> None:
        """Measure and print.

        Raises:
            ValueError: an argument is out of range.
            RunError: a live server failed.
        """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the bench."""
    add = parser.add_argument
    add("--only", type=one_of(SECTIONS), metavar="SECTION", help=f"one of {', '.join(SECTIONS)} instead of all")
    add("--leaves", action=Several, type=whole(1), default=list(LEAVES), metavar="N", help="for eviction and longest")
    add("--samples", type=whole(1), default=200, metavar="N", help="evictions timed in each arm (default: %(default)s)")
    add("--trace", default="synthetic:conversations=3000", help="served by every cache (default: %(default)s)")
    words = "of the caches that serve the trace (default: %(default)s)"
    add("--capacity", type=tokens, default="2M", metavar="TOKENS", help=words)
    add("--threshold", type=tokens, default="8192", metavar="TOKENS", help=f"ξ {words}")
    add_page_size(parser, default=512)
    add(
        "--chunks",
        action=Several,
        nargs="*",
        type=whole(1),
        default=[1, 64],
        metavar="TOKENS",
        help="trim chunks of live servers (1 64)",
    )
    add("--repeats", type=whole(1), default=6, metavar="N", help="of live servers (default: %(default)s)")
    add("--aging", type=whole(0), default=6, metavar="N", help="loads before live servers are measured (%(default)s)")
    add("--pool", type=tokens, default="65536", metavar="TOKENS", help="of live servers (default: %(default)s)")
    asked = "of servers asked in turn"
    add(
        "--requests",
        type=whole(4),
        default=400,
        metavar="N",
        help=f"{asked}, in each repeat; the first quarter is in no figure (default: %(default)s)",
    )
    add(
        "--answers", type=_lengths, default="4/12", metavar="LEAST/MOST", help=f"{asked}, tokens (default: %(default)s)"
    )
    add("--turns", type=whole(10), default=1_000_000, metavar="N", help="of the long trace (default: %(default)s)")


def _lengths(text: str) -> str:
    """The least and the greatest length of an answer, as a generated trace takes them."""
    least, _, most = (part if part.isdecimal() else "0" for part in text.partition("/"))
    if text.count("/") != 1 or not 1 <= int(least) <= int(most) <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: must be LEAST/MOST, whole numbers of tokens from 1 to {LONGEST}")
    return text


def run(args: argparse.Namespace) -> int:
    """Run the sections and print their tables.

    Raises:
        ValueError, OSError: an argument is out of range, or the trace cannot be read.
        RunError: a live server failed.
    """
    check_page_sizes([args.page_size], [args.capacity])
    if args.only is not None:
        _check_flags(args)
    for name in SECTIONS if args.only is None else (args.only,):
        section: Section = importlib.import_module(f"eval.cost.{name}")
        section.run(args)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that the one section has no use for.

    Raises:
        ValueError: names the first of them.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = vars(parser.parse_args([]))
    for name, value in vars(args).items():
        if name in usual and name not in ("only", *USED[args.only]) and value != usual[name]:
            raise ValueError(f"--{name.replace('_', '-')}: has no effect on --only {args.only}; leave it out")
