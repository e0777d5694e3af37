"""The flags of `python -m eval replay`, and what it reports."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from eval.arguments import (
    NEXT_PROMPT_HELP,
    THRESHOLD_HELP,
    add_page_size,
    number,
    one_of,
    output_folder,
    shell_words,
    tokens,
    whole,
)
from eval.live.replay.arms import parse_arm, parse_url
from eval.live.replay.parts import play_all
from eval.live.replay.plan import USERS, Plan, machine_facts, plan_of
from eval.live.replay.rows import Folder
from eval.live.replay.summary import summarise
from eval.live.replay.table import comparison_table, markdown, sentences, server_sentences
from eval.terminal import show
from eval.trace_arguments import add_trace_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is played, against what, how, and where the results go."""
    add_trace_arguments(parser)
    add = parser.add_argument
    add("--conversations", type=whole(1), metavar="N", help="the first N only; a session with its subagents is one")
    add(
        "--starts-within",
        type=number(above=0),
        metavar="S",
        help="all sessions start within so many seconds of the trace's clock, at times that are drawn; what happens "
        "within a session keeps its times",
    )
    add("--until", type=number(above=0), metavar="S", help="of the trace's clock: what comes later is left out")
    add("--shrink", type=whole(1), default=1, metavar="N", help="all lengths of the trace, divided by N (default: 1)")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the tokens that are drawn (default: %(default)s)")
    add("--token-ids", type=whole(1), default=256, metavar="N", help="tokens are drawn from ids 0 to N-1 (256)")

    add_page_size(parser, default=16)

    servers = parser.add_argument_group("servers")
    add = servers.add_argument
    add(
        "--arm", type=parse_arm, action="append", default=[], metavar="NAME=FLAGS", help="a server to start; repeatable"
    )
    add("--url", type=parse_url, action="append", default=[], metavar="NAME=URL", help="one that runs; repeatable")
    add(
        "--device",
        type=one_of(("cpu", "gpu")),
        default="cpu",
        metavar="D",
        help="of servers that are started: cpu, gpu",
    )
    add("--model", type=Path, help="of servers that are started (default: the tiny demo model)")
    add("--pool", type=whole(1), metavar="TOKENS", help="KV pool (default: 20,480 on a cpu, else all there is)")
    add("--server-flags", type=shell_words, default=[], metavar="FLAGS", help="further ones, of all arms")
    add("--router", type=whole(1), metavar="N", help="N workers of each arm behind SGLang's own router")
    add("--together", action="store_true", help="start all at once; an idle one needs memory, not a core")
    add(
        "--in-turn",
        type=number(above=0),
        nargs="?",
        const=0.0,
        metavar="S",
        help="all arms are up and have turns of S s, so that a machine that is slow for a while is slow for all; "
        "without S: turns of one request, with --loop ordered and --users 1",
    )
    add("--disaggregated", action="store_true", help="each arm's server prefills alone, for a stock one that decodes")

    add = parser.add_argument_group("load").add_argument
    add(
        "--sessions",
        action="store_true",
        help="requests name their session even where the trace does not, and clients close it where the trace says "
        "so; servers with --enable-session-radix-cache heed it",
    )
    add("--api", type=one_of(("generate", "chat")), default="generate", metavar="API", help="generate (tokens) or chat")
    add(
        "--loop",
        type=one_of(("ordered", "open", "closed")),
        metavar="LOOP",
        default="open",
        help="ordered: the trace's order, --users at once, its clock waits for the server; open: by its times; "
        "closed: --users one conversation after another; in both a call waits for the answer before and for its tool "
        "(default: %(default)s)",
    )
    add("--speed", type=number(above=0), default=1.0, metavar="X", help="of the trace's clock (default: 1)")
    add("--users", type=whole(1), metavar="N", help=f"of ordered and closed (default: {USERS})")
    add("--repeats", type=whole(1), default=1, metavar="N", help="of every arm, another one first in each (default: 1)")
    add("--retries", type=whole(0), default=2, metavar="N", help="of a request that reaches no server (default: 2)")
    add("--timeout", type=number(above=0), default=120.0, metavar="S", help="longest silence of a stream (120)")

    add = parser.add_argument_group("objective").add_argument
    add("--threshold", type=tokens, default=2048, metavar="TOKENS", help=f"{THRESHOLD_HELP} (default: %(default)s)")
    add("--next-prompt-estimate", type=tokens, default=200, metavar="TOKENS", help=f"{NEXT_PROMPT_HELP} (default: 200)")
    add("--slo", type=number(above=0), metavar="MS", help="TTFT objective, to count requests that miss it")
    add(
        "--settle",
        type=number(least=0),
        default=0.0,
        metavar="S",
        help="what is sent in S s at first is in no figure",
    )
    parser.add_argument(
        "--out", type=output_folder, required=True, metavar="DIR", help="a run that was cut off goes on there"
    )


def run(args: argparse.Namespace) -> int:
    """Play what is missing and report; returns 1 if something failed or is still missing then.

    Raises:
        ValueError, OSError: nothing can be played as asked.
        NoResultError: no request of an arm succeeded.
    """
    plan = plan_of(args)
    folder = Folder(args.out, plan.run, machine_facts(), args.settle)
    whole_run = play_all(plan, folder)
    return max(finish(plan, folder), int(not whole_run))


def finish(plan: Plan, folder: Folder) -> int:
    """Print the table and write the page; returns 1 if a request failed or nothing was played."""
    arms = summarise(folder)
    if not arms:
        return 1
    from eval.live.replay.page import write_page  # matplotlib: not before there is something to draw

    show(comparison_table(arms), *sentences(arms), *server_sentences(folder))
    (folder.path / "table.md").write_text(markdown(arms) + "\n")
    (folder.path / "arms.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(arms))
    show(*write_page(folder, plan.load, arms))
    failed = [arm for arm in arms if arm.errors]
    for arm in failed:
        first = next(row.error for _, row in folder.finished_rows(arm.name) if row.error)
        show(f"{arm.name}: {arm.errors} requests failed and are in no figure above; the first: {first}")
    retried = sum(arm.retries for arm in arms)
    if retried:
        show(f"{retried} retries")
    return int(bool(failed))
