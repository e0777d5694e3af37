"""What only hindsight knows of a context: when each of its tokens is looked up next, and by how long a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from eval.caches.simulator import Span
from eval.traces.request import Request

__all__ = ["NEVER", "Future", "futures"]


class Future(NamedTuple):
    """The next use of a token: the number of that request (the first is 1) and the tokens of its prompt."""

    at: float
    prompt_tokens: int


NEVER = Future(math.inf, 0)


def futures(requests: Sequence[Request]) -> list[list[Span]]:
    """For each request the futures of its context once it has been served, from its start to its end.

    A token deeper in a context is never used sooner than one above it, so the spans' uses come later and later.
    """
    seen: dict[int, Future] = {}
    spans: list[list[Span]] = []
    for number in range(len(requests), 0, -1):
        request = requests[number - 1]
        spans.append(_merge(request, seen))
        now = Future(number, request.prompt_tokens)
        for unit in request.prompt.ids:
            seen[unit] = now
    spans.reverse()
    return spans


def _merge(request: Request, seen: dict[int, Future]) -> list[Span]:
    spans: list[Span] = []
    for unit, end in zip(request.context.ids, request.context.ends, strict=True):
        future = seen.get(unit, NEVER)
        if spans and spans[-1].known is future:
            spans[-1] = Span(end, future)
        else:
            spans.append(Span(end, future))
    return spans
