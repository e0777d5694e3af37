"""The flags that name a trace and say how to read it, the same for all commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from eval.arguments import number, one_of, whole
from eval.traces import FORMATS, SOURCES, Arrivals, Trace, TraceError, generator_of, open_trace
from eval.traces.mixes import mix_of
from eval.traces.parameters import parse
from eval.traces.variants import variant_of


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace as the flags name it. Hashable, so that a process can remember what it read."""

    source: str
    format: str | None = None  # None: detected
    limit: int | None = None  # requests, the first to arrive
    skip_bad: bool = False
    block_size: int | None = None  # tokens; None: as the file says, or as its lengths tell
    tokenizer: str | None = None
    characters_per_token: float = 4.0
    arrivals: Arrivals = field(default_factory=Arrivals)
    # Other traffic made of it; no flag names one.
    variant: str | None = None
    mix: tuple[str, TraceSource] | None = None  # how, of MIXES, and with which trace as the second one

    @property
    def is_made(self) -> bool:
        """Whether it is other traffic, made of what was named."""
        return self.variant is not None or self.mix is not None

    @classmethod
    def several(cls, names: Sequence[str], args: argparse.Namespace) -> list[TraceSource]:
        """The traces of those names, read as the flags of :func:`add_reading_arguments` say.

        Raises:
            ValueError: flags are given that only traces that are read have a use for, and all of these are generated.
        """
        generated = [name for name in names if generator_of(name) is not None]
        if generated == list(names):
            for name in generated:
                _check_generated(name, args)
        flags = {name: getattr(args, name) for name in _OPTIONS}
        return [cls(name, limit=args.limit) if name in generated else cls(name, **flags) for name in names]

    def open(self, *, texts: bool = False) -> Trace:
        """Read or generate it, and say on standard error what is missing in it: once, for who runs a command.

        Args:
            texts: keep the messages of each turn.

        Raises:
            TraceError: it cannot be read.
        """
        trace = self.read(texts=texts)
        say_missing(trace.missing())
        return trace

    def read(self, *, texts: bool = False) -> Trace:
        """Read or generate it, and say nothing, as in one of many processes.

        Args:
            texts: keep the messages of each turn.

        Raises:
            TraceError: it cannot be read.
        """
        trace = open_trace(self.source, **{name: getattr(self, name) for name in _OPTIONS}, texts=texts)
        if self.variant is not None:
            trace = variant_of(trace, self.variant)
        if self.mix is not None:
            how, second = self.mix
            trace = mix_of(trace, second.read(texts=texts), how)
        return trace


_OPTIONS = tuple(each.name for each in fields(TraceSource) if each.name not in ("source", "variant", "mix"))
"""Fields of a source that flags of the same names give, and that say how it is read."""


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
    """The flags that name a trace and say how to read it. ``--trace`` is required unless there is a default.

    Args:
        positional: traces may also be given without the flag, under this name in ``--help`` (:func:`trace_sources`).
    """
    if positional is not None:
        parser.add_argument("traces", nargs="*", metavar=positional, help="the same as --trace; any number")
    required = default is None and positional is None
    parser.add_argument("--trace", required=required, default=default, metavar="PATH_OR_NAME", help=SOURCES)
    add_reading_arguments(parser)


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say how a trace is read, whichever flag names it."""
    add = parser.add_argument
    add("--format", type=one_of(FORMATS), metavar="F", help=f"if not detected: {', '.join(FORMATS)}")
    add_text_arguments(parser)
    add(
        "--block-size",
        type=whole(1),
        metavar="N",
        help="tokens of a block (default: as the file says, or as its lengths tell)",
    )
    add("--limit", type=whole(1), metavar="N", help="the first N requests only")
    add(
        "--arrivals",
        type=_arrivals,
        default=Arrivals(),
        metavar="KEY=VALUE,…",
        help="when conversations start, if the trace does not tell: birth_rate (1/s), turn_rate (1/s), seed, …",
    )


def trace_source(args: argparse.Namespace) -> TraceSource:
    """The trace that :func:`add_trace_arguments` had the user name with its flag."""
    return TraceSource.several([args.trace], args)[0]


def trace_sources(args: argparse.Namespace) -> list[TraceSource]:
    """The traces that :func:`add_trace_arguments` let the user name, without the flag or with it.

    Raises:
        ValueError: both ways, or not at all.
    """
    if args.traces and args.trace is not None:
        raise ValueError(f"--trace {args.trace}: {' '.join(args.traces)} is given as well; give one of them")
    if not args.traces and args.trace is None:
        raise ValueError("--trace: is required")
    return TraceSource.several(args.traces or [args.trace], args)


def say_missing(lines: Iterable[str]) -> None:
    """What is missing in a trace (``Trace.missing``), on standard error."""
    for line in lines:
        print(line, file=sys.stderr)


def say_too_long(trace: str, longest: int, capacities: Iterable[int]) -> None:
    """Say on standard error which capacities (tokens) hold less than the longest prompt of a trace, if any does."""
    small = ", ".join(f"{each:,}" for each in sorted(set(capacities)) if each < longest)
    if small:
        fits = f"prompts have up to {longest:,} tokens, more than fit in {small}"
        print(f"{trace}: {fits}: a server refuses such prompts, and here their beginnings are cached", file=sys.stderr)


def _check_generated(name: str, args: argparse.Namespace) -> None:
    """Refuse the flags that say how a trace is read."""
    given = {
        f"--format {args.format}": args.format not in (None, name.partition(":")[0]),
        f"--tokenizer {args.tokenizer}": args.tokenizer is not None,
        f"--block-size {args.block_size}": args.block_size is not None,
        "--arrivals": args.arrivals != Arrivals(),
    }
    for flag, is_given in given.items():
        if is_given:
            raise ValueError(f"{flag}: {name} is generated, not read; leave it out")


def _arrivals(text: str) -> Arrivals:
    try:
        return parse(Arrivals, text)
    except TraceError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("arrivals: ")) from None
