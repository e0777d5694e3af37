"""Flags of the bench, and its sections one after the other."""

from __future__ import annotations

import argparse
import importlib
import sys

from eval.command import tokens
from eval.cost.simulator import Setting
from eval.live.replay.play import ReplayError
from eval.live.server import ServerError
from eval.render.table import console

SECTIONS = ("simulator", "served", "decision", "eviction", "decode", "trim", "memory", "scheduler")
"""A module each. The simulator is the first: its peak memory is that of the process."""

LEAVES = (1_000, 10_000, 40_000, 200_000, 1_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the bench."""
    parser.add_argument("--only", choices=SECTIONS, help="one section instead of all")
    parser.add_argument("--leaves", type=int, nargs="+", default=LEAVES, metavar="N")
    parser.add_argument("--samples", type=int, default=200, help="evictions timed in each arm (default: %(default)s)")
    parser.add_argument("--trace", default="synthetic:conversations=3000", help="replayed by every cache")
    for flag, default in (("--capacity", "2M"), ("--page-size", "512"), ("--threshold", "8192")):
        words = "of the caches that replay the trace, tokens (default: %(default)s)"
        parser.add_argument(flag, type=tokens, default=default, metavar="TOKENS", help=words)
    parser.add_argument(
        "--chunks", type=int, nargs="*", default=[1, 64], metavar="TOKENS", help="trim chunks of live servers"
    )
    parser.add_argument("--repeats", type=int, default=6, metavar="N", help="of live servers (default: %(default)s)")
    parser.add_argument(
        "--aging", type=int, default=6, metavar="N", help="loads before live servers are measured (%(default)s)"
    )
    parser.add_argument("--pool", type=tokens, default="65536", metavar="TOKENS", help="of live servers (%(default)s)")
    parser.add_argument("--turns", type=int, default=1_000_000, help="of the long trace (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the sections and print their tables."""
    try:
        _run(args)
    except (ServerError, ReplayError, ValueError) as error:  # a trace that cannot be read is a ValueError
        print(f"eval bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


def _run(args: argparse.Namespace) -> None:
    setting = Setting(args.capacity, args.page_size, args.threshold)
    for flag, value, least in (
        *(("--leaves", min(args.leaves), 1), ("--samples", args.samples, 1)),
        ("--turns", args.turns, 10),  # a line for each tenth
        ("--page-size", args.page_size, 1),
        ("--capacity", args.capacity, args.page_size),
    ):
        if value < least:
            raise ValueError(f"{flag} {value}: must be {least} or more")
    given = {
        "simulator": (args.trace, setting, args.turns),
        "eviction": (args.leaves, args.samples),
        "scheduler": (args.chunks, args.repeats, args.pool, args.aging),
        "trim": (args.trace,),
        **dict.fromkeys(("served", "decision"), (args.trace, setting)),
    }
    for section in SECTIONS if args.only is None else (args.only,):
        importlib.import_module(f"eval.cost.{section}").run(*given.get(section, ()), console())
