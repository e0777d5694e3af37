"""Which turn of its conversation a request is, for rules that ask: by its conversation's name, else by its prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eval.traces.reading.times import TOKEN_S
from eval.traces.request import Request


class Turn(NamedTuple):
    """A turn of a conversation."""

    number: int  # in its conversation; the first is 1
    end_s: float  # when its answer ended
    answer: range  # tokens of the next prompt that are of its answer, if that was not cached
    wait_s: float | None = None  # since the answer before it; None: it is the first
    answer_before: range = range(0)  # of the turn before it


class Turns:
    """The last turn of each conversation.

    A request without the name of a conversation goes on with the longest context that its prompt begins with and that
    no other request has gone on with.
    """

    def __init__(self) -> None:
        self._last: dict[str | int, Turn] = {}  # by conversation, or by the last page of a context

    def serve(self, request: Request, names: Sequence[int], prompt: int) -> Turn:
        """Enter a request. ``names``: the pages of its context, of which the first ``prompt`` are of its prompt."""
        before = self._take(request, names[:prompt])
        # An answer whose end was not recorded took 20 ms a token.
        lasts_s = request.output_tokens * TOKEN_S if request.answer_s is None else request.answer_s
        turn = Turn(
            before.number + 1 if before else 1,
            request.arrival_s + lasts_s,
            range(len(request.context), request.prompt_tokens + request.output_tokens),
            _wait_s(request, before) if before else None,
            before.answer if before else range(0),
        )
        if request.conversation is not None:
            self._last[request.conversation] = turn
        elif names:
            self._last[names[-1]] = turn
        return turn

    def _take(self, request: Request, names: Sequence[int]) -> Turn | None:
        """The turn that a request follows, which none will follow again."""
        if request.conversation is not None:
            return self._last.pop(request.conversation, None)
        return next((self._last.pop(name) for name in reversed(names) if name in self._last), None)


def _wait_s(request: Request, before: Turn) -> float:
    """From the end of an answer to the request that follows it."""
    return max(request.arrival_s - before.end_s, 0.0) if request.wait_s is None else request.wait_s
