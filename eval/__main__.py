"""Entry point: `python -m eval <command>`."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from eval.arguments import one_of
from eval.command import CommandModule, Parser, execute


class Command(NamedTuple):
    """A command, which is imported only when it is asked for."""

    module: str  # below eval; has add_arguments(parser) and run(args) -> int
    text: str  # one line of help


COMMANDS = {
    "demo": Command("live.demo", "stock lru, stock tlru and radix-tlru on real servers, side by side"),
    "replay": Command("live.replay.command", "conversations against live servers: the TTFT that a client measures"),
    "gpu": Command("live.gpu", "the live comparison on an NVIDIA GPU, in one command and one folder"),
    "trace": Command("traces.command", "what is in a trace: lengths, waits, and what an infinite cache would hit"),
    "simulate": Command("simulate.command", "what each policy does to the tail, on any trace, without a GPU"),
    "through-sglang": Command("simulate.through_sglang", "the same cells through the real SGLang cache"),
    "compare": Command("compare.command", "every policy against stock lru on many traces: one verdict for each"),
    "report": Command("render.report.command", "a page and figures of a folder of cells"),
    "tune": Command("studies.tune", "which policy, ξ and w to serve a trace with, what to expect, the flags to paste"),
    "later": Command("studies.later", "policies on the later part of a trace, after they learned on the earlier part"),
    "queue": Command("studies.queue", "the time to first token where requests wait for each other, policy by policy"),
    "queue-check": Command("studies.queue_check", "the model of `queue --itl` against what clients measured"),
    "rates": Command("studies.rates", "ET-LRU with learned rates beside ET-LRU with the true ones"),
    "hostile": Command("studies.hostile", "what one hostile client can do to another tenant"),
    "ahead": Command("studies.ahead", "what it would gain, and cost, to prefill what the next prompt will surely have"),
    "load-back": Command("studies.load_back", "what it would gain, and cost, to load back what returns soon"),
    "warm": Command(
        "studies.warm", "what prompts that are kept warm gain for who begins with them, and cost the others"
    ),
    "restart": Command("studies.restart", "what a restarted server gains by beginning with what it had learned"),
    "features": Command("studies.features", "what each thing that is known of a turn is worth to the learned rates"),
    "constants": Command("studies.constants.command", "every tuned constant, and what half and twice its value do"),
    "paper": Command("studies.paper.command", "the paper's experiments in its own layout: Tables 1–6, Figures 3–7"),
    "picture": Command("render.picture", "the picture of the README, from what the real caches keep"),
    "dashboard": Command("live.dashboard", "the panels of the Grafana dashboard as a picture, of a server under load"),
    "bench": Command("cost.command", "what an eviction and a request cost, as ratios to stock of one run"),
    "soak": Command("soak.command", "a cache that is audited after each of a million random steps"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status of the process.

    Raises:
        SystemExit: after ``--help``.
    """
    parser = Parser(
        prog="python -m eval",
        description="What radix-tlru is worth and costs. Run from a checkout: no package of radix-tlru installs it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:15} {command.text}" for name, command in COMMANDS.items()),
    )
    parser.add_argument(
        "command", nargs="?", type=one_of(tuple(COMMANDS)), metavar="command", help="one of these below"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command; see `<command> --help`")
    try:
        chosen = parser.parse_args(argv)
        if chosen.command is None:
            raise ValueError(f"command: must be one of {', '.join(COMMANDS)}")
    except ValueError as error:
        print(f"eval: {error}", file=sys.stderr)
        return 2
    command = COMMANDS[chosen.command]
    try:
        module: CommandModule = importlib.import_module(f"eval.{command.module}")
        return execute(chosen.command, module, chosen.arguments, command.text)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("eval", "radix_tlru"):
            raise
        where = "`make setup` installs it into .venv: then .venv/bin/python -m eval"
        print(f"eval {chosen.command}: needs {error.name}: {where}", file=sys.stderr)
        return 2


def _terminate(signum: int, _frame: FrameType | None) -> None:
    # An exception, so that context managers stop their servers; the default action would leave them running.
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
