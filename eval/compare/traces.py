"""Which traces are compared on: those that were named, those of a folder, or the suite of all generated kinds."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eval.parallel import in_parallel
from eval.simulate.evaluate import trace_of
from eval.simulate.rows import digest_of
from eval.trace_arguments import TraceSource, say_missing
from eval.traces import TraceError, generator_of
from eval.traces.drawn import drawn
from eval.traces.mixes import MIXES, SYMMETRIC
from eval.traces.variants import FIRST_TURNS, VARIANTS, sessions_of
from eval.traces.working_set import working_set

SUITE = (
    "synthetic:conversations=1200",
    "synthetic:conversations=1000,prompt_mean=2000,turn_rate_sigma=1",
    "chat-mix:conversations=800,arrival_span_s=170,first_prompt_median=6000,first_prompt_range=200/30000",
    "agents:runs=1200,arrival_span_s=504",
    "compaction:sessions=40,span_s=3840",
    "rewind:sessions=600,span_s=5760",
    "changing-system:sessions=40,span_s=3840",
    "parallel-tools:sessions=40,span_s=3840",
    "subagents:sessions=20,span_s=1920",
    "thinking:sessions=900,span_s=8640",
    "batch:sessions=800",
    "day:sessions=250",
    "shift:chat_sessions=700,agent_sessions=28,span_s=5600",
)
"""Every generated kind but figure1, which is an example of four requests. Some 3,000 requests each: as dense as by
default, in less time; a day is thinner. Seeds are added."""

SUITE_SEEDS, QUICK_SEEDS = (0, 1), (0,)
"""Seeds of the suite, unless others are given."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What has to be known of a trace before it is simulated."""

    source: TraceSource
    name: str
    digest: str  # changes when the trace does
    requests: int
    working_set: int  # tokens
    longest: int  # prompt, tokens
    sessions: int
    duration_s: float  # from the first arrival to the last
    missing: tuple[str, ...] = ()  # of what was given, in lines


def sources(args: argparse.Namespace) -> list[TraceSource]:
    """The traces that ``--trace``, ``--suite`` and ``--seeds`` mean, each once.

    Raises:
        ValueError: none is meant, a folder is empty, or seeds or draws were asked for of traces that have none.
    """
    named = list(args.trace or [])
    if args.suite is not None:
        named += SUITE if args.suite is True else _entries(Path(args.suite))
    if not named:
        raise ValueError("--trace: is required, or --suite for every kind that ships")
    of_suite = QUICK_SEEDS if args.quick else SUITE_SEEDS
    seeds = args.seeds or (of_suite if args.suite is True else ())
    if args.drawn and not seeds:
        raise ValueError("--drawn: needs --seeds, by which parameters are drawn, or --suite")
    seeded = [_with_seeds(name, seeds, is_drawn=args.drawn) for name in named]
    if (args.seeds or args.drawn) and all(each == [name] for each, name in zip(seeded, named, strict=True)):
        flag = f"--seeds {args.seeds[0]}" if args.seeds else "--drawn"
        raise ValueError(f"{flag}: none of the traces is generated without a seed of its own")
    named_ones = TraceSource.several(list(dict.fromkeys(name for each in seeded for name in each)), args)
    made = (None, *VARIANTS) if args.variants else (None,)
    varied = [replace(source, variant=variant) for source in named_ones for variant in made]
    return [*varied, *(_mixes(named_ones) if args.mixes else ())]


def _mixes(named: Sequence[TraceSource]) -> list[TraceSource]:
    """What can be made of each two traces, either way round where that is another one.

    Raises:
        ValueError: there are no two.
    """
    if len(named) < 2:
        raise ValueError(f"--mixes: needs two traces or more; {named[0].source} is one")
    ways = {how: itertools.combinations if how == SYMMETRIC else itertools.permutations for how in MIXES}
    return [replace(first, mix=(how, second)) for how, pairs in ways.items() for first, second in pairs(named, 2)]


def _entries(folder: Path) -> list[str]:
    """Files and folders of a folder; each may be a trace."""
    try:
        found = sorted(str(each) for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise ValueError(f"--suite {folder}: {(error.strerror or str(error)).lower()}") from None
    if not found:
        raise ValueError(f"--suite {folder}: holds no file; must be a folder of traces")
    return found


def _with_seeds(name: str, seeds: Sequence[int], *, is_drawn: bool) -> list[str]:
    """The name once for each seed, if it is of a generator with a seed that was not given."""
    head, _, parameters = name.partition(":")
    generator = generator_of(name)
    is_seeded = generator is not None and "seed" in generator.defaults()
    given = any(pair.startswith("seed=") for pair in parameters.split(","))
    if not seeds or not is_seeded or given:
        return [name]
    if is_drawn:
        return [drawn(name, seed) for seed in seeds]
    return [f"{head}:{','.join(filter(None, (parameters, f'seed={seed}')))}" for seed in seeds]


def survey_all(wanted: Sequence[TraceSource], *, jobs: int, folder: str | None) -> list[Survey]:
    """Read all traces once.

    Args:
        folder: that was given as the suite. What is no trace there is left out, and said on standard error.

    Raises:
        ValueError: a trace cannot be read, or two have the same name.
    """
    found: dict[str, Survey] = {}
    left_out: set[str] = set()  # traces, with what would be made of them
    calls = [(source, folder is not None and Path(source.source).parent == Path(folder)) for source in wanted]
    for source, surveyed in zip(wanted, in_parallel(_survey, calls, jobs=jobs, title="traces read"), strict=True):
        if isinstance(surveyed, str):
            if source.source not in left_out and source.mix is None:  # of which each trace is surveyed itself
                print(f"left out: {surveyed}", file=sys.stderr)
            left_out.add(source.source)
            continue
        say_missing(surveyed.missing)
        if surveyed.name in found:
            other = found[surveyed.name].source.source
            raise ValueError(f"--trace {source.source}: has the same name as {other}, {surveyed.name}; rename one")
        found[surveyed.name] = surveyed
    if not found:
        raise ValueError(f"--suite {folder}: holds no trace")
    return list(found.values())


def _survey(source: TraceSource, may_fail: bool) -> Survey | str:
    """A survey, or the reason why there is none."""
    try:
        trace = trace_of(source)
    except TraceError as error:
        if may_fail or source.is_made:
            return str(error)
        raise
    # Of first turns alone next to nothing comes again: their caches are those of the trace that they are of.
    sized_by = trace_of(replace(source, variant=None)) if source.variant == FIRST_TURNS else trace
    known = digest_of(trace), len(trace.requests), working_set(sized_by.requests)
    longest = max(request.prompt_tokens for request in trace.requests)
    sessions = len(set(sessions_of(trace.requests)))
    duration_s = trace.requests[-1].arrival_s - trace.requests[0].arrival_s
    missing = [] if source.is_made else trace.missing()
    return Survey(source, trace.name, *known, longest, sessions, duration_s, tuple(missing))
