"""Entry point: `python -m eval <command>`."""

from __future__ import annotations

import argparse
import importlib
import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType

# Name -> its module below eval, and one line of help. The module is imported when its command is asked for, so that
# `--help` is instant. It has `add_arguments(parser)` and `run(args) -> int`.
COMMANDS = {
    "demo": ("live.demo", "stock lru, stock tlru and ours on real servers, side by side"),
    "replay": ("live.replay", "conversations against live servers, side by side: the TTFT that a client measures"),
    "gpu": ("live.gpu", "the live comparison on an NVIDIA GPU, in one command and one folder"),
    "trace": ("traces.command", "what is in a trace: lengths, waits, and what an infinite cache would hit"),
    "simulate": ("simulate.command", "what each policy would do to the tail, on any trace, without a GPU"),
    "queue": ("studies.queue", "the time to first token where requests wait for each other, policy by policy"),
    "later": ("studies.later", "policies on the later part of a trace, when what can be learned was learned before"),
    "unseen": (
        "studies.unseen",
        "what policies promise, on traces of many kinds, with seeds that nobody looked at",
    ),
    "rates": ("studies.rates", "ET-LRU with learned rates beside ET-LRU with the true ones, on the paper's model"),
    "hostile": ("studies.hostile", "what one hostile client can do to another tenant, under stock eviction and ours"),
    "through-sglang": ("simulate.through_sglang", "the same cells through the real SGLang cache"),
    "tune": ("studies.tune", "which policy, ξ and w to serve a trace with, what to expect, and the flags to paste"),
    "paper": ("studies.paper", "the paper's experiments in its own layout: Tables 1–6, Figures 3–7"),
    "report": ("render.report", "a page and figures of a folder of cells"),
    "picture": ("render.picture", "the picture of the README, from what the real caches keep"),
    "soak": ("soak", "a cache that is audited after each of a million steps, and requests that must not get dearer"),
    "bench": ("cost", "what an eviction and a simulated request cost, as ratios of one run"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:14} {text}" for name, (_, text) in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command; see `<command> --help`")
    chosen = parser.parse_args(argv)

    path, text = COMMANDS[chosen.command]
    module = importlib.import_module(f"eval.{path}")
    if hasattr(module, "main"):
        return int(module.main(chosen.arguments) or 0)
    command = argparse.ArgumentParser(prog=f"python -m eval {chosen.command}", description=text)
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
