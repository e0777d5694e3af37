"""The command: flags, the parts one after the other, and what is written and printed of them."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eval.command import add_trace_arguments, tokens, trace_options
from eval.live.replay.arms import STARTUP_S, Arm, Host, base_flags, default_arms, facts, launched, parse_arm, parse_url
from eval.live.replay.load import Load, load_from
from eval.live.replay.play import Pace, ReplayError, Sent, play, prefill_alone, warm_up
from eval.live.replay.rows import Folder, FolderError, Part, Row, Run, risen
from eval.live.replay.summary import NoResultError, comparison_table, machine_sentences, markdown, sentences, summarise
from eval.live.server import ServerError
from eval.traces import TraceError, open_trace

__all__ = ["Plan", "add_arguments", "finish", "play_all", "run"]

TABLE_WIDTH = 112  # columns; in a narrower terminal lines wrap, but no figure is cut


@dataclass(frozen=True)
class Plan:
    """All that a run needs beside its folder."""

    load: Load
    arms: Sequence[Arm]
    common: Sequence[str]  # flags of every server that is started
    run: Run
    pace: Pace
    retries: int = 0
    timeout_s: float = 120.0
    # How the server of an arm is reached: by (arm, common flags, name of its log).
    host: Callable[[Arm, Sequence[str], str], contextlib.AbstractContextManager[Host]] = launched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is played, against what, how, and where the results go."""
    add_trace_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the tokens that are drawn (default: %(default)s)")
    parser.add_argument(
        "--token-ids", type=int, default=256, metavar="N", help="tokens are drawn from ids 0 to N-1 (default: 256)"
    )

    servers = parser.add_argument_group("servers")
    add = servers.add_argument
    add(
        "--arm", type=parse_arm, action="append", default=[], metavar="NAME=FLAGS", help="a server to start; repeatable"
    )
    add("--url", type=parse_url, action="append", default=[], metavar="NAME=URL", help="one that runs; repeatable")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="of servers that are started")
    add("--model", type=Path, help="of servers that are started (default: the tiny demo model)")
    add("--pool", type=tokens, metavar="TOKENS", help="KV pool (default: 20,480 on a cpu, else all there is)")
    add("--page-size", type=int, default=16, metavar="N", help="tokens (default: %(default)s)")
    add("--server-flags", type=shlex.split, default=[], metavar="FLAGS", help="further ones, of all arms")
    add("--router", type=int, metavar="N", help="N workers of each arm behind SGLang's own router")
    add("--disaggregated", action="store_true", help="each arm's server prefills alone, for a stock one that decodes")

    add = parser.add_argument_group("load").add_argument
    add(
        "--sessions",
        action="store_true",
        help="requests name their conversation, and its client closes it where the trace says so; servers with "
        "--enable-session-radix-cache heed it",
    )
    add("--api", choices=("generate", "chat"), default="generate", help="tokens, or chat completions")
    add(
        "--loop",
        choices=("ordered", "open", "closed"),
        default="open",
        help="ordered: the trace's order, --users at once, its clock waits for the server; open: by its times; "
        "closed: --users one conversation after another (default: %(default)s)",
    )
    add("--speed", type=float, default=1.0, metavar="X", help="of the trace's clock (default: 1)")
    add("--users", type=int, default=3, metavar="N", help="of ordered and closed (default: 3)")
    add("--repeats", type=int, default=1, metavar="N", help="of every arm, another one first in each (default: 1)")
    add("--retries", type=int, default=2, metavar="N", help="of a request that reaches no server (default: 2)")
    add("--timeout", type=float, default=120.0, metavar="S", help="longest silence of a stream (default: 120)")

    add = parser.add_argument_group("objective").add_argument
    add("--threshold", type=tokens, default=2048, metavar="TOKENS", help="ξ (default: %(default)s)")
    add("--next-prompt-estimate", type=tokens, default=200, metavar="TOKENS", help="Q̂ (default: 200)")
    add("--slo", type=float, metavar="MS", help="TTFT objective, to count who misses it")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a run that was cut off goes on there")


def run(args: argparse.Namespace) -> int:
    """Play what is missing and report; 1 if something failed or is still missing then; 2 if nothing can be played."""
    try:
        plan = _plan(args)
        folder = Folder(args.out, plan.run, machine_facts())
        whole = play_all(plan, folder)
        return max(finish(plan, folder), int(not whole))
    except NoResultError as error:  # a ValueError, as the others
        print(f"eval replay: {error}", file=sys.stderr)
        return 1
    except (ValueError, FolderError, TraceError, OSError) as error:
        print(f"eval replay: {error}", file=sys.stderr)
        return 2


def _plan(args: argparse.Namespace) -> Plan:
    for flag, value, least in (
        *(("--users", args.users, 1), ("--repeats", args.repeats, 1), ("--retries", args.retries, 0)),
        *(("--page-size", args.page_size, 1), ("--token-ids", args.token_ids, 1)),
        ("--router", 1 if args.router is None else args.router, 1),
    ):
        if value < least:
            raise ValueError(f"{flag} {value}: must be {least} or more")
    slo = 1.0 if args.slo is None else args.slo
    for flag, value in (("--speed", args.speed), ("--timeout", args.timeout), ("--slo", slo)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{flag} {value:g}: must be more than 0")
    arms = [*args.url, *args.arm] or default_arms(args.threshold, args.next_prompt_estimate)
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ValueError(f"--arm, --url: {', '.join(names)}: every arm needs a name of its own")
    if len({arm.stem for arm in arms}) < len(names):
        raise ValueError(f"--arm, --url: {', '.join(names)}: two of them would name the same file")
    for flag, asked in (("--router", args.router), ("--disaggregated", args.disaggregated)):
        if asked and args.url:
            raise ValueError(f"{flag}: starts its own servers; give the router's own address as --url")
    if args.router and args.disaggregated:
        raise ValueError("--disaggregated: has one server of each kind; leave out --router")
    if args.sessions and (args.router or args.disaggregated):
        raise ValueError("--sessions: SGLang's router does not pass them on; leave out --router and --disaggregated")
    if args.disaggregated and importlib.util.find_spec("nixl") is None:
        raise ValueError("--disaggregated: needs NIXL; install '.[transfer]'")
    trace = open_trace(**dict(trace_options(args)), texts=args.api == "chat")
    if trace.skipped:
        print(f"{trace.skipped} records skipped; the first: {trace.skip_reasons[0]}", file=sys.stderr)
    if any(request.thought_tokens for request in trace.requests):
        raise ValueError(f"--trace {args.trace}: has thoughts, which a replay cannot have a model think")
    load = load_from(trace.requests, args.seed, args.token_ids)
    if args.api == "chat" and any(c.turns[0].whole for c in load.conversations):
        raise ValueError(f"--api chat: {trace.name} has blocks, no texts; play it with --api generate")
    common: list[str] = []
    if any(arm.url is None for arm in arms):
        common = [*base_flags(args.device, args.model, args.pool, args.page_size), *args.server_flags]
    return Plan(
        load=load,
        arms=arms,
        common=common,
        run=run_of(
            trace.name,
            load,
            arms,
            common,
            repeats=args.repeats,
            api=args.api,
            sessions=args.sessions,
            loop=args.loop,
            speed=args.speed,
            users=args.users,
            threshold=args.threshold,
            next_prompt_estimate=args.next_prompt_estimate,
            slo_ms=args.slo,
            servers=_servers(args),
        ),
        pace=Pace(args.loop, args.speed, args.users),
        retries=args.retries,
        timeout_s=args.timeout,
        host=_routed(args.router) if args.router else _disaggregated if args.disaggregated else launched,
    )


def _servers(args: argparse.Namespace) -> str:
    """What an arm is, if not one server."""
    if args.disaggregated:
        return "a prefill and a decode server"
    return f"{args.router} workers behind a router" if args.router else ""


def run_of(name: str, load: Load, arms: Sequence[Arm], common: Sequence[str], **settings: Any) -> Run:
    """What a folder remembers of a run."""
    digest = hashlib.sha256(repr((load, tuple(common))).encode()).hexdigest()[:16]
    flags = {arm.name: arm.url or shlex.join(arm.flags) for arm in arms}
    return Run(trace=name, requests=load.requests, digest=digest, arms=flags, **settings)


def _routed(workers: int) -> Callable[[Arm, Sequence[str], str], contextlib.AbstractContextManager[Host]]:
    from eval.live.router import Router

    @contextlib.contextmanager
    def routed(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
        with Router([*common, *arm.flags], workers=workers, name=name, startup_s=STARTUP_S) as router:
            yield router

    return routed


@contextlib.contextmanager
def _disaggregated(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
    from eval.live.disaggregated import Disaggregated

    with Disaggregated([*common, *arm.flags], common, name=name, startup_s=STARTUP_S) as pair:
        yield pair


def machine_facts() -> dict[str, Any]:
    """Of the machine that the clients run on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


# ---- playing ----


def play_all(plan: Plan, folder: Folder) -> bool:
    """Play what the folder has not; whether it has everything then. Ctrl-C loses no row that came in."""
    arms = {arm.name: arm for arm in plan.arms}
    failures: list[str] = []
    try:
        with _progress() as progress:
            for repeat, name in folder.missing:
                bar = progress.add_task(f"{name} #{repeat + 1}: server starts", total=plan.load.requests)

                def show(text: str, bar: Any = bar, label: str = f"{name} #{repeat + 1}") -> None:
                    progress.update(bar, description=f"{label}: {text}")

                try:
                    _play_part(plan, folder, arms[name], repeat, show, lambda bar=bar: progress.advance(bar))  # type: ignore[misc]
                    show("done")
                except (ServerError, ReplayError, requests.RequestException) as error:
                    show("cut off")
                    failures.append(f"{name}, repeat {repeat + 1}: {error}")
    finally:
        for failure in failures:
            print(f"eval replay: {failure}", file=sys.stderr)
        if folder.missing:
            parts = ", ".join(f"{name} #{repeat + 1}" for repeat, name in folder.missing)
            print(
                f"eval replay: missing: {parts}. Their rows so far are in {folder.path / 'rows'}; "
                "the same command plays what is missing.",
                file=sys.stderr,
            )
    return not folder.missing


def _play_part(
    plan: Plan, folder: Folder, arm: Arm, repeat: int, show: Callable[[str], None], advance: Callable[[], None]
) -> None:
    with plan.host(arm, plan.common, f"replay-{repeat}-{arm.stem}") as host, folder.begin(arm.name, repeat) as rows:
        found = facts(host, arm)
        show("warm-up")
        warm_up(host.base_url, plan.timeout_s)
        alone = [prefill_alone(host.base_url, plan.timeout_s)]
        host.flush_cache()
        before = _metrics(host)
        show("replay")

        def keep(sent: Sent) -> None:
            rows.append(Row.of(sent))
            advance()

        start = time.perf_counter()
        play(
            host.base_url,
            plan.load,
            plan.pace,
            api=plan.run.api,  # type: ignore[arg-type]
            sessions=plan.run.sessions,
            retries=plan.retries,
            timeout_s=plan.timeout_s,
            on_sent=keep,
            alive=host.alive,
        )
        seconds = time.perf_counter() - start
        metrics = risen(_metrics(host), before)
        alone.append(prefill_alone(host.base_url, plan.timeout_s))
    folder.finish(
        Part(
            arm=arm.name,
            repeat=repeat,
            seconds=round(seconds, 3),
            facts=asdict(found),
            metrics=metrics,
            prefill_alone_ms=tuple(round(ms, 3) for ms in alone),
        )
    )


def _metrics(host: Host) -> dict[str, float]:
    with contextlib.suppress(ServerError):  # a server of somebody's without --enable-metrics
        return host.get_metrics()
    return {}


def _progress() -> Progress:
    # On stderr, so that the table alone goes where the output is sent.
    return Progress(
        TextColumn("{task.description:32}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


# ---- reporting ----


def finish(plan: Plan, folder: Folder) -> int:
    """Print the table, write the page; 1 if a request failed."""
    arms = summarise(folder)
    if not arms:
        return 1
    from eval.live.replay.page import write_page

    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    console.print(comparison_table(arms))
    for sentence in (*sentences(arms), *machine_sentences(folder)):
        console.print(sentence, soft_wrap=True, markup=False)
    (folder.path / "table.md").write_text(markdown(arms) + "\n")
    for line in write_page(folder, plan.load, arms):
        console.print(line, soft_wrap=True, markup=False)
    failed = [arm for arm in arms if arm.errors]
    for arm in failed:
        first = next(row.error for _, row in folder.finished_rows(arm.name) if row.error)
        said = f"{arm.name}: {arm.errors} requests failed and are in no figure above; the first: {first}"
        console.print(said, markup=False)
    retried = sum(arm.retries for arm in arms)
    if retried:
        console.print(f"{retried} retries")
    return int(bool(failed))
