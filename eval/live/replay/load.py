"""From a trace to what is sent: conversations of turns, what each turn adds to the real history, and what it waits for.

If every prompt of a conversation begins with the context before it, it is played with the server's own answers: a
prompt is all that was said before, and then what the user adds. Other prompts are the trace's own. A block trace does
not know its answers, and some histories were cut or replaced. Where the trace names no conversations, blocks tell which
request continues which.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from eval.live.replay.turns import Conversation, Load, Segment, Turn, TurnId, Units
from eval.traces.request import Request
from eval.traces.sessions import Start, starts


def load_from(requests: Sequence[Request], seed: int = 0, vocabulary: int = 256) -> Load:
    """The load that a trace stands for."""
    named = _named(requests)
    waits, sessions = starts(named), _sessions(named)
    chains: dict[str, list[int]] = {}  # numbers of requests by conversation
    for number, request in enumerate(named):
        chains.setdefault(request.conversation or "", []).append(number)
    ids = [TurnId(0, 0)] * len(named)
    for index, chain in enumerate(chains.values()):
        for turn, number in enumerate(chain):
            ids[number] = TurnId(index, turn)
    firsts: dict[str, int] = {}  # by session, the index of the conversation that began it
    conversations = (
        Conversation(
            index,
            requests[chain[0]].arrival_s - requests[0].arrival_s,
            tuple(_turns(index, chain, named, waits, ids)),
            firsts.setdefault(sessions[name], index),
            requests[chain[0]].session is not None,
        )
        for index, (name, chain) in enumerate(chains.items())
    )
    return Load(tuple(conversations), seed, vocabulary)


def first_conversations(requests: Sequence[Request], count: int) -> list[Request]:
    """The requests of the first so many conversations to start; a session with its subagents is one."""
    named = _named(requests)
    sessions = _sessions(named)
    kept = set(list(dict.fromkeys(sessions.values()))[:count])
    return [each for each, known in zip(requests, named, strict=True) if sessions[known.conversation or ""] in kept]


def gathered(requests: Sequence[Request], within_s: float, seed: int) -> list[Request]:
    """The same sessions, closer together: all start within so many seconds, at times that are drawn.

    What happens within a session keeps its times. So a run of minutes has many sessions at once, while the clock of the
    server still sees a tool return in seconds and a user in minutes.
    """
    named, rng = _named(requests), random.Random(seed)
    sessions, shifts = _sessions(named), dict[str, float]()
    moved = []
    for request, known in zip(requests, named, strict=True):
        session = sessions[known.conversation or ""]
        if session not in shifts:
            shifts[session] = rng.uniform(0.0, within_s) - request.arrival_s
        # With its name: in another order blocks might tell of other conversations.
        moved.append(replace(known, arrival_s=request.arrival_s + shifts[session]))
    return sorted(moved, key=lambda each: each.arrival_s)


def until(requests: Sequence[Request], seconds: float) -> list[Request]:
    """What comes within so many seconds of the first request."""
    return [each for each in requests if each.arrival_s - requests[0].arrival_s < seconds]


def _turns(
    index: int, chain: Sequence[int], requests: Sequence[Request], waits: Sequence[Start], ids: Sequence[TurnId]
) -> Iterable[Turn]:
    before: Request | None = None
    asked = [requests[number] for number in chain]
    by_blocks = isinstance(asked[0].conversation, _ByBlocks)
    whole = by_blocks or not all(after.continues(last) for last, after in pairwise(asked))
    for turn, (number, request) in enumerate(zip(chain, asked, strict=True)):
        start = waits[number]
        waits_for = {ids[each] for each in ([] if start.after is None else [start.after, *start.also])}
        yield Turn(
            segments=_segments(request, None if whole else before, own=(1 << 64) + (index << 24) + turn),
            whole=whole,
            output_tokens=max(request.output_tokens, 1),
            wait_s=0.0 if start.after is None else start.wait_s,
            messages=request.messages,
            closes=request.closes,
            after=tuple(sorted(each for each in waits_for if each.conversation != index)),
            arrival_s=request.arrival_s - requests[0].arrival_s,
            place=number,
            answer=_answer(request),
            kept_tokens=None if request.output_tokens else 0,
        )
        before = request


def _segments(request: Request, before: Request | None, own: int) -> Units:
    """Units of the prompt after the context of the turn before, or all of them.

    A partial block at the end belongs to no other request: its unit is ``own``, beyond the ids of blocks (64 bits).
    """
    known = len(before.context.ids) if before is not None else 0
    rest = request.prompt_tokens - len(request.prompt)
    return Units(request.prompt, known, Segment(own, rest) if rest else None)


def _answer(request: Request) -> tuple[Segment, ...]:
    """The units of the context that are the answer, if they are all of it and nothing else."""
    if len(request.prompt) != request.prompt_tokens:
        return ()
    whole = len(request.context) == request.prompt_tokens + request.output_tokens
    if not whole or request.prompt.common(request.context) != len(request.prompt):
        return ()
    return tuple(Units(request.context, len(request.prompt.ids)))


def _sessions(named: Sequence[Request]) -> dict[str, str]:
    """The session of each conversation: as the trace names it, else that of the conversation that started it."""
    found: dict[str, str] = {}
    for request in named:
        name = request.conversation or ""
        if name not in found:
            own = (
                f"conversation {name}" if request.parent is None else found.get(request.parent, f"conversation {name}")
            )
            found[name] = own if request.session is None else f"session {request.session}"
    return found


class _ByBlocks(str):
    """The name of a conversation that the trace does not name."""


def _named(requests: Sequence[Request]) -> list[Request]:
    """Each request with the name of its conversation.

    Where the trace does not name it, a request continues the longest earlier one whose whole blocks are its own first
    blocks, unless another request has continued that one already.
    """
    tails: dict[int, _ByBlocks] = {}  # conversations that were not continued yet, by their last block
    named: list[Request] = []
    for number, request in enumerate(requests):
        if request.conversation is not None:
            named.append(request)
            continue
        blocks = request.prompt.ids
        parent = next((block for block in reversed(blocks) if block in tails), None)
        name = tails.pop(parent) if parent is not None else _ByBlocks(f"#{number}")
        named.append(replace(request, conversation=name))
        if blocks:
            tails[blocks[-1]] = name
    return named
