"""`python -m eval demo`: `replay` with everything chosen, so that two people can compare their tables.

The same calls of agents on three real servers, stock lru, stock tlru and etlru, on two cores and without a GPU. Behind
twelve templates most runs are single calls, and some go on for many. etlru is told nothing but ξ. It has to learn who
comes back, and is lru until it has seen that this is better, which takes some 250 of the 520 calls.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from eval.arguments import output_folder, whole
from eval.command import execute
from eval.live import warm_start
from eval.live.replay import command as replay
from eval.live.server import Server

OUTPUT = Path(".out/demo")

CALLS = (
    "agents:runs=235,arrival_span_s=35,templates=12,template_median=120,first_prompt_median=120,next_prompt_median=40,"
    "answer_median=2,single_probability=0.85,continue_probability=0.85,wait_median_s=2,wait_sigma=0.5"
)

FLAGS = {
    "--trace": CALLS,
    "--speed": "40",  # so that hardly a call waits for the clock of the trace
    "--loop": "ordered",  # so uncached tokens hardly vary from run to run; TTFT depends on the machine and its load
    "--users": "1",  # on two cores requests at once would share batches, and TTFT would depend on which
    "--pool": "8192",
    "--page-size": "16",
    "--threshold": "320",
    "--next-prompt-estimate": "48",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two flags; everything else is fixed."""
    parser.add_argument("--seed", type=whole(0), default=0, help="of the calls (default: %(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=1, metavar="N", help="of every arm (default: %(default)s)")
    parser.add_argument("--cold-start", action="store_true", help="start each server as a user does, a minute later")
    parser.add_argument("--out", type=output_folder, help=f"default: a new folder in {OUTPUT}")


def run(args: argparse.Namespace) -> int:
    """Run the demo and print its table; returns 1 if a server did not start or a request failed."""
    flags = {**FLAGS, "--repeats": str(args.repeats), "--out": str(args.out or _new_folder())}
    flags["--trace"] += f",seed={args.seed}"
    if not args.cold_start:
        warm_start.preload()
        Server.start_process = staticmethod(warm_start.start_process)
    words = ["--together", "--in-turn", *(word for pair in flags.items() for word in pair)]
    print("python -m eval replay " + shlex.join(words))
    return execute("replay", replay, words)


def _new_folder() -> Path:
    number = 1 + max((int(path.name) for path in OUTPUT.glob("[0-9]*") if path.name.isdigit()), default=0)
    return OUTPUT / str(number)
