"""The console script ``radix-tlru``.

``demo-model DIR`` writes a model to try, ``doctor`` says what is in place, ``top URL`` shows what a server evicts,
``explain URL RID`` says what one request lacked, ``state FILE`` says what one has learned, ``dashboard`` prints a
Grafana dashboard, ``warm URL FILE`` prefills prompts.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from radix_tlru import __version__
from radix_tlru.config import ConfigError
from radix_tlru.tools.alerts import rules
from radix_tlru.tools.demo_model import SHAPES, write_demo_model

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    0, 1 (the doctor found a failure), 2 (it cannot be done) or 141 (nobody reads what it has to say any more).
    """
    parser = argparse.ArgumentParser(
        prog="radix-tlru",
        description="Tail-optimised eviction for SGLang.",
        epilog="The harness that measures it, `python -m eval`, is not installed: it is run from a checkout.",
    )
    parser.add_argument("--version", action="version", version=f"radix-tlru {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("demo-model", help="write a random-weight model that SGLang serves without a download")
    model.add_argument("directory", metavar="DIR", type=Path, help="missing, empty, or an earlier demo model")
    model.add_argument(
        "--shape",
        choices=SHAPES,
        default="tiny",
        help="tiny, for any machine, or llama-7b, for a GPU (default: %(default)s)",
    )
    commands.add_parser(
        "doctor", help="say what is installed, which seams of SGLang fit and what a server would accept"
    )
    top = commands.add_parser(
        "top", help="show, live, by which policy a server evicts, what that costs and saves, and what goes next"
    )
    top.add_argument("url", metavar="URL", help="of a server started with --enable-metrics: http://127.0.0.1:30000")
    top.add_argument(
        "--interval", metavar="S", type=_seconds, default=2.0, help="from one look to the next (default: %(default)g)"
    )
    top.add_argument("--once", action="store_true", help="print one frame and end, as where there is no terminal")
    why = commands.add_parser("explain", help="say why a request had to prefill what it did: five lines")
    why.add_argument("url", metavar="URL", help="of a server started with --tlru-explain: http://127.0.0.1:30000")
    why.add_argument("rid", metavar="RID", help="of the request, as its answer has it: meta_info.id, or id")
    why.add_argument(
        "--api-key", metavar="KEY", help="of the server, if it has one: --admin-api-key, or else --api-key"
    )
    grafana = commands.add_parser("dashboard", help="print a Grafana dashboard, as JSON, of what servers evict")
    grafana.add_argument("--rules", action="store_true", help="print Prometheus' alerting rules instead, as YAML")
    state = commands.add_parser("state", help="say what is in a file of --tlru-state")
    state.add_argument("file", metavar="FILE", type=Path)
    warm = commands.add_parser("warm", help="prefill prompts on a running server, and keep them warm")
    warm.add_argument("url", metavar="URL", help="of the server: http://127.0.0.1:30000")
    warm.add_argument(
        "file", metavar="FILE", type=Path, help="JSONL, or a folder; the fields are in radix_tlru/sglang/README.md"
    )
    warm.add_argument(
        "--every", metavar="S", type=_seconds, help="again and again, so many seconds apart (default: once)"
    )
    warm.add_argument("--api-key", metavar="KEY", help="of the server, if it was started with one")
    given = parser.parse_args(arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes when it ends
        status = 128 + signal.SIGPIPE
    return status


def _run(given: argparse.Namespace) -> int:
    if given.command == "demo-model":
        return _demo_model(given.directory, given.shape)
    if given.command == "dashboard":
        return _dashboard(given.rules)
    if given.command == "state":
        return _state(given.file)
    if given.command == "explain":
        return _explain(given.url, given.rid, given.api_key)
    if given.command == "warm":
        return _warm(given.url, given.file, given.every, given.api_key)
    return _top(given.url, given.interval, given.once) if given.command == "top" else _doctor()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return seconds


def _demo_model(directory: Path, shape: str) -> int:
    try:
        write_demo_model(directory, SHAPES[shape])
    except (OSError, ImportError) as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    serve = f"python -m sglang.launch_server --model-path {directory} --load-format dummy"
    if shape == "tiny":
        print(f"demo model in {directory}; serve it with --load-format dummy, and without a GPU:")
        print(f"  SGLANG_PLATFORM=torch_cpu {serve} --device cpu --dtype float32")
    else:
        print(f"demo model of the shape {shape} in {directory}; serve it with --load-format dummy, on a GPU:")
        print(f"  {serve} --attention-backend flashinfer")
    return 0


def _state(file: Path) -> int:
    from radix_tlru.tools.state_text import state_lines  # needs NumPy, which other commands do without

    try:
        for line in state_lines(file):
            print(line)
    except ConfigError as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    return 0


def _top(url: str, interval_s: float, once: bool) -> int:
    try:
        from radix_tlru.tools.top import watch
    except ModuleNotFoundError as error:
        print(f"radix-tlru: error: top needs {error.name}: in a checkout, pip install '.[top]'", file=sys.stderr)
        return 2
    return watch(url, interval_s, once=once)


def _explain(url: str, rid: str, api_key: str | None) -> int:
    try:
        from radix_tlru.tools.explain import explain
    except ModuleNotFoundError as error:
        print(f"radix-tlru: error: explain needs {error.name}: in a checkout, pip install '.[top]'", file=sys.stderr)
        return 2
    return explain(url, rid, api_key)


def _warm(url: str, file: Path, every_s: float | None, api_key: str | None) -> int:
    try:
        from radix_tlru.tools.warm import warm
    except ModuleNotFoundError as error:
        print(f"radix-tlru: error: warm needs {error.name}: in a checkout, pip install '.[top]'", file=sys.stderr)
        return 2
    return warm(url, file, every_s=every_s, api_key=api_key)


def _dashboard(as_rules: bool) -> int:
    if as_rules:
        print(rules(), end="")
        return 0
    try:
        from radix_tlru.tools.dashboard import dashboard
    except ModuleNotFoundError as error:
        print(
            f"radix-tlru: error: dashboard needs {error.name}: in a checkout, pip install '.[dashboard]'",
            file=sys.stderr,
        )
        return 2
    print(dashboard(), end="")
    return 0


def _doctor() -> int:
    from radix_tlru.sglang.doctor.report import examine

    healthy = True
    for section in examine():
        print(section, end="\n\n", flush=True)
        healthy = healthy and section.healthy
    print("everything needed is in place" if healthy else "this installation would not serve: see FAIL above")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
