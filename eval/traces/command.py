"""`python -m eval trace SOURCE`: what is in a trace, before anything is simulated on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.traces import FORMATS, READERS, SOURCES, Trace, open_trace
from eval.traces.request import Request, TraceError
from eval.traces.synthetic import Arrivals, parse

__all__ = ["Facts", "facts"]

_PERCENTILES = (5, 25, 50, 75, 90, 95, 99)
TABLE_WIDTH = 100  # columns, where the output is not a terminal


@dataclass(frozen=True, slots=True)
class Facts:
    """Figures of a trace that no policy changes."""

    requests: int
    conversations: int  # first turns: requests that continue no earlier one
    duration_s: float
    prompt_tokens: Sequence[int]  # by request, history included
    new_tokens: Sequence[int]  # by request: of its prompt, what an infinite cache would not hold
    output_tokens: Sequence[int]
    waits_s: Sequence[float]  # between a turn and the one it continues

    @property
    def hit_ratio(self) -> float:
        """Share of all prompt tokens that an infinite cache would hold."""
        return 1 - sum(self.new_tokens) / max(sum(self.prompt_tokens), 1)


def facts(requests: Sequence[Request]) -> Facts:
    """Count a trace.

    A request continues the last one of its conversation. In a block trace, which names none, it continues the deepest
    earlier request whose blocks it begins with all of; one block alone does not tell, many prompts begin with it.
    """
    seen: set[int] = set()
    last: dict[str | int, float] = {}  # arrival of the last turn, by conversation or by the last block of its prompt
    waits: list[float] = []
    new: list[int] = []
    for request in requests:
        ids, ends = request.prompt.ids, request.prompt.ends
        known = len(ids)
        while known and ids[known - 1] not in seen:
            known -= 1
        new.append(request.prompt_tokens - (ends[known - 1] if known else 0))
        seen.update(request.context.ids[known:])
        keys: Sequence[str | int] = ids[known - 1 : 0 : -1] if request.conversation is None else (request.conversation,)
        before = next((last[key] for key in keys if key in last), None)
        if before is not None:
            waits.append(request.arrival_s - before)
        if request.conversation is not None:
            last[request.conversation] = request.arrival_s
        elif len(ids) > 1:
            last[ids[-1]] = request.arrival_s
    return Facts(
        requests=len(requests),
        conversations=len(requests) - len(waits),
        duration_s=requests[-1].arrival_s - requests[0].arrival_s,
        prompt_tokens=[request.prompt_tokens for request in requests],
        new_tokens=new,
        output_tokens=[request.output_tokens for request in requests],
        waits_s=waits,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every way to read a trace has a flag."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=SOURCES,
    )
    parser.add_argument("--format", choices=FORMATS, help="of the file, if it is not to be detected")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N requests only")
    parser.add_argument("--skip-bad", action="store_true", help="count bad records instead of stopping at the first")
    parser.add_argument("--block-size", type=int, default=512, metavar="TOKENS", help="of a block trace (%(default)s)")
    parser.add_argument("--tokenizer", metavar="NAME", help="that counts tokens; by default texts are measured")
    parser.add_argument("--characters-per-token", type=float, default=4.0, metavar="R", help="(default: %(default)s)")
    parser.add_argument("--arrivals", default="", metavar="KEY=VALUE,…", help="when turns come, for ShareGPT")


def run(args: argparse.Namespace) -> int:
    """Print the table; 2 if the trace cannot be read."""
    try:
        trace = open_trace(
            args.source,
            format=args.format,
            limit=args.limit,
            skip_bad=args.skip_bad,
            block_size=args.block_size,
            tokenizer=args.tokenizer,
            characters_per_token=args.characters_per_token,
            arrivals=parse(Arrivals, args.arrivals),
        )
    except TraceError as error:
        print(f"eval trace: {error}", file=sys.stderr)
        return 2
    console = Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_WIDTH)
    console.print(facts_table(trace))
    if trace.format in READERS and trace.format != "mooncake":
        console.print(
            f"Tokens counted by {args.tokenizer or f'length: {args.characters_per_token:g} characters each'}."
        )
    if trace.skipped:
        console.print(f"{trace.skipped} records skipped, the first for these reasons:")
        console.print("\n".join(f"  {reason}" for reason in trace.skip_reasons), markup=False)
    return 0


def facts_table(trace: Trace) -> Table:
    """Totals in the title, distributions in the rows."""
    known = facts(trace.requests)
    table = Table(
        title=Text(
            f"{trace.name} ({trace.format}): {known.requests:,} requests in {known.conversations:,} conversations "
            f"over {known.duration_s / 60:,.1f} minutes; an infinite cache would hold {known.hit_ratio:.1%} of all "
            "prompt tokens"
        ),
        title_justify="left",
    )
    table.add_column("a request", no_wrap=True)
    for column in ("mean", *(f"p{each}" for each in _PERCENTILES)):
        table.add_column(column, justify="right")
    rows: dict[str, Sequence[float]] = {
        "prompt (tokens)": known.prompt_tokens,
        "new in it (tokens)": known.new_tokens,
        "answer (tokens)": known.output_tokens,
        "wait since last turn (s)": known.waits_s,
    }
    for name, values in rows.items():
        figures = [np.mean(values), *np.percentile(values, _PERCENTILES)] if len(values) else []
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    return table
