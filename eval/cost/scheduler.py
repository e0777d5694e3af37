"""What eviction costs a scheduler that decodes into a full pool: real servers under one load, taking turns.

Everything but the client's clock is read from SGLang's own metrics: evictions, their time and their tokens, forward
passes, CPU time of the scheduler's process (in whole seconds). All servers are up at once, asleep except the one that
is played. So drift of the machine within minutes meets all of them. Each repeat plays every arm, another one first, and
ratios are of arms in one repeat. Stock lru has two servers: the ratio between them shows what the machine alone does.

A pool that was just filled with prompts has its free slots in long runs. When decoded tokens have been evicted for a
while, free slots are scattered, and attention takes longer to gather KV from them. Under lru that takes longest, as it
evicts the oldest first. So pools are aged before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from rich.table import Table

from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.hosts import launched
from eval.live.replay.load import load_from
from eval.live.replay.play import ReplayError, play
from eval.live.replay.probe import warm_up
from eval.live.replay.rows import risen
from eval.live.replay.schedule import Pace
from eval.live.replay.turns import Load
from eval.live.running_server import RunningServer
from eval.studies.figures import half_interval
from eval.terminal import show, table, track
from eval.traces import open_trace
from radix_tlru.config import CHUNKS_IN_POOL

OUTPUT = Path(".out/bench/scheduler.jsonl")
AGAIN = "stock lru, again"

USERS, POOL, PAGE_SIZE = 8, 65_536, 1
"""The pool (tokens) is full of earlier conversations, which decoding evicts."""

PACE = Pace("closed", users=USERS)
LEAST_POOL = 16_384  # tokens: more than the longest conversations of all users
THRESHOLD, NEXT_PROMPT = 600, 100
TRACE = (
    "chat-mix:conversations=40,arrival_span_s=1,first_prompt_median=300,first_prompt_range=100/1000,"
    "next_prompt_range=20/100,answer_range=64/128,max_turns=3,wait_median_s=0.01"
)
FILL = "chat-mix:arrival_span_s=1,first_prompt_median=2000,first_prompt_range=1000/4000,answer_range=1/1,max_turns=1"


@dataclass(frozen=True, slots=True)
class Cost:
    """One arm in one repeat, from a full pool."""

    arm: str
    repeat: int
    decoded: int  # tokens
    steps: int  # forward passes, prefills included
    evictions: int  # that freed something
    evicted: int  # tokens
    splits: int | None  # of leaves whose front stays; None: stock evicts whole nodes
    eviction_s: float  # wall time of all evictions together
    cpu_s: float  # of the scheduler's process, with the computation of the model
    seconds: float
    itl_ms: tuple[float, float, float]  # p50, p95, p99 of all inter-token latencies, at the client
    hit_ratio: float


class Measured(Protocol):
    """What was measured of one arm in one repeat."""

    @property
    def arm(self) -> str:
        """Its name."""

    @property
    def repeat(self) -> int:
        """Its number."""


One = TypeVar("One", bound=Measured)


class Figure(NamedTuple, Generic[One]):
    """A row of a table."""

    title: str
    form: str
    of: Callable[[One], float | None]
    compared: bool  # with the first arm


FIGURES: tuple[Figure[Cost], ...] = (
    Figure("evictions / 1,000 decoded", "{:,.1f}", lambda cost: 1e3 * cost.evictions / cost.decoded, False),
    Figure(
        "splits / 1,000",
        "{:,.1f}",
        lambda cost: None if cost.splits is None else 1e3 * cost.splits / cost.decoded,
        False,
    ),
    Figure("tokens evicted / 1,000", "{:,.0f}", lambda cost: 1e3 * cost.evicted / cost.decoded, False),
    Figure("hit ratio", "{:.1%}", lambda cost: cost.hit_ratio, False),
    Figure("µs / eviction", "{:,.0f}", lambda cost: 1e6 * cost.eviction_s / max(cost.evictions, 1), True),
    Figure("eviction, µs / step", "{:,.1f}", lambda cost: 1e6 * cost.eviction_s / cost.steps, True),
    Figure("eviction, of the time", "{:.2%}", lambda cost: cost.eviction_s / cost.seconds, False),
    Figure("scheduler, CPU ms / step", "{:,.2f}", lambda cost: 1e3 * cost.cpu_s / cost.steps, True),
    Figure("ITL p50 (ms)", "{:,.1f}", lambda cost: cost.itl_ms[0], True),
    Figure("ITL p95 (ms)", "{:,.1f}", lambda cost: cost.itl_ms[1], True),
    Figure("ITL p99 (ms)", "{:,.1f}", lambda cost: cost.itl_ms[2], True),
    Figure("decoded tokens / s", "{:,.0f}", lambda cost: cost.decoded / cost.seconds, True),
)


def run(args: argparse.Namespace) -> None:
    """Play all arms, print the table and write `.out/bench/scheduler.jsonl`.

    Raises:
        ValueError: the pool is out of range.
        ServerError: a server does not start.
        ReplayError: a request failed.
    """
    chunks, repeats, pool, aging = args.chunks, args.repeats, args.pool, args.aging
    check_pool(pool)
    load, fill = load_from(open_trace(TRACE).requests), filling(pool)
    loads = [replace(load, seed=2 + number) for number in range(aging + repeats)]  # the same lengths, other tokens
    compared = arms(chunks)
    parts = list(order(compared, repeats))
    flags = base_flags("cpu", None, pool, PAGE_SIZE)
    found: list[Cost] = []
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # Line by line, so that a run that is cut off keeps what it measured.
        rows = stack.enter_context(OUTPUT.open("w", buffering=1))
        hosts: dict[str, RunningServer] = {}
        for arm in compared:
            hosts[arm.name] = stack.enter_context(launched(arm, flags, f"bench-{arm.stem}"))
            warm_up(hosts[arm.name].base_url)
        for host in track(list(hosts.values()), "aging"):
            for unmeasured in (fill, *loads[:aging]):
                play(host.base_url, unmeasured, PACE, alive=host.alive)
        for repeat, arm in track(parts, "scheduler"):
            found.append(measure(arm, hosts[arm.name], repeat, loads[aging + repeat]))
            rows.write(json.dumps(asdict(found[-1])) + "\n")
    show(cost_table(found, pool))
    show(f"Means, repeats: {repeats}; ratios to stock lru: geometric means ± 95 % intervals. Rows are in {OUTPUT}.\n")


def check_pool(pool: int) -> None:
    """Refuse a pool that users fill alone, or that has no room for a prompt it is filled with.

    Raises:
        ValueError: names the flag.
    """
    if pool < LEAST_POOL:
        raise ValueError(f"--pool {pool}: must be {LEAST_POOL} or more, so that {USERS} users alone do not fill it")


def filling(pool: int) -> Load:
    """Prompts of more tokens than the pool holds."""
    return load_from(open_trace(f"{FILL},conversations={math.ceil(40 * pool / POOL)},seed=1").requests, 1)


def arms(chunks: Sequence[int]) -> list[Arm]:
    """Stock lru and tlru; tlru of radix-tlru by default, with each trim chunk, and etlru; stock lru again."""
    lru, stock_tlru, etlru = default_arms(THRESHOLD, NEXT_PROMPT)
    pinned = ("--tlru-threshold", str(THRESHOLD), "--tlru-next-prompt-estimate", str(NEXT_PROMPT))
    tlru = ("--radix-eviction", "tlru", *pinned)
    trimming = [Arm(f"trim chunk {chunk}", (*tlru, "--tlru-trim-chunk", str(chunk))) for chunk in chunks]
    ours = Arm(f"radix-tlru, 1/{CHUNKS_IN_POOL} of the pool", tlru)
    return [lru, stock_tlru, ours, *trimming, etlru, Arm(AGAIN, lru.flags)]


def order(among: Sequence[Arm], repeats: int) -> Iterator[tuple[int, Arm]]:
    """All parts, as (repeat, arm). In each repeat another arm goes first, so that drift of the machine favours none."""
    for repeat in range(repeats):
        first = repeat * len(among) // repeats
        yield from ((repeat, arm) for arm in (*among[first:], *among[:first]))


def measure(arm: Arm, host: RunningServer, repeat: int, load: Load) -> Cost:
    """Play ``load`` against the arm's server, whose pool is full."""
    before = host.get_metrics()
    sent = play(host.base_url, load, PACE, alive=host.alive)
    metrics = risen(host.get_metrics(), before)
    results = [one.result for one in sent]
    failed = next((result.error for result in results if result.error), None)
    if failed is not None:
        raise ReplayError(f"{arm.name}: a request failed: {failed}")
    p50, p95, p99 = np.percentile(np.concatenate([result.itl_ms for result in results]), (50, 95, 99)).tolist()
    splits = metrics.get("sglang:tlru_splits_total")
    return Cost(
        arm=arm.name,
        repeat=repeat,
        decoded=sum(result.output_tokens for result in results),
        steps=int(metrics["sglang:cuda_graph_passes_total"]),  # counts each pass, with a graph or without
        evictions=int(metrics.get("sglang:eviction_duration_seconds_count", 0)),
        evicted=int(metrics.get("sglang:evicted_tokens_total", 0)),
        splits=None if splits is None else int(splits),
        eviction_s=metrics.get("sglang:eviction_duration_seconds_sum", 0.0),
        cpu_s=metrics["sglang:scheduler_process_cpu_seconds_total"],
        seconds=max(one.sent_s + one.result.e2e_ms / 1e3 for one in sent),
        itl_ms=(p50, p95, p99),
        hit_ratio=sum(result.cached_tokens for result in results) / sum(result.prompt_tokens for result in results),
    )


