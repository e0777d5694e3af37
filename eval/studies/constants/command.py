"""The flags of `python -m eval constants`, the list of constants, and the table of changes."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from eval.arguments import Several, add_page_size, check_page_sizes, number, one_of, output_folder, tokens, whole
from eval.parallel import in_parallel
from eval.simulate.evaluate import trace_of
from eval.simulate.rows import Rows, digest_of
from eval.studies.constants.measure import Setting, line_of, measured, name_of
from eval.studies.constants.table import CONSTANTS, Constant, changed_value
from eval.studies.figures import Figures, shown
from eval.terminal import show, table
from eval.trace_arguments import TraceSource, add_reading_arguments, say_missing
from eval.traces import SOURCES
from eval.traces.facts import facts
from radix_tlru.config import START_THRESHOLD

CHAT = (
    "chat-mix:conversations=1500,arrival_span_s=3600,wait_median_s=45,wait_sigma=1,"
    "thought_range=100/800,tool_probability=0.2"
)
AGENT = "subagents:sessions=60,span_s=7200"
"""The generated traces: people who chat with a model that thinks and calls tools, and agents with subagents."""

FACTORS = (0.5, 2.0)
SHARE_CACHED = 10
"""By default the cache holds one in so many of the distinct tokens of the trace."""

NEGLIGIBLE = 0.001
"""Relative change (hit ratio: difference) that counts as none."""


class Run(NamedTuple):
    """What is served once: a trace with all constants as they are (None), or with one of them changed."""

    setting: Setting
    policy: str
    constant: Constant | None = None
    factor: float = 1.0

    @property
    def name(self) -> str:
        """The name of its row."""
        return name_of(self.setting, self.policy, self.constant, self.factor)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is listed or measured, on which traces, and where the figures are kept."""
    add = parser.add_argument
    names = sorted({one.name for one in CONSTANTS})
    add("--only", action=Several, type=one_of(names), metavar="NAME", help="these constants instead of all")
    add("--measure", action="store_true", help="what half and twice the value do to the figures")
    add(
        "--trace",
        action=Several,
        default=[CHAT, AGENT],
        metavar="PATH_OR_NAME",
        help=f"each {SOURCES} (default: a chat, an agent)",
    )
    add_reading_arguments(parser)
    add(
        "--capacity",
        action=Several,
        type=tokens,
        metavar="TOKENS",
        help=f"for all traces or one each (default: 1/{SHARE_CACHED} of the distinct tokens)",
    )
    xi = f"ξ, likewise (default: {START_THRESHOLD})"
    add("--threshold", action=Several, type=tokens, default=[START_THRESHOLD], metavar="TOKENS", help=xi)
    add_page_size(parser, default=16)
    add(
        "--load", type=number(above=0, below=1), default=0.8, metavar="SHARE", help="of the time that lru is busy (0.8)"
    )
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs side by side (default: %(default)s)")
    add(
        "--out",
        type=output_folder,
        default=Path(".out/constants"),
        metavar="DIR",
        help="a run that was cut off goes on there",
    )


def run(args: argparse.Namespace) -> int:
    """Print the list; with ``--measure``, a table for each trace."""
    chosen = [one for one in CONSTANTS if args.only is None or one.name in args.only]
    if not args.measure:
        _check_list_alone(args)
        show(listed(chosen))
        return 0
    settings = settings_of(args)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [Rows(args.out / f"{digest_of(trace_of(setting.source))}.jsonl", key="run") for setting in settings]
    fill(settings, rows, chosen, args.jobs)
    for setting, found in zip(settings, rows, strict=True):
        show(changes(setting, found, chosen))
    if idle := [one.key for one in chosen if not one.unmeasured and not any(moves(settings, rows, one))]:
        show(f"Nothing changes by more than {NEGLIGIBLE:.1%} with: {', '.join(idle)}")
    for one in chosen:
        if one.unmeasured:
            show(f"{one.key}: not measured, {one.unmeasured}")
    return 0


