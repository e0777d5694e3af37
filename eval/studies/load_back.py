"""`python -m eval load-back`: what it would gain, and cost, to load back from a host tier what is forecast to return.

A hierarchical cache loads what a prompt has on the host when its request comes, and the request waits for it. An idle
server could load earlier, for the conversations that it expects soonest. What is loaded takes the place of other tokens
on the device, so it has to be worth more: here more than twice as much as what the order would evict next.

A kind case is shown: a server is idle at once, after every eighth request, and a load takes no time then. Under
``etlru`` (w = 1) the forecast is the learned index, under ``belady`` the true next use.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from eval.arguments import add_cache, check_page_sizes, number, tokens
from eval.caches.knowledge import TraceKnowledge
from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, Span
from eval.simulate.cells import uncached_tokens
from eval.studies.figures import change, shown
from eval.terminal import show, table, track
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.request import Path, Request
from radix_tlru import Leaf

POLICIES = ("etlru", "belady")

LOOKS_EVERY = 8
"""Requests between two looks at what could be loaded back."""

TIMES_DEARER = 2.0
"""What is loaded back is worth more than so many times what goes for it."""

_NOTHING = Span(0, None)  # of a context is used again


class _Context(NamedTuple):
    """What the cache held of a conversation after its last turn."""

    path: Path
    end: int  # tokens of it that may be used again
    last_access: float
    known: Any  # what the policy knows of it


class Served(NamedTuple):
    """A trace through two tiers; tokens."""

    on_device: list[int]  # that each request found there
    cached: list[int]  # that each request found on the device or on the host
    ahead: int  # loaded back before anybody asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_trace_arguments(parser)
    add_cache(parser)
    add = parser.add_argument
    add("--host", type=tokens, required=True, metavar="TOKENS", help="that both tiers hold together")
    add(
        "--host-cost",
        type=number(above=0.0),
        default=0.075,
        metavar="C",
        help="time to load a token from the host, in times of prefilling one (default: 0.075, an 8B model on an A100: "
        "130 kB at 22 GB/s, 6 µs, beside 80 µs)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    check_page_sizes([args.page_size], [args.capacity])
    if args.host < args.capacity:
        raise ValueError(f"--host {args.host}: must be at least --capacity {args.capacity}")
    show(compare(trace_source(args).open().requests, args))
    return 0


def serve(requests: Sequence[Request], policy: str, loads_back: bool, args: argparse.Namespace) -> Served:
    """The trace through a device and a host, which holds all that the device does."""
    knowledge = TraceKnowledge(requests) if policy == "belady" else None
    weight = 1.0 if policy == "etlru" else None
    device, below = (
        simulated_cache(
            policy,
            capacity,
            threshold=args.threshold,
            page_size=args.page_size,
            median_weight=weight,
            knowledge=knowledge,
        )
        for capacity in (args.capacity, args.host)
    )
    served = Served([], [], 0)
    contexts: dict[float, _Context] = {}  # by conversation; for whom knows the future, by the next use
    ahead = 0
    for turn, request in enumerate(track(requests, policy)):
        served.on_device.append(device.request(request))
        served.cached.append(max(below.request(request), served.on_device[-1]))
        if not loads_back:
            continue
        if knowledge is None:
            end, known = len(request.context), device.known_of(request.context)
        else:
            contexts.pop(turn + 1, None)
            end, known = next((span for span in reversed(knowledge.future(turn)) if span.known.at < math.inf), _NOTHING)
        if known is not None:
            key = known.number if knowledge is None else known.at
            if knowledge is None or key not in contexts or contexts[key].end < end:  # not a prefix of what is used then
                contexts[key] = _Context(request.context, end, turn + 1.0, known)
        if turn % LOOKS_EVERY == 0:
            ahead += _load_back(device, below, contexts)
    return served._replace(ahead=ahead)


def _load_back(device: SimulatedCache, below: SimulatedCache, contexts: dict[float, _Context]) -> int:
    """Load what is worth more than what goes for it, the most wanted first. Returns tokens."""
    order, loaded = device.order, 0
    returns, now = order.policy.returns, order.advance_clock(0.0)

    def rate(context: _Context) -> float:
        leaf = Leaf(0, context.end, len(context.path), context.last_access, context.known)
        return returns.rate(returns.group(leaf, now).number, returns.key(leaf), now)

    forecast = sorted(((rate(each), key) for key, each in contexts.items()), reverse=True)
    for expected, key in forecast:
        victim = order.choose_victim(device.page_size)
        if victim is None or expected <= TIMES_DEARER * order.price_of(victim).return_rate:
            break
        context = contexts[key]
        end = min(below.held_of(context.path), context.end, device.capacity)
        if end > device.held_of(context.path):
            loaded += device.load_back(context.path, end, context.last_access, context.known)
    return loaded


def compare(requests: Sequence[Request], args: argparse.Namespace) -> Table:
    """Two rows for each policy; changes are against the same policy that loads on demand alone."""
    rows = table(
        f"{len(requests):,} requests; {args.capacity:,} tokens on the device, {args.host:,} with the host; a wait is "
        f"uncached + {args.host_cost:g} · loaded",
        ("policy", "loaded back", "uncached", "loaded for a request", "p95", "ahead", "wait, p50", "p95", "mean"),
        texts=2,
    )
    for policy in POLICIES:
        base = None
        for loads_back in (False, True):
            served = serve(requests, policy, loads_back, args)
            uncached = uncached_tokens(requests, served.cached)
            loaded = np.subtract(served.cached, served.on_device)
            waits = uncached + args.host_cost * loaded
            found = np.array([*np.percentile(waits, (50, 95)), waits.mean()])
            base = found if base is None else base
            rows.add_row(
                policy,
                "what is forecast" if loads_back else "on demand",
                f"{uncached.mean():,.0f}",
                *(f"{figure:,.0f}" for figure in (loaded.mean(), np.percentile(loaded, 95))),
                f"{served.ahead / len(requests):,.0f}",
                *(
                    shown(change(figure, before)) if loads_back else f"{figure:,.0f}"
                    for figure, before in zip(found, base, strict=True)
                ),
            )
    return rows
