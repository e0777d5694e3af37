"""What first tokens took, as seen by the process that takes requests in and sends answers out.

A prefill is timed in the scheduler, and a client waits for more. Only this process sees the whole, from when it was
handed a request until it sent the first token. Only the scheduler sees how much of that was prefill. Both are
durations, each on one clock, so clocks need not agree. What this process measured travels to the scheduler with a later
request. So it needs no path of its own, and every rank is told the same at the same request.

Only *uncontended* requests count: no other waited for its first token while they did. Their time has no prefills of
other requests, which no eviction can mend. It has decode steps, rounds of the scheduler and detokenizing. Only streamed
requests count, because of others nobody sees a first token. SGLang's health checks are no requests here: a scheduler
drops most of them, and a report with one would not arrive.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from radix_tlru.objective.overhead import FirstToken

__all__ = ["FirstTokens", "dump_first_tokens", "load_first_tokens"]


def dump_first_tokens(first_tokens: tuple[FirstToken, ...]) -> str | None:
    """As one string, which :func:`load_first_tokens` reads; None if there are none."""
    return json.dumps(first_tokens) if first_tokens else None


def load_first_tokens(text: str | None) -> tuple[FirstToken, ...]:
    """From what :func:`dump_first_tokens` wrote."""
    return tuple(FirstToken(*each) for each in json.loads(text)) if text else ()


class FirstTokens:
    """Watches the requests of one ``TokenizerManager``.

    Args:
        states: of the requests in flight, by id: its ``rid_to_state``.
        replicas: data-parallel ones. Between two arrivals at most one uncontended request got its token. It is
            reported with so many requests, as the next may go to another replica than its own did.
    """

    def __init__(self, states: Mapping[str, Any], replicas: int) -> None:
        self._states = states
        self._waiting: deque[tuple[str, Any]] = deque()  # ids, states; without a first token when last looked at
        self._uncontended = False  # whether the last one was the only one that waited, when it arrived
        self._reports: deque[FirstToken | None] = deque(maxlen=replicas)  # one for each of the last requests

    def count_arrival(self, request: str, *, streams: bool) -> tuple[FirstToken, ...]:
        """A request is on its way to the scheduler. Returns what to report with it."""
        report = None
        while self._waiting:
            waiting, state = self._waiting.popleft()
            times = state.time_stats
            if self._states.get(waiting) is state and not (times.first_token_time or times.finished_time):
                # This request is not alone, whoever else waits: to look at all would cost N requests N² looks.
                self._waiting.append((waiting, state))  # last, so that those behind it are looked at in their turn
                break
            # response_sent_to_client_time is 0 if it was aborted, or its token is being sent.
            if self._uncontended and times.response_sent_to_client_time:
                waited_s = times.response_sent_to_client_time - times.created_time
                report = FirstToken(waiting, round(waited_s * 1000.0, 3))
        self._uncontended = streams and not self._waiting
        self._waiting.append((request, self._states[request]))
        self._reports.append(report)
        return tuple(each for each in self._reports if each is not None)
