"""The future of a context: when each of its tokens is looked up next, and by how long a prompt. For oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from eval.caches.simulator import Span
from eval.traces.request import Request


class Future(NamedTuple):
    """The next use of a token."""

    at: float  # number of the request that uses it; the first request is 1; infinity: never
    prompt_tokens: int  # of that request


NEVER = Future(math.inf, 0)
"""The future of a token that is not used again."""


def futures(requests: Sequence[Request]) -> list[list[Span]]:
    """For each request, the futures of its context after it has been served, span by span from the start.

    A token deeper in a context is never used sooner than one above it, so the uses of the spans come later and later.
    """
    seen: dict[int, Future] = {}
    spans: list[list[Span]] = []
    for number in range(len(requests), 0, -1):
        request = requests[number - 1]
        spans.append(_spans(request, seen))
        now = Future(number, request.prompt_tokens)
        for unit in request.prompt.ids:
            seen[unit] = now
    spans.reverse()
    return spans


def _spans(request: Request, seen: dict[int, Future]) -> list[Span]:
    """The context of a request in spans of one future each."""
    spans: list[Span] = []
    for unit, end in zip(request.context.ids, request.context.ends, strict=True):
        future = seen.get(unit, NEVER)
        if spans and spans[-1].known is future:
            spans[-1] = Span(end, future)
        else:
            spans.append(Span(end, future))
    return spans
