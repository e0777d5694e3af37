"""The console script ``radix-tlru``.

``demo-model DIR`` writes a model to try, ``doctor`` says what is in place, ``top URL`` shows what a server evicts,
``explain URL RID`` says what one request lacked, ``state FILE`` says what one has learned, ``dashboard`` prints a
Grafana dashboard, ``warm URL FILE`` prefills prompts.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from radix_tlru import __version__
from radix_tlru.config import ConfigError
from radix_tlru.tools.alerts import rules
from radix_tlru.tools.demo_model import SHAPES, write_demo_model

__all__ = ["main"]


_DAY_S = 86_400
_INSTALL_TOP = "in a checkout, pip install '.[top]'"
_INSTALL_DASHBOARD = "in a checkout, pip install '.[dashboard]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    0, 1 (the doctor found a failure), 2 (it cannot be done), 130 (interrupted) or 141 (nobody reads what it has to say
    any more).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # an encoding without ξ gets an escape, which JSON and YAML have, too
        sys.stdout.reconfigure(errors="backslashreplace")
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if given.install is None:
            raise
        return _refuse(f"{given.command} needs {error.name}: {given.install}")
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes when it ends
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def _parser() -> argparse.ArgumentParser:
    """The parser. Of each command it sets ``run``, and ``install``: what to do where a module is missing."""
    parser = argparse.ArgumentParser(
        prog="radix-tlru",
        description="Tail-optimised eviction for SGLang.",
        epilog="The harness that measures it, `python -m eval`, is not installed: it is run from a checkout.",
    )
    parser.add_argument("--version", action="version", version=f"radix-tlru {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, install: str | None = None
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text)
        added.set_defaults(run=run, install=install)
        return added

    model = command("demo-model", _demo_model, "write a random-weight model that SGLang serves without a download")
    model.add_argument("directory", metavar="DIR", type=_path, help="missing, empty, or an earlier demo model")
    model.add_argument(
        "--shape",
        choices=SHAPES,
        default="tiny",
        help="tiny, for any machine, or llama-7b, for a GPU (default: %(default)s)",
    )
    command(
        "doctor",
        _doctor,
        "say what is installed, whether SGLang has the functions that the plugin needs, and what a server would accept",
    )
    top = command(
        "top",
        _top,
        "show, live, by which policy a server evicts, what that costs and saves, and what goes next",
        _INSTALL_TOP,
    )
    top.add_argument("url", metavar="URL", help="of a server started with --enable-metrics: http://127.0.0.1:30000")
    top.add_argument(
        "--interval", metavar="S", type=_seconds, default=2.0, help="from one look to the next (default: %(default)g)"
    )
    top.add_argument("--once", action="store_true", help="print one frame and end, as where there is no terminal")
    top.add_argument("--api-key", metavar="KEY", help="where /metrics is behind one: a proxy, --fastapi-root-path")
    why = command("explain", _explain, "say why a request had to prefill what it did: five lines", _INSTALL_TOP)
    why.add_argument("url", metavar="URL", help="of a server started with --tlru-explain: http://127.0.0.1:30000")
    why.add_argument("rid", metavar="RID", type=_rid, help="of the request, as its answer has it: meta_info.id, or id")
    why.add_argument(
        "--api-key", metavar="KEY", help="of the server, if it has one: --admin-api-key, or else --api-key"
    )
    grafana = command(
        "dashboard", _dashboard, "print a Grafana dashboard, as JSON, of what servers evict", _INSTALL_DASHBOARD
    )
    grafana.add_argument("--rules", action="store_true", help="print Prometheus' alerting rules instead, as YAML")
    state = command("state", _state, "say what is in a file of --tlru-state")
    state.add_argument("file", metavar="FILE", type=_path)
    warm = command("warm", _warm, "prefill prompts on a running server, and keep them warm", _INSTALL_TOP)
    warm.add_argument("url", metavar="URL", help="of the server: http://127.0.0.1:30000")
    warm.add_argument(
        "file", metavar="FILE", type=_path, help="JSONL, or a folder; the fields are in radix_tlru/sglang/README.md"
    )
    warm.add_argument(
        "--every", metavar="S", type=_seconds, help="again and again, so many seconds apart (default: once)"
    )
    warm.add_argument("--api-key", metavar="KEY", help="of the server, if it was started with one")
    return parser


def _refuse(reason: object) -> int:
    print(f"radix-tlru: error: {reason}", file=sys.stderr)
    return 2


def _path(text: str) -> Path:
    if not text:  # of a variable that is not set; as a path it is the current folder
        raise argparse.ArgumentTypeError("'': must be the name of a file or folder")
    return Path(text)


def _rid(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'': must be the id of a request, as its answer has it")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= _DAY_S:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0, a day ({_DAY_S}) at most")
    return seconds


# ---- commands: each imports what it needs, as the others do without ----


def _demo_model(given: argparse.Namespace) -> int:
    try:
        write_demo_model(given.directory, SHAPES[given.shape])
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.strerror else error)
    except ImportError as error:
        return _refuse(error)
    model = shlex.quote(str(given.directory))
    serve = f"python -m sglang.launch_server --model-path {model} --load-format dummy"
    if given.shape == "tiny":
        print(f"demo model in {given.directory}; serve it with --load-format dummy, and without a GPU:")
        print(f"  SGLANG_PLATFORM=torch_cpu {serve} --device cpu --dtype float32")
    else:
        print(
            f"demo model of the shape {given.shape} in {given.directory}; serve it with --load-format dummy, on a GPU:"
        )
        print(f"  {serve} --attention-backend flashinfer")
    return 0


def _state(given: argparse.Namespace) -> int:
    from radix_tlru.tools.state_text import state_lines

    try:
        for line in state_lines(given.file):
            print(line)
    except ConfigError as error:
        return _refuse(error)
    return 0


def _top(given: argparse.Namespace) -> int:
    from radix_tlru.tools.top import watch

    return watch(given.url, given.interval, once=given.once, api_key=given.api_key)


def _explain(given: argparse.Namespace) -> int:
    from radix_tlru.tools.explain import explain

    return explain(given.url, given.rid, given.api_key)


def _warm(given: argparse.Namespace) -> int:
    from radix_tlru.tools.warm import warm

    return warm(given.url, given.file, every_s=given.every, api_key=given.api_key)


def _dashboard(given: argparse.Namespace) -> int:
    if given.rules:
        print(rules(), end="")
        return 0
    from radix_tlru.tools.dashboard import dashboard

    print(dashboard(), end="")
    return 0


def _doctor(_given: argparse.Namespace) -> int:
    from radix_tlru.sglang.doctor.report import examine

    healthy = True
    for section in examine():
        print(section, end="\n\n", flush=True)
        healthy = healthy and section.healthy
    print("everything needed is in place" if healthy else "this installation would not serve: see FAIL above")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
