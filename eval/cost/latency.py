"""What a client notices of a policy: the same requests of real servers that are all up, each asked in turn.

All servers have the same work within a second, where loads that are played one after the other differ by as much as the
machine does. Two servers of one policy still differ: so each repeat starts new ones, and stock lru has two, whose ratio
shows by how much. Pools are full of earlier prompts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import psutil

from eval.cost.scheduler import (
    AGAIN,
    NEXT_PROMPT,
    PACE,
    PAGE_SIZE,
    POOL,
    THRESHOLD,
    Figure,
    check_pool,
    figure_table,
    filling,
)
from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.hosts import server_of, together
from eval.live.replay.load import load_from
from eval.live.replay.play import Manner, ReplayError, Sent, Target, play, play_in_turn
from eval.live.replay.probe import warm_up
from eval.live.replay.schedule import Pace
from eval.live.replay.turns import Load
from eval.live.server import Server, live_members
from eval.terminal import Progress, show
from eval.traces import open_trace

UNMEASURED = 1 / 4
"""The first of a repeat's requests, a share of them, after which learning is under way."""

TRACE = "chat-mix:first_prompt_median=200,first_prompt_range=50/800,next_prompt_range=20/150"
CONVERSATIONS, SPAN_S = 150, 200
"""For up to 400 requests; of so many conversations 450 and more come."""

AT_ONCE = Manner(Pace("ordered", speed=1e6, users=1))
"""Each request when the one before was answered."""


@dataclass
class Noticed:
    """What a client measured of one server in one repeat, and what its scheduler spent."""

    arm: str
    repeat: int
    itl_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    tokens: int = 0  # of the answers
    cpu_s: float = 0.0

    def take(self, sent: Sent) -> None:
        """Note a request.

        Raises:
            ReplayError: it failed.
        """
        result = sent.result
        if result.error is not None or result.ttft_ms is None:
            raise ReplayError(f"{self.arm}: a request failed: {result.error}")
        self.itl_ms += result.itl_ms
        self.ttft_ms.append(result.ttft_ms)
        self.tokens += result.output_tokens


def _percentile(kind: str, share: int) -> Figure[Noticed]:
    title = f"{kind.removesuffix('_ms').upper()} p{share} (ms)"

    def of(noticed: Noticed) -> float | None:
        found = getattr(noticed, kind)
        return float(np.percentile(found, share)) if found else None  # answers of one token have no ITL

    return Figure(title, "{:,.2f}", of, True)


FIGURES: tuple[Figure[Noticed], ...] = (
    *(_percentile(kind, share) for kind in ("itl_ms", "ttft_ms") for share in (50, 95, 99)),
    Figure("scheduler, CPU ms / request", "{:,.1f}", lambda noticed: 1e3 * noticed.cpu_s / len(noticed.ttft_ms), True),
)


def run(args: argparse.Namespace) -> None:
    """Ask all servers, and print the table.

    Raises:
        ValueError: the pool is out of range.
        ServerError: a server does not start.
        ReplayError: a request failed.
    """
    check_pool(args.pool)
    found: list[Noticed] = []
    for repeat in range(args.repeats):
        found += noticed(repeat, args.requests, args.answers, args.pool)
    measured = len(found[0].ttft_ms)
    answers = f"answers of {args.answers.replace('/', ' to ')} tokens"
    show(figure_table(f"One user, {args.pool:,} tokens, {measured} requests a repeat, {answers}", found, FIGURES))
    show(f"Means, repeats: {args.repeats}; ratios to stock lru: geometric means ± 95 % intervals. Metrics are on.\n")


def asked(repeat: int, requests: int, answers: str) -> Load:
    """So many requests, other ones in each repeat.

    Raises:
        TraceError: ``answers`` is no range of lengths.
    """
    times = math.ceil(requests / 400)
    size = f"conversations={times * CONVERSATIONS},arrival_span_s={times * SPAN_S}"
    trace = open_trace(f"{TRACE},{size},answer_range={answers},seed={repeat}")
    return load_from(trace.requests[:requests], seed=2 + repeat)


def noticed(repeat: int, requests: int, answers: str, pool: int = POOL) -> list[Noticed]:
    """What a client measures of a new server of each arm.

    Args:
        answers: their least and their greatest length in tokens, as ``4/12``.

    Raises:
        ServerError, ReplayError: as of :func:`run`.
        TraceError: ``answers`` is no range of lengths.
    """
    load = asked(repeat, requests, answers)
    unmeasured = int(UNMEASURED * load.requests)
    lru, stock_tlru, _ = default_arms(THRESHOLD, NEXT_PROMPT)
    arms = [lru, stock_tlru, Arm("etlru", ("--radix-eviction", "etlru")), Arm(AGAIN, lru.flags)]
    flags = base_flags("cpu", None, pool, PAGE_SIZE)
    servers = {arm.name: server_of(arm, flags, f"bench-{arm.stem}") for arm in arms}
    found = [Noticed(name, repeat) for name in servers]
    with ExitStack() as stack:
        for starting in stack.enter_context(together(servers)).values():
            stack.enter_context(starting)
        for server in servers.values():
            warm_up(server.base_url)
            play(server.base_url, filling(pool), PACE, alive=server.alive)
        progress = stack.enter_context(Progress("latency", load.requests * len(servers), unit="requests"))

        def taken_by(one: Noticed, server: Server) -> Callable[[Sent], None]:
            def take(sent: Sent) -> None:
                progress.advance()
                if sent.number >= unmeasured:
                    one.take(sent)
                if sent.number == unmeasured - 1:
                    one.cpu_s = -_scheduler_cpu_s(server)

            return take

        targets = [
            Target(server.base_url, taken_by(one, server), server.alive)
            for one, server in zip(found, servers.values(), strict=True)
        ]
        for played in play_in_turn(targets, load, AT_ONCE):
            if played.error is not None:
                raise played.error
        for one, server in zip(found, servers.values(), strict=True):
            one.cpu_s += _scheduler_cpu_s(server)
    return found


def _scheduler_cpu_s(server: Server) -> float:
    """CPU time of a server's scheduler so far."""
    members = map(psutil.Process, live_members(server.process_group))
    times = [member.cpu_times() for member in members if "scheduler" in " ".join(member.cmdline())]
    return float(sum(each.user + each.system for each in times))
