"""What first tokens waited for, as the process sees it that takes requests in and sends answers out.

A prefill is timed in the scheduler, and a client waits for more. Only this process sees the whole of it, from when it
was handed a request until it sent the first token; only the scheduler sees how much of that were prefills. Both are
durations, each on one clock, so that clocks need not agree. What was seen here goes to the scheduler with the stamp of
a later request: there is no path of its own, and every rank is told the same at the same request.

Of *lone* requests alone: no other waited for its first token from when they came to when theirs was sent. Waiting for
others' prefills is not in their time, and no eviction can mend it; decode steps, rounds of the scheduler, tokens to
text are. And streamed ones alone, for others have no first token that anybody sees.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FirstToken", "FirstTokens", "dumps", "loads"]


class FirstToken(NamedTuple):
    """What one lone request waited for."""

    request: str  # its id
    ms: float  # from when it was taken in to when its first token was sent


def dumps(told: tuple[FirstToken, ...]) -> str | None:
    """As one string, which :func:`loads` reads; None if there is nothing to tell."""
    return json.dumps(told) if told else None


def loads(text: str | None) -> tuple[FirstToken, ...]:
    """From what :func:`dumps` wrote."""
    return tuple(FirstToken(*each) for each in json.loads(text)) if text else ()


class FirstTokens:
    """Watches the requests of one ``TokenizerManager``.

    Args:
        states: of the requests in flight, by id: its ``rid_to_state``.
        replicas: data-parallel ones. Between two requests at most one lone one can have got its token; it is told of
            with so many, as the next may go to another replica than the one that knows its prefill.
    """

    def __init__(self, states: Mapping[str, Any], replicas: int) -> None:
        self._states = states
        self._waiting: dict[str, Any] = {}  # without a first token, by id
        self._lone = False  # whether the one that waits is, so far
        self._told: deque[FirstToken | None] = deque(maxlen=replicas)  # with the last requests

    def arrived(self, request: str, *, streams: bool) -> tuple[FirstToken, ...]:
        """A request is on its way to the scheduler; what to tell there with it."""
        told = None
        for waiting, state in list(self._waiting.items()):
            times = state.time_stats
            if self._states.get(waiting) is state and not (times.first_token_time or times.finished_time):
                continue
            del self._waiting[waiting]
            if self._lone and times.response_sent_to_client_time:  # 0: it was given up, or its token is being sent
                waited_s = times.response_sent_to_client_time - times.created_time
                told = FirstToken(waiting, round(waited_s * 1000.0, 3))
        self._lone = streams and not self._waiting
        self._waiting[request] = self._states[request]
        self._told.append(told)
        return tuple(each for each in self._told if each is not None)