def _check_list_alone(args: argparse.Namespace) -> None:
    """Refuse flags that say how something is measured, where nothing is.

    Raises:
        ValueError: names the first of them.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, value in vars(args).items():
        if name not in ("command_line", "only") and value != parser.get_default(name):
            raise ValueError(f"--{name.replace('_', '-')}: needs --measure; the list of constants takes --only alone")


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """A setting for each trace.

    Raises:
        ValueError: as many values as traces, or one, are needed.
    """
    count = len(args.trace)
    for flag, values in (("--capacity", args.capacity), ("--threshold", args.threshold)):
        if values is not None and len(values) not in (1, count):
            raise ValueError(f"{flag} {' '.join(map(str, values))}: must be one value, or one for each --trace")
    settings = []
    for index, source in enumerate(TraceSource.several(args.trace, args)):
        trace = trace_of(source)
        say_missing(trace.missing())
        if args.capacity is None:
            capacity = facts(trace.requests).distinct_tokens // SHARE_CACHED
        else:
            capacity = _value(args.capacity, index)
        settings.append(Setting(source, capacity, _value(args.threshold, index), args.page_size, args.load))
    check_page_sizes([args.page_size], [setting.capacity for setting in settings])
    return settings


def _value(values: Sequence[int], index: int) -> int:
    return values[index % len(values)]


def fill(settings: Sequence[Setting], rows: Sequence[Rows], chosen: Sequence[Constant], jobs: int) -> None:
    """Serve what has no row yet. Rows are on the disk as soon as they are done."""
    for setting, found in zip(settings, rows, strict=True):
        missing = [one for one in dict.fromkeys(_runs(setting, chosen)) if one.name not in found]
        if not missing:
            continue
        line = line_of(setting)
        calls = [(setting, line, one.policy, one.constant, one.factor) for one in missing]
        for row in in_parallel(measured, calls, jobs=jobs, title=f"{setting.title}: runs", ordered=False):
            found.append(row)


def _runs(setting: Setting, chosen: Sequence[Constant]) -> Iterator[Run]:
    for one in chosen:
        if not one.unmeasured:
            yield Run(setting, one.policy)
            yield from (Run(setting, one.policy, one, factor) for factor in FACTORS)


def listed(chosen: Sequence[Constant]) -> Table:
    """A constant a row, with its value."""
    result = table("", ("module", "constant", "value", "unit", "what it does"), texts=5)
    for one in chosen:
        result.add_row(one.module, one.name, _shown(one.value), one.unit, one.does)
    return result


def changes(setting: Setting, rows: Rows, chosen: Sequence[Constant]) -> Table:
    """Two rows for each constant: the figures against those with the value as it is."""
    result = table(
        f"{setting.title}: {setting.capacity:,} tokens, ξ = {setting.threshold:,}, page {setting.page_size}, "
        f"lru busy for {setting.load:.0%}",
        ("constant", "value", "instead", "TEL", "p50", "p95", "over ξ", "hits (points)"),
    )
    for one, factor in itertools.product([one for one in chosen if not one.unmeasured], FACTORS):
        change = _change(setting, rows, one, factor)
        figures = map(shown, (change.tel, change.p50, change.p95, change.violations))
        other = _shown(changed_value(one.value, factor, one.scale))
        is_first = factor == FACTORS[0]
        named = (one.key, _shown(one.value)) if is_first else ("", "")
        result.add_row(*named, other, *figures, f"{100 * change.hit_ratio:+.2f}", end_section=not is_first)
    return result


def moves(settings: Sequence[Setting], rows: Sequence[Rows], constant: Constant) -> Iterator[bool]:
    """Whether the figures change, for each trace and factor."""
    for (setting, found), factor in itertools.product(zip(settings, rows, strict=True), FACTORS):
        change = _change(setting, found, constant, factor)
        figures = (change.tel, change.p50, change.p95, change.violations, change.hit_ratio)
        yield not all(abs(each) <= NEGLIGIBLE for each in figures)  # of what was 0, and is not, the change is nan


def _change(setting: Setting, rows: Rows, constant: Constant, factor: float) -> Figures:
    before = _figures(rows[Run(setting, constant.policy).name])
    return _figures(rows[Run(setting, constant.policy, constant, factor).name]).against(before)


def _figures(row: dict[str, Any]) -> Figures:
    return Figures(**{name: row[name] for name in Figures._fields})


def _shown(value: Any) -> str:
    """A number, or the first and last of several."""
    if not isinstance(value, tuple):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    shown = [_shown(each) for each in value]
    return ", ".join(shown if len(shown) <= 4 else [shown[0], shown[1], "…", shown[-1]])
