"""Other traffic of the same kind, made of one trace: does a verdict hold there, too?

==========================  ============================================================================================
variant                     which requests, and when
==========================  ============================================================================================
``half-1``, ``half-2``      those of half of the sessions, which are drawn; those of the others
``moved-1``, ``moved-2``    all; each session begins when another one did, which is drawn
``slow``                    all; times, waits and answers take four times as long
``first-turns``             those that continue no other: nobody comes back, so there is next to nothing to win
``nudged-1``, …             all; each session begins up to ten seconds earlier or later, which is drawn
==========================  ============================================================================================

A session is that of the trace. Where the trace names none it is a conversation, with those of its subagents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from eval.traces.facts import facts
from eval.traces.request import Request, TraceError
from eval.traces.trace import Trace, in_order

FIRST_TURNS = "first-turns"

SLOWER = 4
"""How many times as long everything takes in ``slow``."""

NUDGED = "nudged-"
"""How the names of traces begin in which sessions begin a little earlier or later; a seed follows."""

_NUDGE_S = 10.0  # far below a session, and above the time between two: their requests meet in another order


def variant_of(trace: Trace, name: str) -> Trace:
    """The variant of a trace. It is named as a generated trace is by its parameters: ``NAME:half-1``.

    Args:
        name: one of VARIANTS, or NUDGED and a number.

    Raises:
        TraceError: no request is left.
    """
    full_name = f"{trace.name}{',' if ':' in trace.name else ':'}{name}"
    nudged = name.startswith(NUDGED)
    make = partial(_nudged, int(name.removeprefix(NUDGED))) if nudged else VARIANTS[name]
    requests = in_order(make(trace.requests))
    if not requests:
        raise TraceError(f"{full_name}: holds no request")
    return replace(trace, name=full_name, requests=requests)


def sessions_of(requests: Sequence[Request]) -> list[int]:
    """By request, the number of its session, from 0 in order of first requests."""
    numbers: dict[int | str, int] = {}
    session_of: dict[str | None, int | str] = {}  # by the name of a conversation
    found = []
    for request, conversation in zip(requests, facts(requests).conversation_of, strict=True):
        # A trace may name the parent of a subagent in its first request alone.
        session = session_of.get(request.conversation, session_of.get(request.parent, conversation))
        if request.session is not None:
            session = request.session
        if request.conversation is not None:
            session_of.setdefault(request.conversation, session)
        found.append(numbers.setdefault(session, len(numbers)))
    return found


def at_other_times(requests: Sequence[Request], *, slower: float = 1.0, later_s: float = 0.0) -> list[Request]:
    """All requests, where everything takes so many times as long, and begins so many seconds later."""

    def longer(seconds: float | None) -> float | None:
        return None if seconds is None else slower * seconds

    return [
        replace(
            request,
            arrival_s=slower * request.arrival_s + later_s,
            answer_s=longer(request.answer_s),
            wait_s=longer(request.wait_s),
            return_rate=None if request.return_rate is None else request.return_rate / slower,
        )
        for request in requests
    ]


def _half(second: bool, requests: Sequence[Request]) -> list[Request]:
    """Requests of half of the sessions; the second half has one more if they are odd."""
    session_of = sessions_of(requests)
    sessions = sorted(set(session_of))
    first = set(random.Random(0).sample(sessions, len(sessions) // 2))
    return [request for request, session in zip(requests, session_of, strict=True) if (session in first) != second]


def _moved(seed: int, requests: Sequence[Request]) -> list[Request]:
    """All requests; starts of sessions are dealt out anew."""
    session_of = sessions_of(requests)
    starts: dict[int, float] = {}
    for request, session in zip(requests, session_of, strict=True):
        starts.setdefault(session, request.arrival_s)
    dealt = random.Random(seed).sample([*starts.values()], len(starts))
    return _later(requests, session_of, [to - start for start, to in zip(starts.values(), dealt, strict=True)])


def _nudged(seed: int, requests: Sequence[Request]) -> list[Request]:
    """All requests; each session begins a little earlier or later."""
    session_of, rng = sessions_of(requests), random.Random(seed)
    return _later(requests, session_of, [rng.uniform(-_NUDGE_S, _NUDGE_S) for _ in set(session_of)])


def _later(requests: Sequence[Request], session_of: Sequence[int], later: Sequence[float]) -> list[Request]:
    """All requests, those of each session by so many seconds later."""
    return [
        replace(request, arrival_s=request.arrival_s + later[session])
        for request, session in zip(requests, session_of, strict=True)
    ]


def _first_turns(requests: Sequence[Request]) -> list[Request]:
    first: dict[int, Request] = {}  # by conversation
    for request, conversation in zip(requests, facts(requests).conversation_of, strict=True):
        first.setdefault(conversation, request)
    return [*first.values()]


VARIANTS: dict[str, Callable[[Sequence[Request]], list[Request]]] = {
    "half-1": partial(_half, False),
    "half-2": partial(_half, True),
    "moved-1": partial(_moved, 1),
    "moved-2": partial(_moved, 2),
    "slow": partial(at_other_times, slower=SLOWER),
    FIRST_TURNS: _first_turns,
}
"""What makes each variant of requests in order of arrival. What it returns need not be in order."""
