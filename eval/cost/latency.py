"""What a client notices of a policy: the same requests of real servers that are all up, each asked in turn.

One request is under way at any time. It is sent to every server, another one first, before the next one is. So all
servers have the same work within a second, where loads that are played one after the other differ by as much as the
machine does. Two servers of one policy still differ: so each repeat starts new ones, and stock lru has two, whose ratio
shows by how much. Pools are full of earlier prompts.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

import numpy as np
import psutil

from eval.cost.scheduler import AGAIN, NEXT_PROMPT, PACE, PAGE_SIZE, POOL, THRESHOLD, Figure, figure_table, filling
from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.client import send, session
from eval.live.replay.hosts import server_of, together
from eval.live.replay.load import load_from
from eval.live.replay.play import ReplayError, play
from eval.live.replay.probe import warm_up
from eval.live.replay.prompts import Prompts
from eval.live.replay.schedule import in_order
from eval.live.replay.turns import Load, TurnId
from eval.live.server import Server, live_members
from eval.terminal import show, track
from eval.traces import open_trace

REQUESTS, UNMEASURED = 400, 100
"""Of a repeat, and the first of them, after which learning is under way."""

TRACE = (
    "chat-mix:conversations=150,arrival_span_s=200,first_prompt_median=200,first_prompt_range=50/800,"
    "next_prompt_range=20/150,answer_range=4/12"
)


@dataclass
class Noticed:
    """What a client measured of one server in one repeat, and what its scheduler spent."""

    arm: str
    repeat: int
    itl_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def _percentile(kind: str, share: int) -> Figure[Noticed]:
    title = f"{kind.removesuffix('_ms').upper()} p{share} (ms)"
    return Figure(title, "{:,.2f}", lambda noticed: float(np.percentile(getattr(noticed, kind), share)), True)


FIGURES: tuple[Figure[Noticed], ...] = (
    *(_percentile(kind, share) for kind in ("itl_ms", "ttft_ms") for share in (50, 95, 99)),
    Figure("scheduler, CPU ms / request", "{:,.1f}", lambda noticed: 1e3 * noticed.cpu_s / len(noticed.ttft_ms), True),
)


def run(args: argparse.Namespace) -> None:
    """Ask all servers, and print the table.

    Raises:
        ServerError: a server does not start.
        ReplayError: a request failed.
    """
    found: list[Noticed] = []
    for repeat in range(args.repeats):
        found += noticed(repeat, args.pool)
    show(figure_table(f"One user, {args.pool:,} tokens, {REQUESTS - UNMEASURED} requests a repeat", found, FIGURES))
    show(f"Means, repeats: {args.repeats}; ratios to stock lru: geometric means ± 95 % intervals. Metrics are on.\n")


def noticed(repeat: int, pool: int = POOL, requests: int = REQUESTS, unmeasured: int = UNMEASURED) -> list[Noticed]:
    """What a client measures of a new server of each arm."""
    load = load_from(open_trace(f"{TRACE},seed={repeat}").requests, seed=2 + repeat)
    lru, stock_tlru, _ = default_arms(THRESHOLD, NEXT_PROMPT)
    arms = [lru, stock_tlru, Arm("etlru", ("--radix-eviction", "etlru")), Arm(AGAIN, lru.flags)]
    flags = [*base_flags("cpu", None, pool, PAGE_SIZE), "--sleep-on-idle"]
    servers = {arm.name: server_of(arm, flags, f"bench-{arm.stem}") for arm in arms}
    with ExitStack() as stack:
        for starting in stack.enter_context(together(servers)).values():
            stack.enter_context(starting)
        for server in servers.values():
            warm_up(server.base_url)
            play(server.base_url, filling(pool), PACE, alive=server.alive)
        turns = [turn for _, turn, _ in in_order(load.conversations, speed=1.0)][:requests]
        found = {arm.name: Noticed(arm.name, repeat) for arm in arms}
        asyncio.run(_ask(servers, load, turns[:unmeasured], turns[unmeasured:], found))
    return list(found.values())


async def _ask(
    servers: Mapping[str, Server], load: Load, first: list[TurnId], turns: list[TurnId], found: Mapping[str, Noticed]
) -> None:
    """Send each request to every server; the first ones are not measured."""
    prompts = {name: Prompts(load, "generate") for name in servers}
    before, random = dict[str, float](), Random(0)
    async with session() as connection:
        for number, turn in enumerate(track([*first, *turns], "latency")):
            if number == len(first):
                before = {name: _scheduler_cpu_s(server) for name, server in servers.items()}
            for name in random.sample(list(servers), len(servers)):
                result = await send(connection, servers[name].base_url, prompts[name].ask(turn))
                prompts[name].take(turn, result)
                if result.error is not None or result.ttft_ms is None:
                    raise ReplayError(f"{name}: a request failed: {result.error}")
                if number >= len(first):
                    found[name].itl_ms += result.itl_ms
                    found[name].ttft_ms.append(result.ttft_ms)
    for name, server in servers.items():
        found[name].cpu_s = _scheduler_cpu_s(server) - before[name]


def _scheduler_cpu_s(server: Server) -> float:
    """CPU time of a server's scheduler so far."""
    members = map(psutil.Process, live_members(server.process_group))
    times = [member.cpu_times() for member in members if "scheduler" in " ".join(member.cmdline())]
    return float(sum(each.user + each.system for each in times))
