"""`python -m eval ahead`: what it would gain, and cost, to prefill what the next prompt will surely have.

Chat templates leave reasoning out of later prompts. So the next prompt of such a conversation does not repeat its
context as it is cached, and the answer has to be prefilled again behind the last prompt. That can be done when the user
waits for it, or before, while the server is idle. What is cached of the last answer is of no more use then.

The best case is shown: the server is idle at once, after every answer. Conversations that do not go on pay as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from rich.table import Table

from eval.arguments import add_cache, add_policies, check_page_sizes
from eval.caches.policies import simulated_cache
from eval.simulate.cells import uncached_tokens
from eval.studies.figures import change, figures, shown
from eval.terminal import show, table, track
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.request import Path, Request

POLICIES = ("lru", "tlru")
"""That learn nothing: what is prefilled ahead is no turn, and a learner would have to be told whose it is."""


class Way(NamedTuple):
    """What is done after an answer."""

    name: str
    prefills: bool = False
    drops: bool = False  # what is cached of the answer, as it is in no later prompt


WAYS = (
    Way("nothing"),
    Way("the answer is dropped", drops=True),
    Way("the next prompt is prefilled", prefills=True),
    Way("both", prefills=True, drops=True),
)


class Served(NamedTuple):
    """A trace with one of these ways."""

    cached: list[int]  # tokens that each request found
    prefilled: int  # tokens, ahead


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_trace_arguments(parser)
    add_policies(parser, POLICIES, ("lru",))
    add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], [args.capacity])
    trace = trace_source(args).open()
    if not any(each.conversation is not None and has_answer(each) for each in trace.requests):
        missing = "has no answers, or does not tell conversations apart: nothing is known of what a next prompt repeats"
        print(f"{trace.name}: {missing}", file=sys.stderr)
    show(compare(trace.requests, args))
    return 0


def next_beginnings(requests: Sequence[Request]) -> Iterator[Path | None]:
    """For each request what the next prompt of its conversation will have for sure; None: nothing that is not cached.

    For sure are whole units within as many tokens as the last prompt and its answer without thoughts: what is behind
    them is new. Where the trace has no answers, they are cached all the same, and nothing can be said.

    Where there is no next one, an answer that was thought over would be prefilled all the same: as units of its own.
    """
    following: dict[str, Request] = {}
    after: list[Request | None] = []
    for request in reversed(requests):
        after.append(None if request.conversation is None else following.get(request.conversation))
        if request.conversation is not None:
            following[request.conversation] = request
    own = count(1 + max((unit for request in requests for unit in request.context.ids), default=0))
    for request, later in zip(requests, reversed(after), strict=True):
        answer = request.output_tokens - request.thought_tokens
        if not has_answer(request):
            yield None
        elif later is not None:
            known = later.prompt.unit_at(request.prompt_tokens + answer)
            beginning = later.prompt.first(max(min(known, len(later.prompt.ids) - 1), 0))  # the last unit is new
            yield beginning if beginning.common(request.context) < len(beginning) else None
        elif request.thought_tokens and answer > 0 and request.stop != "tool_calls":
            yield request.prompt.plus(answer, next(own))
        else:
            yield None


def has_answer(request: Request) -> bool:
    """Whether the trace tells what is cached of the answer."""
    return len(request.context) > len(request.prompt)


def serve(requests: Sequence[Request], policy: str, way: Way, capacity: int, threshold: int, page_size: int) -> Served:
    """The trace through a cache, with this after each answer."""
    cache = simulated_cache(policy, capacity, threshold=threshold, page_size=page_size)
    cached: list[int] = []
    prefilled = 0
    pairs = zip(requests, next_beginnings(requests), strict=True)
    for request, beginning in track(pairs, f"{policy}: {way.name}", len(requests)):
        cached.append(cache.request(request))
        if beginning is None:
            continue
        if way.drops:
            cache.drop(request.context, min(beginning.common(request.context), len(request.prompt)))
        if way.prefills:
            prefilled += cache.prefill(beginning)
    return Served(cached, prefilled)


def compare(requests: Sequence[Request], args: argparse.Namespace) -> Table:
    """A row for each policy and way: changes against the same policy that does nothing."""
    beginnings = sum(path is not None for path in next_beginnings(requests))
    rows = table(
        f"{len(requests):,} requests; after {beginnings:,} of them something can be prefilled",
        ("policy", "after an answer", "TEL", "requests over ξ", "p50", "p95", "mean", "hits", "prefilled in all"),
        texts=2,
    )
    for policy in args.policy:
        sizes = args.capacity, args.threshold, args.page_size
        served = [serve(requests, policy, way, *sizes) for way in WAYS]
        found = [figures(requests, each.cached, args.threshold) for each in served]
        work = [float(uncached_tokens(requests, each.cached).sum()) + each.prefilled for each in served]
        for way, own, prefilled in zip(WAYS, found, work, strict=True):
            changes = own.against(found[0])
            rows.add_row(
                policy,
                way.name,
                *map(shown, (changes.tel, changes.violations, changes.p50, changes.p95, changes.mean)),
                f"{own.hit_ratio:.1%}",
                shown(change(prefilled, work[0])),
            )
    return rows
