"""`python -m eval hostile`: what one hostile client can do to another tenant's cached conversations.

The trace is the honest tenant. An attacker sends conversations of its own into the same cache, at a constant rate: the
prompt tokens a second of the honest tenant, times ``--strength``. The attacker chooses their shape:

- *flood*: unique long prompts that nobody continues;
- *return*: conversations that return again and again, so that they are always recent;
- *bait*: conversations that return a few times, like those worth keeping, then bring one long document and are over.

Each kind is tried in several sizes and paces. The table shows the worst of them, figure by figure, as an attacker would
try them all. All figures are of the honest tenant's requests only.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from eval.arguments import (
    NEXT_PROMPT_HELP,
    THRESHOLD_HELP,
    Several,
    add_page_size,
    add_policies,
    median_weight,
    number,
    tokens,
    weight_text,
)
from eval.caches.knowledge import TraceKnowledge
from eval.caches.real import REAL_CACHES
from eval.simulate.cells import Cell
from eval.simulate.evaluate import cache_for
from eval.simulate.grid import check_weights
from eval.studies.figures import Figures, figures
from eval.terminal import Progress, show, table
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.request import Path, Request
from radix_tlru import Config

HONEST = "chat-mix:conversations=600,arrival_span_s=720,wait_median_s=45,wait_sigma=1"
"""Chat as in the demo, at the pace of people: a new conversation every 1.2 s, some 45 s between its turns."""

SERVED = ("sglang-lru", "sglang-tlru", "real-tlru", "real-etlru")
SIMULATED = ("lru", "tlru", "etlru")

STOCK = ("sglang-lru", "lru")
"""The baseline: the first of these that was asked for."""

ALONE = "alone"

NEXT_PROMPT, ANSWER = 16, 16
"""Tokens of those turns of an attacker that only keep a conversation recent."""


@dataclass(frozen=True, slots=True)
class Attack:
    """The conversations of an attacker, all alike. Lengths in tokens."""

    kind: str
    first_prompt: int
    turns: int = 1
    wait_s: float = 0.0  # between two turns
    last_prompt: int = NEXT_PROMPT  # of the last turn, if there are several

    @property
    def prompts(self) -> list[int]:
        """Tokens that each turn adds."""
        between = [NEXT_PROMPT] * (self.turns - 2)
        return [self.first_prompt, *between, self.last_prompt][: self.turns]


def attacks(capacity: int) -> list[Attack]:
    """The attacks that are tried on a cache of ``capacity`` tokens."""
    return [
        *(Attack("flood", capacity // share) for share in (64, 16, 4)),
        *(
            Attack("return", capacity // share, turns=20, wait_s=wait_s)
            for share, wait_s in itertools.product((64, 16), (10.0, 60.0))
        ),
        *(
            Attack("bait", NEXT_PROMPT, turns, wait_s=5.0, last_prompt=capacity // share)
            for share, turns in itertools.product((64, 16), (3, 6))
        ),
    ]


def requests_of(attack: Attack, rate: float, until_s: float, from_s: float = 0.0) -> Iterator[Request]:
    """The attacker's requests between two times (s), in order of arrival: ``rate`` prompt tokens a second."""
    prompts = list(itertools.accumulate(prompt + ANSWER for prompt in attack.prompts))
    spacing_s = sum(end - ANSWER for end in prompts) / rate
    before = int((attack.turns - 1) * attack.wait_s / spacing_s) + 1  # conversations under way at the start
    births = (from_s + number * spacing_s for number in itertools.count(-before))
    conversations = itertools.takewhile(lambda birth_s: birth_s < until_s, births)
    made = [
        turn
        for number, birth_s in enumerate(conversations)
        for turn in _conversation(attack, number, birth_s)
        if from_s <= turn.arrival_s < until_s
    ]
    yield from sorted(made, key=lambda request: request.arrival_s)


def _conversation(attack: Attack, number: int, birth_s: float) -> Iterator[Request]:
    units = itertools.count(-1 - number * 2 * attack.turns, -1)  # below zero: no trace has such units
    context = Path((), ())
    for turn, added in enumerate(attack.prompts):
        prompt = context.plus(added, next(units))
        context = prompt.plus(ANSWER, next(units))
        arrival_s = birth_s + turn * attack.wait_s
        yield Request(arrival_s, f"attacker-{number}", prompt, context, len(prompt), ANSWER)


