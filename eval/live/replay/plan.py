"""What a run plays: the load, the arms, the pace, and how each arm's server is reached."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.hosts import Launch, disaggregated, launched, routed
from eval.live.replay.load import first_conversations, gathered, load_from, until
from eval.live.replay.play import Manner
from eval.live.replay.rows import Run
from eval.live.replay.schedule import Pace
from eval.live.replay.shrink import shrunk
from eval.live.replay.turns import Load
from eval.trace_arguments import trace_source

USERS = 3
"""Of the loops that have users, unless another number is given."""


@dataclass(frozen=True)
class Plan:
    """All that a run needs but its folder."""

    load: Load
    arms: Sequence[Arm]
    common: Sequence[str]  # flags of every server that is started
    run: Run
    manner: Manner
    launch: Launch = launched
    together: bool = False  # the servers of a repeat start at once


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags mean. Writes nothing but the demo model, if one is needed.

    Raises:
        ValueError: something asked for cannot be done.
    """
    arms = [*args.url, *args.arm] or default_arms(args.threshold, args.next_prompt_estimate)
    users = USERS if args.users is None else args.users
    for is_asked, refusal in _refusals(args, arms, users):
        if is_asked:
            raise ValueError(refusal)
    name, load = _load(args)
    common: list[str] = []
    if any(arm.url is None for arm in arms):
        common = [*base_flags(args.device, args.model, args.pool, args.page_size), *args.server_flags]
    sessions = args.sessions or (load.names_sessions and not (args.router or args.disaggregated))
    return Plan(
        load=load,
        arms=arms,
        common=common,
        run=run_of(
            name,
            load,
            arms,
            common,
            repeats=args.repeats,
            api=args.api,
            sessions=sessions,
            loop=args.loop,
            speed=args.speed,
            users=users,
            turn_s=args.in_turn,
            threshold=args.threshold,
            next_prompt_estimate=args.next_prompt_estimate,
            slo_ms=args.slo,
            servers=_servers(args),
        ),
        manner=Manner(Pace(args.loop, args.speed, users), args.api, sessions, args.retries, args.timeout),
        launch=routed(args.router) if args.router else disaggregated if args.disaggregated else launched,
        together=args.together,
    )


def _refusals(args: argparse.Namespace, arms: Sequence[Arm], users: int) -> list[tuple[bool, str]]:
    """What does not go together: whether it is asked for, and how it is refused."""
    names = ", ".join(arm.name for arm in arms)
    no_server_starts = all(arm.url is not None for arm in arms)
    of_started = "of servers that are started, and those of --url run already; leave it out"
    starts_its_own = "starts its own servers; give the router's own address as --url"
    one_gpu = "the servers of all arms would share one GPU; leave it out with --device gpu"
    has_parts = bool(args.router or args.disaggregated)
    one_by_one = args.in_turn == 0
    return [
        (len({arm.name for arm in arms}) < len(arms), f"--arm, --url: {names}: every arm needs a name of its own"),
        (len({arm.stem for arm in arms}) < len(arms), f"--arm, --url: {names}: two of them would name the same file"),
        (no_server_starts and bool(args.model), f"--model: {of_started}"),
        (no_server_starts and bool(args.pool), f"--pool: {of_started}"),
        (no_server_starts and bool(args.server_flags), f"--server-flags: {of_started}"),
        (bool(args.router and args.url), f"--router: {starts_its_own}"),
        (args.disaggregated and bool(args.url), f"--disaggregated: {starts_its_own}"),
        (args.disaggregated and bool(args.router), "--disaggregated: has one server of each kind; leave out --router"),
        (
            args.sessions and has_parts,
            "--sessions: SGLang's router does not pass them on; leave out --router and --disaggregated",
        ),
        (
            args.together and (has_parts or bool(args.url)),
            "--together: starts one server an arm, and idle pairs keep cores busy; leave out --url, --router and "
            "--disaggregated",
        ),
        (
            args.users is not None and args.loop == "open",
            f"--users {users}: with --loop open requests come by their times; leave it out",
        ),
        (
            one_by_one and (args.loop, users) != ("ordered", 1),
            "--in-turn: one request is under way at any time; needs --loop ordered and --users 1, or seconds of a turn",
        ),
        (one_by_one and bool(args.settle), "--in-turn: a server's own time is not that of the run; leave out --settle"),
        (args.in_turn is not None and args.device == "gpu", f"--in-turn: {one_gpu}"),
        (args.together and args.device == "gpu", f"--together: {one_gpu}"),
        (
            args.disaggregated and importlib.util.find_spec("nixl") is None,
            "--disaggregated: needs NIXL; install '.[transfer]'",
        ),
    ]


def _load(args: argparse.Namespace) -> tuple[str, Load]:
    """What is played, named after the trace and what was made of it."""
    trace = trace_source(args).open(texts=args.api == "chat")
    if any(request.thought_tokens for request in trace.requests):
        raise ValueError(f"--trace {args.trace}: has thoughts, which a replay cannot have a model think")
    if args.shrink > 1 and any(request.messages for request in trace.requests):
        raise ValueError(f"--shrink {args.shrink}: texts are sent as they are; leave it out, or --api chat")
    played, name = trace.requests, [trace.name]
    if args.conversations:
        played = first_conversations(played, args.conversations)
    if args.shrink > 1:
        name.append(f"lengths / {args.shrink}")
    if args.starts_within is not None:
        played = gathered(played, args.starts_within, args.seed)
        name.append(f"all sessions start within {args.starts_within:g} s")
    if args.until is not None:
        played = until(played, args.until)
        name.append(f"its first {args.until:g} s")
    load = load_from(shrunk(played, args.shrink), args.seed, args.token_ids)
    if args.api == "chat" and any(c.turns[0].whole for c in load.conversations):
        raise ValueError(f"--api chat: {trace.name} has blocks, no texts; play it with --api generate")
    return ", ".join(name), load


def _servers(args: argparse.Namespace) -> str:
    """What an arm consists of; empty: one server."""
    if args.disaggregated:
        return "a prefill and a decode server"
    return f"{args.router} workers behind a router" if args.router else ""


def run_of(name: str, load: Load, arms: Sequence[Arm], common: Sequence[str], **settings: Any) -> Run:
    """What a folder knows its run by."""
    digest = hashlib.sha256(repr((load, tuple(common))).encode()).hexdigest()[:16]
    flags = {arm.name: arm.url or shlex.join(arm.flags) for arm in arms}
    return Run(trace=name, requests=load.requests, digest=digest, arms=flags, **settings)


def machine_facts() -> dict[str, Any]:
    """The machine that the clients run on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }
