"""How a command is run, and how it fails.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> int``. :func:`execute` parses its arguments and
runs it. A wrong argument or an unusable input is a ``ValueError`` or an ``OSError``: one line on standard error and
exit status 2, before anything is written. A run that was possible and then failed is a :class:`RunError`: status 1.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from radix_tlru import ConfigError


class RunError(RuntimeError):
    """A run failed: a server died, a request was refused, nothing was measured. The message says which and why."""


class CommandModule(Protocol):
    """A command: a module of the harness."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit status.

        Raises:
            ValueError, OSError: it cannot be done as asked; one line that names the flag, the value, what is allowed.
            RunError: it could be done, and failed.
        """


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ValueErrors in the words of all others, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError."""
        # argparse: "argument --jobs: 0: must be 1 or more"; here: "--jobs 0: must be 1 or more".
        match = re.fullmatch(r"argument (\S+): (.*)", message, flags=re.DOTALL)
        if match:
            flag, text = match.groups()
            message = f"{flag} {text}" if ": must be " in text else f"{flag}: {text}"
        raise ValueError(message)


def execute(name: str, command: CommandModule, words: Sequence[str], description: str = "") -> int:
    """Run a command with the words of a command line; returns its exit status.

    Args:
        name: as it is typed, for messages and for the record of how results were made (``args.command_line``).
        description: for ``--help``.

    Raises:
        SystemExit: after ``--help``.
    """
    parser = Parser(prog=f"python -m eval {name}", description=description)
    command.add_arguments(parser)
    args = argparse.Namespace(command_line=shlex.join(["python", "-m", "eval", name, *words]))
    try:
        return command.run(parser.parse_args(words, args))
    except RunError as error:
        print(f"eval {name}: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        text = _in_flags_of(args, str(error)) if isinstance(error, ConfigError) else _text(error)
        if getattr(error, "skippable", False) and hasattr(args, "skip_bad"):
            text += " (--skip-bad leaves such records out)"
        print(f"eval {name}: {' '.join(text.split())}", file=sys.stderr)
        return 2


def _text(error: Exception) -> str:
    """What went wrong; of a file, after its name."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _in_flags_of(args: argparse.Namespace, message: str) -> str:
    """A message of ``Config`` in the flags of the command: ``--threshold`` for ``--tlru-threshold``."""

    def flag(match: re.Match[str]) -> str:
        own = match[1].replace("-", "_")
        return f"--{match[1]}" if hasattr(args, own) else match[0]

    return re.sub(r"--tlru-([a-z-]+)", flag, message)
