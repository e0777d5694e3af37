"""What each request waits for, so that a live replay can play sessions as they were.

A call comes a while after the answer before it in its conversation: that is the time of a tool, or of a user who reads.
The first call of a subagent comes after the call that started it. A call of an agent that had subagents at work comes
after the last of them. All others start by the clock. Servers answer faster or slower than the one that was recorded,
so what is kept is the wait after an answer's end, not the time of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.traces.reading.times import TOKEN_S
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Start:
    """When a request is sent."""

    after: int | None  # number of the request whose answer it waits for, the last to end in the trace; None: of none
    wait_s: float  # from the end of that answer; of none: from the start of the trace
    also: tuple[int, ...] = ()  # other answers that it waited for: elsewhere one of these may be the last to end


def starts(requests: Sequence[Request], token_s: float = TOKEN_S) -> list[Start]:
    """The start of every request, by its number.

    Args:
        requests: in order of arrival.
        token_s: seconds a token of an answer whose end was not recorded; it ends before the next request that waits
            for it.
    """
    first_s = requests[0].arrival_s if requests else 0.0
    ends_s = _ends(requests, token_s)
    last: dict[str, int] = {}  # by conversation, its last request so far
    children: dict[str, set[str]] = {}  # by conversation, those that it started
    found: list[Start] = []
    for number, request in enumerate(requests):
        name = request.conversation
        before = [] if name is None else [last[each] for each in (name, *children.get(name, ())) if each in last]
        if name is not None and name not in last and request.parent in last:
            before = [last[request.parent]]
        done = [each for each in before if ends_s[each] <= request.arrival_s]
        after = max(done or before, key=lambda each: ends_s[each], default=None)
        if after is None:
            found.append(Start(None, request.arrival_s - first_s))
        else:
            told = request.wait_s if name is not None and last.get(name) == after else None
            wait_s = max(request.arrival_s - ends_s[after], 0.0) if told is None else told
            # What had ended when the conversation was last heard of, its last request waited for already.
            since_s = requests[last[name]].arrival_s if name in last else 0.0
            own = last.get(name or "")
            also = tuple(each for each in done if each != after and (each == own or ends_s[each] > since_s))
            found.append(Start(after, wait_s, also))
        if name is not None:
            last[name] = number
            if request.parent is not None:
                children.setdefault(request.parent, set()).add(name)
    return found


def _ends(requests: Sequence[Request], token_s: float) -> list[float]:
    """When each answer ended: as recorded, else by its length, and no later than the conversation goes on."""
    following: dict[str, float] = {}  # by conversation, the arrival of the request that comes next
    ends_s: list[float] = []
    for request in reversed(requests):
        lasts_s = request.output_tokens * token_s if request.answer_s is None else request.answer_s
        end_s = request.arrival_s + lasts_s
        if request.conversation is not None:
            end_s = min(end_s, following.get(request.conversation, end_s))
            following[request.conversation] = request.arrival_s
        ends_s.append(end_s)
    return ends_s[::-1]
