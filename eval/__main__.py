"""Entry point: `python -m eval <command>`."""

from __future__ import annotations

import argparse
import importlib
import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType

# Name -> one line of help. The module eval.<name> is imported only when its command is asked for, so that `--help` is
# instant. It has `add_arguments(parser)` and `run(args) -> int`, or parses for itself in `main(argv) -> int | None`.
COMMANDS = {
    "demo": "stock lru, stock tlru and ours on real servers, side by side",
    "replay": "conversations against live servers, side by side: the TTFT that a client measures",
    "gpu": "the live comparison on an NVIDIA GPU, in one command and one folder",
    "trace": "what is in a trace: lengths, waits, and what an infinite cache would hit",
    "simulate": "what each policy would do to the tail, on any trace, without a GPU",
    "queue": "the time to first token where requests wait for each other, policy by policy",
    "target": "a threshold that follows a percentile, beside pinned ones",
    "later": "policies on the later part of a trace, when what can be learned was learned before",
    "unseen": "what policies promise, on synthetic traces of many kinds, with seeds that nobody looked at",
    "rates": "ET-LRU with learned rates beside ET-LRU with the true ones, on the paper's model",
    "hostile": "what one hostile client can do to another tenant, under stock eviction and ours",
    "through-sglang": "the same cells through the real SGLang cache",
    "tune": "which policy, ξ and w to serve a trace with, what to expect, and the flags to paste",
    "paper": "the paper's experiments in its own layout: Tables 1–6, Figures 3–7",
    "report": "a page and figures of a folder of cells",
    "picture": "the picture of the README, from what the real caches keep",
    "soak": "a cache that is audited after each of a million steps, and requests that must not get dearer",
    "bench": "what an eviction and a simulated request cost, as ratios of one run",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:14} {text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command; see `<command> --help`")
    chosen = parser.parse_args(argv)

    module = importlib.import_module(f"eval.{chosen.command.replace('-', '_')}")
    if hasattr(module, "main"):
        return int(module.main(chosen.arguments) or 0)
    command = argparse.ArgumentParser(prog=f"python -m eval {chosen.command}", description=COMMANDS[chosen.command])
    module.add_arguments(command)
    given = command.parse_args(chosen.arguments)
    given.command_line = shlex.join(["python", "-m", "eval", chosen.command, *chosen.arguments])  # for the results
    return int(module.run(given))


def _terminate(signum: int, _frame: FrameType | None) -> None:
    # An exception, so that context managers stop their servers; the default action would leave them running.
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
