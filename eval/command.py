"""What all commands share: how one is run, how it fails, and the arguments that several of them take.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> int``. :func:`execute` parses its arguments and
runs it. What cannot be done as asked ends in one line on standard error and exit status 2, before anything is written.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn, Protocol

from eval.errors import RunError
from eval.traces import FORMATS, SOURCES, Trace, open_trace
from radix_tlru import ConfigError
from radix_tlru.config import LOAD, MedianWeight

__all__ = [
    "CommandModule",
    "Parser",
    "Several",
    "TraceSource",
    "add_page_size",
    "add_policies",
    "add_renamed",
    "add_text_arguments",
    "add_trace_arguments",
    "check_page_sizes",
    "execute",
    "median_weight",
    "number",
    "one_of",
    "tokens",
    "trace_source",
    "weight_text",
    "whole",
]


# ---- running a command ----


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
        text = _in_flags_of(args, str(error)) if isinstance(error, ConfigError) else str(error)
        print(f"eval {name}: {' '.join(text.split())}", file=sys.stderr)
        return 2


def _in_flags_of(args: argparse.Namespace, message: str) -> str:
    """A message of ``Config`` in the flags of the command: ``--threshold`` for ``--tlru-threshold``."""

    def flag(match: re.Match[str]) -> str:
        own = match[1].replace("-", "_")
        return f"--{match[1]}" if hasattr(args, own) else match[0]

    return re.sub(r"--tlru-([a-z-]+)", flag, message)


# ---- types of arguments: each raises ArgumentTypeError as "VALUE: must be …" ----

_FACTORS = {"k": 1_000, "K": 1_000, "m": 1_000_000, "M": 1_000_000}


def tokens(text: str) -> int:
    """A number of tokens, 0 or more: 65536, 64k (64,000) or 2M (2,000,000)."""
    factor = _FACTORS.get(text[-1:], 1)
    try:
        # Not as a float: 16.1 thousand would be a little more than 16,100.
        value = Decimal(text[:-1]) * factor if factor > 1 else Decimal(int(text))
    except (ValueError, ArithmeticError):
        value = Decimal("NaN")
    if not value.is_finite() or not 0 <= value < 2**53 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of tokens, such as 65536, 64k or 2M")
    return int(value)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``; no upper bound by default. Also ``64k`` and ``2M``."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text) if text[:1] == "-" else tokens(text)
        except (ValueError, argparse.ArgumentTypeError):
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number, {allowed}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text}: must be {allowed}")
        return value

    return parse


def number(*, least: float | None = None, above: float | None = None, below: float | None = None,
           most: float | None = None) -> Callable[[str], float]:  # fmt: skip
    """A finite number within bounds: ``least`` and ``most`` are allowed, ``above`` and ``below`` are not."""
    bounds = (("{:g} or more", least), ("more than {:g}", above), ("less than {:g}", below), ("at most {:g}", most))
    allowed = " and ".join(text.format(bound) for text, bound in bounds if bound is not None) or "a number"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: must be a number, {allowed}") from None
        inside = (
            (least is None or value >= least)
            and (above is None or value > above)
            and (below is None or value < below)
            and (most is None or value <= most)
        )
        if not inside or value in (float("inf"), float("-inf")):
            raise argparse.ArgumentTypeError(f"{text}: must be {allowed}")
        return value

    return parse


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """One of these names."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text}: must be one of {', '.join(names)}")
        return text

    return parse


def median_weight(text: str) -> MedianWeight:
    """The weight w: a number from 0 to 1, or ``load``."""
    if text == LOAD:
        return LOAD
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        removed = "; auto was removed, as it did not pay" if text == "auto" else ""
        raise argparse.ArgumentTypeError(f"{text}: must be a number from 0 to 1, or {LOAD}{removed}")
    return value


def weight_text(weight: MedianWeight) -> str:
    """The weight w as it is given and shown."""
    return weight if isinstance(weight, str) else f"{weight:g}"


# ---- arguments that several commands take ----


class Several(argparse.Action):
    """A flag with one or more values, which may be given again: ``--policy a b`` is ``--policy a --policy b``.

    The first use replaces the default, each later one adds to it.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **{"nargs": "+", **settings})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        known = getattr(namespace, self.dest)
        before = [] if known is None or known is self.default else known
        setattr(namespace, self.dest, [*before, *values])


def add_policies(parser: argparse.ArgumentParser, names: Sequence[str], default: Sequence[str], text: str = "") -> None:
    """``--policy``, one or more of ``names``."""
    parser.add_argument(
        "--policy",
        action=Several,
        type=one_of(names),
        default=list(default),
        metavar="P",
        help=text or f"any of {', '.join(names)} (default: {' '.join(default)})",
    )


def add_page_size(parser: argparse.ArgumentParser, default: int = 1, *, several: bool = False) -> None:
    """``--page-size`` in tokens; :func:`check_page_sizes` holds it against the capacity."""
    settings: dict[str, Any] = {"action": Several, "default": [default]} if several else {"default": default}
    parser.add_argument("--page-size", type=whole(1), metavar="N", help=f"tokens (default: {default})", **settings)


def check_page_sizes(page_sizes: Sequence[int], capacities: Sequence[int], flag: str = "--capacity") -> None:
    """Refuse a cache that holds less than one page.

    Raises:
        ValueError: names ``flag``, the smallest capacity and the largest page.
    """
    if (least := min(capacities)) < (most := max(page_sizes)):
        raise ValueError(f"{flag} {least}: must be at least one page, --page-size {most}")


def add_renamed(parser: argparse.ArgumentParser, old: str, new: str, **settings: Any) -> None:
    """Keep the old spelling of a flag for a release: it sets what ``new`` sets, and says so on standard error."""

    class Renamed(argparse.Action):
        def __call__(
            self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
        ) -> None:
            print(f"{parser.prog.removeprefix('python -m ')}: {old} is now {new}", file=sys.stderr)
            setattr(namespace, self.dest, values)

    dest = new.lstrip("-").replace("-", "_")
    parser.add_argument(old, action=Renamed, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)


# ---- traces ----


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace as the flags name it. Hashable, so that a process can remember what it read."""

    source: str
    format: str | None = None
    limit: int | None = None  # requests, the first to arrive
    skip_bad: bool = False
    block_size: int = 512  # tokens
    tokenizer: str | None = None
    characters_per_token: float = 4.0

    def open(self, *, texts: bool = False) -> Trace:
        """Read or generate it.

        Args:
            texts: keep the messages of each turn.

        Raises:
            TraceError: it cannot be read.
        """
        return open_trace(
            self.source,
            format=self.format,
            limit=self.limit,
            skip_bad=self.skip_bad,
            block_size=self.block_size,
            tokenizer=self.tokenizer,
            characters_per_token=self.characters_per_token,
            texts=texts,
        )


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say how texts are counted, and what happens to bad records."""
    parser.add_argument("--tokenizer", metavar="NAME", help="Hugging Face tokenizer (name or path) that counts texts")
    parser.add_argument(
        "--characters-per-token",
        type=number(above=0),
        default=4.0,
        metavar="RATIO",
        help="of texts that no tokenizer counts (default: %(default)s)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="count bad records instead of stopping at the first")


def add_trace_arguments(
    parser: argparse.ArgumentParser, default: str | None = None, *, positional: str | None = None
) -> None:
    """The flags that name a trace and how to read it. ``--trace`` is required unless there is a default.

    Args:
        positional: the trace may also be given without the flag, under this name in ``--help``.
    """
    if positional is not None:
        parser.add_argument("positional_trace", nargs="?", metavar=positional, help="the same as --trace")
    required = default is None and positional is None
    parser.add_argument("--trace", required=required, default=default, metavar="PATH_OR_NAME", help=SOURCES)
    parser.add_argument("--format", type=one_of(FORMATS), metavar="F", help=f"if not detected: {', '.join(FORMATS)}")
    add_text_arguments(parser)
    parser.add_argument("--block-size", type=whole(1), default=512, metavar="N", help="tokens a block (default: 512)")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="the first N requests only")


def trace_source(args: argparse.Namespace) -> TraceSource:
    """The trace that :func:`add_trace_arguments` let the user name.

    Raises:
        ValueError: it was named twice, or not at all.
    """
    positional = getattr(args, "positional_trace", None)
    if positional is not None and args.trace is not None:
        raise ValueError(f"--trace {args.trace}: {positional} is given as well; give one of them")
    source = args.trace if positional is None else positional
    if source is None:
        raise ValueError("--trace: is required")
    return TraceSource(
        source,
        args.format,
        args.limit,
        args.skip_bad,
        args.block_size,
        args.tokenizer,
        args.characters_per_token,
    )
