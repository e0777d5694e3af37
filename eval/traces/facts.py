"""Figures of a trace that no policy changes: lengths, waits, how answers end, and what could be reused at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eval.traces.request import Request

UNKNOWN = "not told"


@dataclass(frozen=True, slots=True)
class Facts:
    """Lengths in tokens, times in seconds."""

    requests: int
    conversations: int  # first turns: requests that continue no earlier one
    subagents: int  # conversations that another one started
    subagent_requests: int
    sessions: int | None  # None: the trace names none
    duration_s: float
    prompt_tokens: Sequence[int]  # by request, history included
    new_tokens: Sequence[int]  # by request: of its prompt, what an infinite cache would not hold
    output_tokens: Sequence[int]
    waits_s: Sequence[float]  # between a turn and the one it continues, from arrival to arrival
    tool_waits_s: Sequence[float]  # those that end with the result of a tool
    user_waits_s: Sequence[float]  # those that end with a user's text
    idle_s: Sequence[float]  # from the end of an answer to the next request, where ends were recorded
    distinct_tokens: int  # of all contexts: what an infinite cache would hold in the end
    conversation_of: Sequence[int]  # by request: the number of its conversation, from 0 in order of first turns
    stops: Counter[str]  # requests by how their answer ended
    inputs: Counter[str]  # requests by what their input ends with
    models: Counter[str]
    categories: Counter[str]

    @property
    def hit_ratio(self) -> float:
        """Share of all prompt tokens that an infinite cache would hold."""
        asked = sum(self.prompt_tokens)
        return (asked - sum(self.new_tokens)) / max(asked, 1)


def facts(requests: Sequence[Request]) -> Facts:
    """Count a trace.

    A request continues the last one of its conversation. In a block trace, which names none, it continues the deepest
    earlier request whose blocks it begins with all of; one block alone does not tell, many prompts begin with it.
    """
    seen: set[int] = set()
    last: dict[str | int, int] = {}  # number of the last turn, by conversation or by the last block of its prompt
    conversation_of: list[int] = []
    conversations = 0
    waits: dict[str, list[float]] = {"": [], "tool": [], "user": []}
    new: list[int] = []
    distinct = 0
    for number, request in enumerate(requests):
        known, new_tokens, distinct_tokens = _met(request, seen)
        new.append(new_tokens)
        distinct += distinct_tokens
        ids = request.prompt.ids
        before = _before(request, ids, known, last)
        if before is None:
            conversation_of.append(conversations)
            conversations += 1
        else:
            conversation_of.append(conversation_of[before])
            wait_s = request.arrival_s - requests[before].arrival_s
            waits[""].append(wait_s)
            if request.input is not None:
                waits[request.input].append(wait_s)
        if request.conversation is not None:
            last[request.conversation] = number
        elif len(ids) > 1:
            last[ids[-1]] = number
    started = {request.conversation for request in requests if request.parent is not None}
    sessions = {request.session for request in requests if request.session is not None}
    return Facts(
        requests=len(requests),
        conversations=conversations,
        subagents=len(started),
        subagent_requests=sum(request.parent is not None for request in requests),
        sessions=len(sessions) or None,
        duration_s=requests[-1].arrival_s - requests[0].arrival_s,
        prompt_tokens=[request.prompt_tokens for request in requests],
        new_tokens=new,
        output_tokens=[request.output_tokens for request in requests],
        waits_s=waits[""],
        tool_waits_s=waits["tool"],
        user_waits_s=waits["user"],
        idle_s=[request.wait_s for request in requests if request.wait_s is not None],
        distinct_tokens=distinct,
        conversation_of=conversation_of,
        stops=Counter(request.stop or UNKNOWN for request in requests),
        inputs=Counter(request.input or UNKNOWN for request in requests),
        models=Counter(request.model for request in requests if request.model is not None),
        categories=Counter(request.category for request in requests if request.category is not None),
    )


def _met(request: Request, seen: set[int]) -> tuple[int, int, int]:
    """Put a context into an infinite cache of blocks. Returns the blocks of it that were there, the tokens of the
    prompt that were not, and those of the context that were not."""
    ids, ends, context = request.prompt.ids, request.prompt.ends, request.context
    known = len(ids)
    while known and ids[known - 1] not in seen:
        known -= 1
    new = request.prompt_tokens - (ends[known - 1] if known else 0)
    while known < len(context.ids) and context.ids[known] in seen:
        known += 1
    seen.update(context.ids[known:])
    return known, new, len(context) - (context.ends[known - 1] if known else 0)


def _before(request: Request, ids: Sequence[int], known: int, last: dict[str | int, int]) -> int | None:
    """The number of the turn that a request continues."""
    if request.conversation is not None:
        return last.get(request.conversation)
    for number in range(min(known, len(ids)) - 1, 0, -1):
        found = last.get(ids[number])
        if found is not None:
            return found
    return None
