"""What a policy may be told of a whole trace beyond what a server sees: its future, its rates, its prompt lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from eval.caches.futures import futures
from eval.caches.models import StepPrompt
from eval.caches.simulator import Span
from eval.traces.request import Request


class Return(NamedTuple):
    """A context whose end is looked up again."""

    added: int  # tokens that the next prompt adds
    wait_s: float  # from this request to the next one


class TraceKnowledge:
    """Facts of a trace, each worked out when it is first asked for.

    The methods take the number of a request, from 0. They are what :class:`~eval.caches.simulator.SimulatedCache`
    takes as ``knowledge``.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests

    @cached_property
    def futures(self) -> list[list[Span]]:
        """The futures of all contexts; see :func:`~eval.caches.futures.futures`."""
        return futures(self.requests)

    def future(self, number: int) -> Sequence[Span]:
        """The futures of a context, span by span."""
        return self.futures[number]

    def end(self, number: int) -> Sequence[Span]:
        """The future of a context that is taken up again as a whole or not at all."""
        return self.future(number)[-1:]

    def turn_rate(self, number: int) -> Sequence[Span]:
        """(λ_i in 1/s, time of this turn in s); λ_i is 1 for all where the trace does not tell."""
        request = self.requests[number]
        return [Span(len(request.context), (request.return_rate or 1.0, request.arrival_s))]

    @cached_property
    def last_arrival_s(self) -> float:
        """When the trace ends, in s."""
        return self.requests[-1].arrival_s if self.requests else 0.0

    @cached_property
    def returns(self) -> list[Return]:
        """Of each context whose end is looked up again, what the next prompt adds and when it comes."""
        found = []
        for request, spans in zip(self.requests, self.futures, strict=True):
            if spans and not math.isinf(spans[-1].known.at):
                later = self.requests[int(spans[-1].known.at) - 1]
                added = later.prompt_tokens - len(request.context)
                found.append(Return(added, later.arrival_s - request.arrival_s))
        return found

    @cached_property
    def next_prompts(self) -> StepPrompt | None:
        """The distribution of Q over the trace; None if no context returns."""
        return StepPrompt.of([one.added for one in self.returns]) if self.returns else None

    @cached_property
    def death_rate(self) -> float:
        """μ (1/s) of an exponential model with the trace's own share p of returns and mean wait: (1 − p) / wait."""
        wait = sum(one.wait_s for one in self.returns) / max(len(self.returns), 1)
        return (1 - len(self.returns) / len(self.requests)) / wait if wait else 0.0


class PartOfTrace(TraceKnowledge):
    """The same for a replica, which is sent only some of the requests.

    The next use of a token is the next in the whole trace, whichever replica serves it.

    Args:
        whole: knowledge of the whole trace.
        numbers: the n-th request of the replica is number ``numbers[n]`` of the trace. May grow while it is used.
    """

    def __init__(self, whole: TraceKnowledge, numbers: Sequence[int]) -> None:
        super().__init__(whole.requests)
        self._whole, self._numbers = whole, numbers

    @cached_property
    def futures(self) -> list[list[Span]]:
        """Those of the whole trace, worked out once for all parts."""
        return self._whole.futures

    def future(self, number: int) -> Sequence[Span]:
        """The futures of a context, span by span."""
        return self._whole.future(self._numbers[number])

    def turn_rate(self, number: int) -> Sequence[Span]:
        """(λ_i in 1/s, time of this turn in s)."""
        return self._whole.turn_rate(self._numbers[number])