def damage(honest: Sequence[Request], attack: Attack | None, strength: float, cell: Cell) -> Figures:
    """The honest tenant's figures in a cache that it shares with the attacker."""
    from_s, until_s = honest[0].arrival_s, honest[-1].arrival_s
    hostile: Iterator[Request] = iter(())
    if attack is not None:
        rate = strength * sum(request.prompt_tokens for request in honest) / (until_s - from_s)
        hostile = requests_of(attack, rate, until_s, from_s)
    sent = heapq.merge(((True, one) for one in honest), ((False, one) for one in hostile), key=lambda s: s[1].arrival_s)
    cache = cache_for(cell, TraceKnowledge(honest))
    cached = []
    for is_honest, request in sent:
        found = cache.request(request)
        if is_honest:
            cached.append(found)
    return figures(honest, cached, cell.threshold)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command; strengths are tried one after the other."""
    add_trace_arguments(parser, default=HONEST)
    add_policies(parser, (*SIMULATED, *REAL_CACHES), SERVED)
    add = parser.add_argument
    add("--capacity", type=tokens, default=131_072, metavar="TOKENS", help="(default: %(default)s)")
    add("--threshold", type=tokens, default=768, metavar="TOKENS", help=f"{THRESHOLD_HELP} (default: %(default)s)")
    add(
        "--next-prompt-estimate",
        type=tokens,
        default=128,
        metavar="TOKENS",
        help=f"{NEXT_PROMPT_HELP} (default: %(default)s)",
    )
    add("--median-weight", type=median_weight, metavar="W", help="w (default: that of a server)")
    add_page_size(parser, default=16)
    add(
        "--strength",
        action=Several,
        type=number(above=0, most=1_000),
        default=[0.25, 1.0],
        metavar="S",
        help="prompt tokens of the attacker for one of the honest tenant (default: 0.25 1)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a table for each strength."""
    if args.page_size > args.capacity // 64:
        raise ValueError(f"--page-size {args.page_size}: must be at most a 64th of --capacity {args.capacity}")
    Config(threshold=args.threshold, next_prompt_estimate=args.next_prompt_estimate, median_weight=args.median_weight)
    check_weights(args.policy, [args.median_weight])
    honest = trace_source(args).open().requests
    if honest[0].arrival_s == honest[-1].arrival_s:
        raise ValueError(f"--trace {args.trace}: lasts no time, in which an attacker could do anything")
    kinds = _by_kind(attacks(args.capacity))
    steps = len(args.strength) * len(args.policy) * sum(map(len, kinds.values()))
    with Progress("runs", steps) as progress:
        for strength in args.strength:
            blocks = [_block(kind, tried, honest, strength, args, progress) for kind, tried in kinds.items()]
            show(
                f"Uncached tokens of {len(honest):,} honest requests; {args.capacity:,} tokens of cache, page "
                f"{args.page_size}, ξ = {args.threshold:,}, w = {weight_text(args.median_weight)}.\n"
                f"An attacker sends {strength:g} times as many prompt tokens; the worst of what it tries:\n",
                *blocks,
            )
    return 0


def _by_kind(tried: Sequence[Attack]) -> dict[str, list[Attack | None]]:
    kinds: dict[str, list[Attack | None]] = {ALONE: [None]}
    for attack in tried:
        kinds.setdefault(attack.kind, []).append(attack)
    return kinds


def _block(
    kind: str,
    tried: Sequence[Attack | None],
    honest: Sequence[Request],
    strength: float,
    args: argparse.Namespace,
    progress: Progress,
) -> Table:
    """The worst that attacks of one kind do, policy by policy, against stock lru's worst."""
    worst: dict[str, Figures] = {}
    settings = (args.capacity, args.threshold, args.next_prompt_estimate, args.median_weight, args.page_size)
    for policy in args.policy:
        cell = Cell("honest", policy, *settings)
        done = []
        for attack in tried:
            done.append(damage(honest, attack, strength, cell))
            progress.advance()
        worst[policy] = Figures(*(max(column) for column in zip(*done, strict=True)))
    name = f"{kind} ({len(tried)})" if kind != ALONE else ALONE
    result = table("", (f"{name:14}", "p50", "", "p95", "", "TEL", ""))
    stock = next((policy for policy in STOCK if policy in worst), "")
    for policy, figure in worst.items():
        base = None if policy == stock else worst.get(stock)
        cells: list[str] = []
        for field in ("p50", "p95", "tel"):
            value, before = getattr(figure, field), getattr(base, field, 0.0)
            cells += [f"{value:,.0f}", f"{value / before - 1:+.1%}" if before else ""]
        result.add_row(policy, *cells)
    return result
