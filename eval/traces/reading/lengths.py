"""Traces of lengths alone: which tokens a prompt shares is not in them, so contexts are rebuilt from sessions.

A prompt of a session is taken to begin with the whole context of the one before it. Without sessions nothing is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from eval.traces.request import Path, Request, StopReason

_MOST = 0.9  # of the turns of sessions: so many must be longer than the context before them to hold it

_EMPTY = Path((), ())


@dataclass(frozen=True, slots=True)
class Call:
    """One request of which lengths (tokens) and times (s) are known."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    stop: StopReason | None = None
    model: str | None = None
    category: str | None = None
    answer_s: float | None = None
    wait_s: float | None = None


def holds_history(sessions: Sequence[Sequence[Call]]) -> bool:
    """Whether input lengths are those of whole prompts, and not of the new message alone.

    They are if nine in ten later turns are at least as long as the input and the answer before them.
    """
    pairs = [pair for session in sessions for pair in pairwise(session)]
    longer = sum(after.input_tokens >= before.input_tokens + before.output_tokens for before, after in pairs)
    return longer >= _MOST * len(pairs)


def rebuilt(
    conversation: str | None, calls: Sequence[Call], units: count[int], whole: bool, context: Path = _EMPTY
) -> list[Request]:
    """The requests of one session, in its order.

    Args:
        conversation: its name; None: a single request of which nothing is known.
        calls: of the session.
        units: numbers for texts that no other prompt has.
        whole: input lengths are those of whole prompts. One that is shorter than the context before it starts anew.
        context: of the session before the first of them.
    """
    made: list[Request] = []
    for call in calls:
        known = len(context)
        added = call.input_tokens - known if whole else call.input_tokens
        if added < 0:
            context, added = _EMPTY, call.input_tokens
        prompt = _and(context, added, units)
        context = _and(prompt, call.output_tokens, units)
        made.append(
            Request(
                call.arrival_s,
                conversation,
                prompt,
                context,
                len(prompt),
                call.output_tokens,
                stop=call.stop,
                session=conversation,
                model=call.model,
                category=call.category,
                answer_s=call.answer_s,
                wait_s=call.wait_s,
            )
        )
    return made


def _and(path: Path, tokens: int, units: count[int]) -> Path:
    """A path, and a unit of so many tokens behind it."""
    return path.plus(tokens, next(units)) if tokens else path
