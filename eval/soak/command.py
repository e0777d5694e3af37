"""The flags of `python -m eval soak`."""

from __future__ import annotations

import argparse

from eval.arguments import one_of, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the soak."""
    parser.add_argument("--steps", type=whole(0), default=1_000_000, help="audited steps (default: 1M)")
    parser.add_argument("--requests", type=whole(0), default=0, help="requests through one real cache (default: none)")
    cores = ("rust", "python")
    parser.add_argument("--core", type=one_of(cores), default="rust", help="that serves them (default: rust)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the steps (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Print a line for each tenth.

    Raises:
        ValueError: there are too few steps for tenths, or Python makes no assertions.
        AssertionError: a step lost something; the message says what.
    """
    for flag, value in (("--steps", args.steps), ("--requests", args.requests)):
        if 0 < value < 10:
            raise ValueError(f"{flag} {value}: must be 10 or more, or 0 for none")
    if args.steps and not __debug__:
        raise ValueError("python -O: leaves out what steps are audited by; run it without -O and PYTHONOPTIMIZE")
    if not args.steps and not args.requests:
        raise ValueError("--steps 0: leaves nothing to do without --requests")
    if not args.requests and args.core != "rust":
        raise ValueError(f"--core {args.core}: needs --requests; steps are taken on both")
    if not args.steps and args.seed:
        raise ValueError(f"--seed {args.seed}: is of the steps, and --steps is 0; leave it out")
    from eval.soak.steps import serve, soak  # SGLang and torch: not for --help

    if args.steps:
        soak(args.steps, args.seed)
    if args.requests:
        serve(args.requests, args.core)
    return 0