def cost_table(found: Sequence[Cost], pool: int = POOL) -> Table:
    """A row for each figure, a column for each arm."""
    return figure_table(f"{USERS} users decode into a full pool of {pool:,} tokens", found, FIGURES)


def figure_table(title: str, found: Sequence[One], figures: Sequence[Figure[One]]) -> Table:
    """A row for each figure, a column for each arm, the first of which the others are compared with."""
    names = list(dict.fromkeys(one.arm for one in found))
    result = table(title, ("", *names))
    for figure in figures:
        cells = {name: {one.repeat: figure.of(one) for one in found if one.arm == name} for name in names}
        result.add_row(figure.title, *(_cell(figure, cells[name], cells[names[0]]) for name in names))
    return result


def _cell(figure: Figure[One], values: dict[int, float | None], baseline: dict[int, float | None]) -> str:
    """The mean over the repeats, and the ratio to the baseline of the same repeat."""
    known = {repeat: value for repeat, value in values.items() if value is not None}
    if not known:
        return "–"
    text = figure.form.format(np.mean(list(known.values())))
    if not figure.compared or values is baseline:
        return text
    ratios = [value / base for repeat, value in known.items() if value and (base := baseline[repeat])]
    return f"{text}\n{ratio(ratios)}" if ratios else text


def ratio(ratios: Sequence[float]) -> str:
    """Geometric mean and 95 % interval (Student's t, of the logarithms)."""
    logs = np.log(ratios)
    mean = math.exp(logs.mean())
    if len(ratios) < 2:
        return f"× {mean:.2f}"
    reach = math.exp(half_interval(logs)) - 1.0
    return f"× {mean:.2f} ± {mean * reach:.2f}"
