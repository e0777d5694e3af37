"""`python -m eval trace TRACE …`: what is in a trace and how it was understood, before anything is simulated on it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from eval.terminal import show, table
from eval.trace_arguments import add_trace_arguments, trace_sources
from eval.traces.facts import Facts, facts
from eval.traces.generators import GENERATORS
from eval.traces.parameters import written
from eval.traces.readers import READERS
from eval.traces.trace import Trace, check_name
from eval.traces.working_set import working_set

_PERCENTILES = (5, 25, 50, 75, 90, 95, 99)

_MOST_NAMES = 5  # models and kinds of requests that are named

_STOPS = {
    "tool_calls": "with a call of a tool (tool_use)",
    "stop": "at the end of a turn (end_turn)",
    "length": "at the limit of tokens (max_tokens)",
    "abort": "early: aborted",
}
_INPUTS = {"tool": "the result of a tool", "user": "the text of a user"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, as in every command; it may also stand alone, with others."""
    add_trace_arguments(parser, positional="TRACE")
    parser.add_argument("--list", action="store_true", help="all formats, and all generated traces with parameters")


def run(args: argparse.Namespace) -> int:
    """Print what is in each trace, or with ``--list`` what can be named.

    Raises:
        ValueError: no trace is named, or it cannot be read.
    """
    if args.list:
        print("\n".join(_listed()))
        return 0
    sources = trace_sources(args)
    for source in sources:
        check_name(source.source)
    for number, source in enumerate(sources):
        if number:
            print()
        _describe(source.read())
    return 0


def _describe(trace: Trace) -> None:
    known = facts(trace.requests)
    print("\n".join(understood(trace, known)))
    show(facts_table(known))
    if trace.skipped:
        print(f"{trace.skipped:,} records skipped, the first for these reasons:")
        print("\n".join(f"  {reason}" for reason in trace.skip_reasons))


def understood(trace: Trace, known: Facts) -> list[str]:
    """What was understood, in lines: the whole, whose it is, how answers end, what is real."""
    lines = [
        f"{trace.name} ({trace.format}): {known.requests:,} requests in {known.conversations:,} conversations "
        f"over {known.duration_s / 60:,.1f} minutes",
        f"reusable: an infinite cache would hold {known.hit_ratio:.1%} of all prompt tokens, "
        f"{known.distinct_tokens:,} tokens in the end",
        f"working set: at most {working_set(trace.requests):,} tokens at one time are in a later prompt",
    ]
    if known.sessions is not None and known.sessions != known.conversations:
        lines.append(f"sessions: {known.sessions:,}")
    if known.subagents:
        lines.append(f"subagents: {known.subagents:,}, with {known.subagent_requests:,} requests")
    lines += [
        f"answers end: {_shares(known.stops, _STOPS)}",
        f"inputs end with: {_shares(known.inputs, _INPUTS)}",
    ]
    for title, names in (("models", known.models), ("kinds of requests", known.categories)):
        if names:
            lines.append(f"{title}: {_shares(names, {})}")
    return [*lines, *(f"{note.kind}: {note.text}" for note in trace.notes)]


def facts_table(known: Facts) -> Table:
    """Distributions in the rows."""
    result = table("", ["a request", "mean", *(f"p{each}" for each in _PERCENTILES)])
    rows: dict[str, Sequence[float]] = {
        "prompt (tokens)": known.prompt_tokens,
        "new in it (tokens)": known.new_tokens,
        "answer (tokens)": known.output_tokens,
        "wait since last turn (s)": known.waits_s,
        "  until a tool's result": known.tool_waits_s,
        "  until a user's text": known.user_waits_s,
        "wait since last answer (s)": known.idle_s,
    }
    for name, values in rows.items():
        if len(values) or name in ("wait since last turn (s)",):
            figures = [np.mean(values), *np.percentile(values, _PERCENTILES)] if len(values) else []
            result.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    return result


def _shares(counted: Counter[str], words: dict[str, str]) -> str:
    """``85.2% with a call of a tool, 9.4% not told``, the most frequent first."""
    total = sum(counted.values())
    common = counted.most_common(_MOST_NAMES)
    shown = [f"{times / total:.1%} {words.get(name, name)}" for name, times in common]
    more = len(counted) - len(common)
    return ", ".join([*shown, *([f"{more} more"] if more else [])])


def _listed() -> list[str]:
    """All that can be named, with a line each."""
    lines = ["Formats of files and folders, told from their first records (also .gz, .zst, .bz2, .xz, Parquet, Arrow):"]
    lines += [f"  {reader.name:17} {reader.about}" for reader in READERS.values()]
    lines.append("Generated, as NAME or NAME:KEY=VALUE,…:")
    for generator in GENERATORS.values():
        lines.append(f"  {generator.name:17} {generator.about}")
        lines += [f"  {'':19} {name} ({written(value)})" for name, value in generator.defaults().items()]
    return lines
