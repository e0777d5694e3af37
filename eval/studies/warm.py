"""`python -m eval warm`: what warm prompts gain for conversations that begin with them, and cost all others.

A warm prompt is a beginning that several conversations of the trace have in common. The most seldom used are taken
first, until a quarter of the pool is full. A round asks for each of them, as `radix-tlru warm` does. Figures are of the
requests of the trace alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from eval.arguments import Several, add_cache, add_policies, check_page_sizes, number, whole
from eval.caches.policies import simulated_cache
from eval.simulate.cells import uncached_tokens
from eval.studies.figures import figures, shown
from eval.terminal import show, table, track
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.request import Path, Request
from radix_tlru.tools.warm import SHARE

POLICIES = ("lru", "tlru", "etlru")


class WarmPath(NamedTuple):
    """A prompt that is kept warm."""

    path: Path
    uses: int  # conversations that begin with it


class Served(NamedTuple):
    """A trace with prompts that are kept warm."""

    cached: list[int]  # tokens that each request of the trace found
    prefilled: int  # tokens, for warm prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_trace_arguments(parser)
    add_policies(parser, POLICIES, ("lru", "etlru"))
    add = parser.add_argument
    add("--every", action=Several, type=number(least=1), default=[60.0], metavar="S", help="between rounds (60)")
    add(
        "--uses",
        type=whole(2),
        default=10,
        metavar="N",
        help="conversations that begin with a prompt, at least, for it to be warm (default: %(default)s)",
    )
    add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], [args.capacity])
    requests = trace_source(args).open().requests
    most = int(SHARE * args.capacity)
    warm = warm_paths(requests, args.uses, most)
    if not warm:
        raise ValueError(_why_none(beginnings(requests), args, most))
    show(compare(requests, warm, args))
    return 0


def _why_none(found: Sequence[WarmPath], args: argparse.Namespace, most: int) -> str:
    """Why no beginning can be kept warm in ``most`` tokens."""
    if not found:
        return f"--trace {args.trace}: does not tell conversations apart, of which some would begin alike"
    alike = max(each.uses for each in found)
    if alike < args.uses:
        told = f"at most {alike}" if alike > 1 else "none do"
        return f"--uses {args.uses}: must be at most the conversations that begin alike; {told} in this trace"
    shortest = min(len(each.path) for each in found if each.uses >= args.uses)
    return (
        f"--capacity {args.capacity}: warm prompts may take {SHARE:.0%} of it, {most:,} tokens, and the shortest that "
        f"{args.uses} conversations begin with has {shortest:,}"
    )


def warm_paths(requests: Sequence[Request], uses: int, most: int) -> list[WarmPath]:
    """Beginnings of at least so many conversations, the most seldom used first, of ``most`` tokens in all."""
    chosen: list[WarmPath] = []
    for each in sorted(beginnings(requests), key=lambda each: each.uses):
        if each.uses >= uses and len(each.path) <= most:
            chosen.append(each)
            most -= len(each.path)
    return chosen


def beginnings(requests: Sequence[Request]) -> list[WarmPath]:
    """The first unit of each conversation, and how many begin with it."""
    seen: set[str | None] = {None}
    found: dict[int, WarmPath] = {}
    for request in requests:
        if request.conversation in seen:
            continue
        seen.add(request.conversation)
        if request.prompt.ids:  # else it is less than a block, of which nothing is cached
            unit, end = request.prompt.ids[0], request.prompt.ends[0]
            before = found.get(unit, WarmPath(Path((unit,), (end,)), 0))
            found[unit] = before._replace(uses=before.uses + 1)
    return [*found.values()]


def serve(
    requests: Sequence[Request],
    policy: str,
    warm: Sequence[WarmPath],
    every_s: float | None,
    capacity: int,
    threshold: int,
    page_size: int,
) -> Served:
    """The trace through a cache, with a round at the start and every so many seconds; None: without any."""
    cache = simulated_cache(policy, capacity, threshold=threshold, page_size=page_size)
    cached: list[int] = []
    prefilled, round_s = 0, 0.0 if every_s is not None else math.inf
    for request in track(requests, policy):
        while request.arrival_s >= round_s:
            for path, _ in warm:
                asked = Request(round_s, None, path, path, len(path), 1)
                prefilled += len(path) - cache.request(asked)
            round_s += every_s or math.inf
        cached.append(cache.request(request))
    return Served(cached, prefilled)


def compare(requests: Sequence[Request], warm: Sequence[WarmPath], args: argparse.Namespace) -> Table:
    """A row for each policy and time between rounds: changes against the same policy without warm prompts."""
    held = sum(len(each.path) for each in warm)
    names = {each.path.ids[0] for each in warm}
    begins = np.array(_begin_with(requests, names))
    rows = table(
        f"{len(requests):,} requests; {len(warm)} warm prompts, {held / args.capacity:.0%} of the pool, that "
        f"{sum(each.uses for each in warm):,} of them begin with: a prompt each "
        f"{requests[-1].arrival_s / (sum(each.uses for each in warm) / len(warm)):,.0f} s",
        ("policy", "rounds", "TEL", "p50", "p95", "mean", "mean of those that begin", "prefilled for it"),
        texts=2,
    )
    for policy in args.policy:
        sizes = args.capacity, args.threshold, args.page_size
        without = serve(requests, policy, warm, None, *sizes)
        before = figures(requests, without.cached, args.threshold)
        first = float(uncached_tokens(requests, without.cached)[begins].mean())
        for every_s in (None, math.inf, *args.every):
            served = without if every_s is None else serve(requests, policy, warm, every_s, *sizes)
            uncached = uncached_tokens(requests, served.cached)
            change = figures(requests, served.cached, args.threshold).against(before)
            own = float(uncached[begins].mean())
            rows.add_row(
                policy,
                "none" if every_s is None else "at the start" if every_s == math.inf else f"each {every_s:g} s",
                *map(shown, (change.tel, change.p50, change.p95, change.mean)),
                f"{own:,.0f} ({own / first - 1:+.0%})",
                f"{served.prefilled / float(uncached.sum()):.1%}",
            )
    return rows


def _begin_with(requests: Sequence[Request], names: set[int]) -> list[bool]:
    """Whether each is the first of its conversation, and begins with one of these units."""
    seen: set[str | None] = {None}
    found = []
    for request in requests:
        found.append(request.conversation not in seen and next(iter(request.prompt.ids), None) in names)
        seen.add(request.conversation)
    return found
