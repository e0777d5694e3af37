"""`python -m eval demo`: the same conversations on three real servers, stock lru, stock tlru and ours, in one table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from eval import summary
from eval.client import RequestResult
from eval.replay import ReplayError, replay
from eval.server import Server, ServerError, cpu_flags, ensure_demo_model
from eval.workload import ChatMix, Conversation, generate, request_count, token_count

OUTPUT = Path(".out/demo")
DEFAULT_SEED = 0
TABLE_WIDTH = 100  # columns; in a narrower terminal lines wrap, but no figure is cut


@dataclass(frozen=True)
class Settings:
    """Of all arms alike; lengths in tokens. Small, so that the whole comparison takes minutes on two cores."""

    # Stock lru hits about half of what an endless pool would: enough is evicted, and enough is worth keeping.
    pool: int = 20_480
    page_size: int = 16
    threshold: int = 768  # ξ
    next_prompt_estimate: int = 128  # Q̂
    concurrency: int = 3
    seed: int = DEFAULT_SEED
    mix: ChatMix = field(default_factory=lambda: ChatMix(conversations=72, arrival_span_s=15.0))


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    flags: tuple[str, ...]

    @property
    def file_stem(self) -> str:
        """The name as part of a file name."""
        return self.name.replace(" ", "-")


def arms(settings: Settings) -> list[Arm]:
    """The policies that are compared; the first one is the baseline, the last one ours."""
    threshold, estimate = settings.threshold, settings.next_prompt_estimate
    stock_config = json.dumps({"threshold": threshold, "next_prompt_estimate": estimate})
    return [
        Arm("stock lru", ("--radix-eviction-policy", "lru")),
        Arm("stock tlru", ("--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", stock_config)),
        Arm(
            "radix-tlru",
            (
                *("--radix-eviction", "tlru"),
                *("--tlru-threshold", str(threshold)),
                *("--tlru-next-prompt-estimate", str(estimate)),
            ),
        ),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo has one knob; everything else is fixed, so that two people can compare their tables."""
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the conversations (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the demo and print its table; 1 if a server did not start or a request failed."""
    settings = Settings(seed=args.seed)
    workload = generate(settings.mix, settings.seed)
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, TABLE_WIDTH)
    console.print(describe(settings, workload))
    try:
        results = run_arms(settings, workload)
        summaries = [summary.summarise(name, rows, settings.threshold) for name, rows in results.items()]
    except (ServerError, ReplayError, summary.NoResultError) as error:
        print(f"eval demo: {error}", file=sys.stderr)
        return 1

    baseline, *_, ours = summaries
    console.print(summary.comparison_table(summaries, settings.threshold))
    console.print(summary.tail_sentence(ours, baseline))
    console.print(summary.median_sentence(ours, baseline))
    console.print(f"Every request is a line of {OUTPUT}/<arm>.jsonl.")
    return report_errors(results, console)


def describe(settings: Settings, workload: Sequence[Conversation]) -> Table:
    """All settings of the comparison."""
    mix, tokens = settings.mix, token_count(workload)
    lines = {
        "server": f"KV pool {settings.pool:,} tokens, page size {settings.page_size}; a tiny Llama with random weights "
        "on the CPU: uncached tokens vary little from run to run, TTFT depends on the machine and its load",
        "objective": f"at most ξ = {settings.threshold} uncached tokens; next prompt estimate Q̂ = "
        f"{settings.next_prompt_estimate} tokens",
        "workload": f"{len(workload)} conversations of 1–{mix.max_turns} turns, {request_count(workload)} requests, at "
        f"most {settings.concurrency} at once, {mix.wait_median_s:g} s between turns (median), seed "
        f"{settings.seed}",
        "tokens": f"first prompts {_range(mix.first_prompt_range)} (log-normal, median {mix.first_prompt_median:g}), "
        f"later ones {_range(mix.next_prompt_range)}, answers {_range(mix.answer_range)}; {tokens:,} in all, "
        f"{tokens / settings.pool:.1f} times the pool",
    }
    grid = Table.grid(padding=(0, 2))
    for label, text in lines.items():
        grid.add_row(label, text)
    return grid


def run_arms(settings: Settings, workload: Sequence[Conversation]) -> dict[str, list[RequestResult]]:
    """Results by name of the arm. One server at a time, so that none takes the processor from another."""
    model = ensure_demo_model()
    results: dict[str, list[RequestResult]] = {}
    with _progress() as progress:
        for arm in arms(settings):
            bar = progress.add_task(f"{arm.name}: server starts", total=request_count(workload))

            def advance(_: RequestResult, bar: TaskID = bar) -> None:
                progress.advance(bar)

            flags = [*cpu_flags(model, settings.pool, settings.page_size), *arm.flags]
            with Server(flags, name=f"demo-{arm.file_stem}") as server:
                progress.update(bar, description=f"{arm.name}: replay")
                results[arm.name] = replay(server, workload, concurrency=settings.concurrency, on_result=advance)
            progress.update(bar, description=f"{arm.name}: done")
            summary.write_rows(OUTPUT / f"{arm.file_stem}.jsonl", results[arm.name])
    return results


def report_errors(results: Mapping[str, Sequence[RequestResult]], console: Console) -> int:
    """Print how many requests of each arm failed, and the first reason; 1 if there were any, else 0."""
    failed = {name: [row for row in rows if row.error is not None] for name, rows in results.items()}
    for name, rows in failed.items():
        if rows:
            console.print(f"{name}: {len(rows)} requests failed and are in no figure above; the first: {rows[0].error}")
    return int(any(failed.values()))


def _progress() -> Progress:
    # On stderr, so that the table alone goes where the output is sent.
    return Progress(
        TextColumn("{task.description:26}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _range(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]:,}–{bounds[1]:,}"
