"""One conversation while it is generated: its context, its clock, and the request of each call.

A generator of sessions is a function that moves a ``Talk`` on: add what a user or a tool says, wait, ask. It yields
the requests. Times follow from the answers: a token of one takes TOKEN_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import count
from typing import Protocol

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from eval.traces.parameters import LONGEST
from eval.traces.reading.times import TOKEN_S
from eval.traces.request import Path, Request, StopReason

_UNITS = 1 << 24  # of one session; those below the first session's are shared by all


class Sessions(Protocol):
    """Parameters of a kind of sessions that start at uniformly random times within a span."""

    @property
    def sessions(self) -> int: ...
    @property
    def span_s(self) -> float: ...
    @property
    def seed(self) -> int: ...


class Talk:
    """A conversation: of a user, or of one agent of a session.

    Attributes:
        at_s: now, seconds.
        path: the context so far.
        has_results: its last unit is the result of a tool.
    """

    def __init__(self, session: int, at_s: float, category: str | None = None) -> None:
        self.at_s = at_s
        self.path = Path((), ())
        self.category = category
        self.has_results = False
        self._session, self._conversation = str(session), f"{session}/0"
        self._parent: str | None = None
        self._units = count((session + 1) * _UNITS)
        self._agents = count(1)
        self._answered_s: float | None = None

    def add(self, tokens: int) -> None:
        """More of the next prompt."""
        self.path = self._and(self.path, tokens)
        self.has_results = False

    def add_result(self, tokens: int) -> None:
        """What a tool says."""
        self.path = self._and(self.path, tokens)
        self.has_results = True

    def add_shared(self, tokens: int, number: int) -> None:
        """The system prompt of that number and the tools: the first unit of every session that has it."""
        self.path = Path((number,), (tokens,))

    def wait(self, seconds: float) -> None:
        """Nothing for so long."""
        self.at_s += seconds

    def ask(self, answer: int, stop: StopReason = "stop", thought: int = 0) -> Request:
        """The request of a call; its answer becomes context, and it is that much later.

        Args:
            answer: tokens, without the thoughts before it.
            stop: how it ends.
            thought: tokens before the answer.
        """
        prompt = self.path
        self.path = self._and(self._and(prompt, thought), answer)
        lasts_s = (thought + answer) * TOKEN_S
        waited_s = None if self._answered_s is None else max(self.at_s - self._answered_s, 0.0)
        request = Request(
            self.at_s,
            self._conversation,
            prompt,
            self.path,
            len(prompt),
            thought + answer,
            thought_tokens=thought,
            stop=stop,
            input="tool" if self.has_results else "user",
            session=self._session,
            parent=self._parent,
            category=self.category,
            answer_s=lasts_s,
            wait_s=waited_s,
        )
        self.at_s += lasts_s
        self._answered_s = self.at_s
        return request

    def subagent(self, path: Path) -> Talk:
        """A conversation of the same session that starts now, with a context of its own."""
        made = copy(self)  # numbers of units and of agents are those of the session
        made._conversation, made._parent = f"{self._session}/{next(self._agents)}", self._conversation
        made.path, made.has_results, made._answered_s = path, False, None
        return made

    def replaced(self, first: int, tokens: int) -> None:
        """The unit of this index is another one from now on, so all that comes behind it is another prefix."""
        ids, ends = list(self.path.ids), list(self.path.ends)
        change = tokens - (ends[first] - (ends[first - 1] if first else 0))
        ids[first:] = [next(self._units) for _ in ids[first:]]
        ends[first:] = [end + change for end in ends[first:]]
        self.path = Path(tuple(ids), tuple(ends))

    def _and(self, path: Path, tokens: int) -> Path:
        return path.plus(tokens, next(self._units)) if tokens else path


def talks(kind: Sessions, session: Callable[[Talk, Generator], Iterable[Request]]) -> Iterator[Request]:
    """The requests of all sessions of a kind in order of arrival; ``session`` moves a new conversation on."""
    starts_s = uniform_starts(kind.sessions, kind.span_s, kind.seed)
    return play(starts_s, kind.seed, lambda index, start_s, rng: session(Talk(index, start_s), rng))


def play(
    starts_s: Iterable[float], seed: int, session: Callable[[int, float, Generator], Iterable[Request]]
) -> Iterator[Request]:
    """The requests of all sessions in order of arrival; each session has a stream of random numbers of its own.

    Args:
        starts_s: of the sessions.
        seed: of all of them.
        session: from (its number, its start in s, its random numbers) to its requests.
    """
    starts = list(starts_s)
    streams = SeedSequence(seed).spawn(len(starts))
    made = [
        request
        for index, (start_s, stream) in enumerate(zip(starts, streams, strict=True))
        for request in session(index, start_s, default_rng(stream))
    ]
    yield from sorted(made, key=lambda request: request.arrival_s)


def uniform_starts(sessions: int, span_s: float, seed: int) -> list[float]:
    """Starts at random within a span, in order."""
    rng = default_rng(SeedSequence(seed, spawn_key=(1 << 20,)))
    return np.sort(rng.uniform(0.0, span_s, sessions)).tolist()  # type: ignore[no-any-return]


def drawn_tokens(rng: Generator, median: float, sigma: float) -> int:
    """A log-normal length, 1 to 1,000,000 tokens."""
    return max(1, min(round(float(rng.lognormal(math.log(median), sigma))), LONGEST))


def drawn_s(rng: Generator, median: float, sigma: float) -> float:
    """A log-normal time, s."""
    return float(rng.lognormal(math.log(median), sigma))
