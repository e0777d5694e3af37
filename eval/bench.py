"""`python -m eval bench`: what things cost. Ratios within a run can be compared; times of two runs cannot."""

from __future__ import annotations

import argparse

from eval.table import console

SECTIONS = ("simulator", "eviction", "decode", "memory")

LEAVES = (1_000, 10_000, 40_000, 200_000, 1_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the bench."""
    parser.add_argument("--only", choices=SECTIONS, help="one section instead of all")
    parser.add_argument("--leaves", type=int, nargs="+", default=LEAVES, metavar="N")
    parser.add_argument("--samples", type=int, default=200, help="evictions timed in each arm (default: %(default)s)")
    parser.add_argument("--trace", default="synthetic:conversations=3000", help="replayed by every cache")
    parser.add_argument("--turns", type=int, default=1_000_000, help="of the long trace (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the sections and print their tables."""
    # The simulator first: its peak memory is that of the process.
    if args.only in (None, "simulator"):
        from eval import bench_simulator

        bench_simulator.run(args.trace, args.turns, console())
    if args.only in (None, "eviction"):
        from eval import bench_eviction

        bench_eviction.run(args.leaves, args.samples, console())
    if args.only in (None, "decode"):
        from eval import bench_eviction

        bench_eviction.run_decode(console())
    if args.only in (None, "memory"):
        from eval import bench_memory

        bench_memory.run(console())
    return 0
