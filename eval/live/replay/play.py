"""Plays a load in real time: when a turn is due its prompt is sent, and every result is reported.

Against one server, or against several that are asked in turn: each request is sent to all of them, one after the other,
before the next one is. So a machine that is slower for a minute is slower for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import aiohttp

from eval.errors import RunError
from eval.live.replay.client import RequestResult, close_session, send, session
from eval.live.replay.prompts import Api, Prompts
from eval.live.replay.schedule import Loop, Pace, Schedule
from eval.live.replay.turns import Load, TurnId

__all__ = ["NOT_SENT", "Api", "Loop", "Manner", "Pace", "ReplayError", "Sent", "Target", "play", "play_in_turn"]

NOT_SENT = "not sent: an earlier turn of the conversation failed"

_clock = time.perf_counter
_GONE_AFTER = 5  # requests in a row that reach no server
_LAST_BREATH_S = 0.3  # a connection ends before its process does: wait so long before asking whether it runs


class ReplayError(RunError):
    """The server cannot be played against, or not any more; one line."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A result, and its place in the run."""

    number: int  # in the order of sending, from 0
    sent_s: float  # since the run began
    result: RequestResult
    session: int  # index of the conversation that began its session


@dataclass(frozen=True, slots=True)
class Manner:
    """How a load is played."""

    pace: Pace
    api: Api = "generate"
    sessions: bool = False
    """Requests name their sessions (``session_id``), which are closed where the load says so."""

    retries: int = 0
    """Of a request that reaches no server."""

    timeout_s: float = 120.0
    """Longest silence within a stream."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is played against."""

    base_url: str
    on_sent: Callable[[Sent], None] = lambda _: None
    """Is given every result as it comes in."""

    alive: Callable[[], bool] = lambda: True
    """Tells whether the server still runs; asked after a failure."""


def play(
    base_url: str,
    load: Load,
    pace: Pace,
    *,
    api: Api = "generate",
    sessions: bool = False,
    retries: int = 0,
    timeout_s: float = 120.0,
    on_sent: Callable[[Sent], None] = lambda _: None,
    alive: Callable[[], bool] = lambda: True,
) -> list[Sent]:
    """Play ``load`` against one server; every turn becomes one result. See :class:`Manner` and :class:`Target`.

    After a failed turn the rest of its conversation cannot be sent, as its history is unknown, nor what it would have
    started. Those turns are reported as failed too.

    Raises:
        ReplayError: the server is gone, or does not close a session. Earlier results went to ``on_sent``.
        OSError: ``on_sent`` raised it.
    """
    player = _Player(Target(base_url, on_sent, alive), load, Manner(pace, api, sessions, retries, timeout_s))
    error = asyncio.run(player.run())
    if error is not None:
        raise error
    return player.sent


def play_in_turn(targets: Sequence[Target], load: Load, manner: Manner) -> list[Exception | None]:
    """Play ``load`` against all of them: none gets its next request before each has answered this one.

    One request is under way at any time. Which server is asked first is drawn for each, always alike. One target alone
    is just played against.

    Args:
        manner: for several, of the ordered loop with one user.

    Returns:
        for each target what :func:`play` would have raised. The others go on without it.
    """
    players = [_Player(target, load, manner) for target in targets]
    if len(players) > 1:
        assert (manner.pace.loop, manner.pace.users) == ("ordered", 1)
        turnstile = _Turnstile(players)
        for player in players:
            player.turnstile = turnstile

    async def run() -> list[Exception | None]:
        return await asyncio.gather(*(player.run() for player in players))

    return asyncio.run(run())


class _Turnstile:
    """Lets each of several players send one request in a round, one player at a time."""

    def __init__(self, players: Sequence[_Player]) -> None:
        self._opens = {player: asyncio.Event() for player in players}
        self._round: list[_Player] = []  # who has not sent its request, the next one first
        self._random = Random(0)
        self._begin_round()

    @contextlib.asynccontextmanager
    async def turn_of(self, player: _Player) -> AsyncIterator[None]:
        """Wait until it may send a request, and end that."""
        await self._opens[player].wait()
        try:
            yield
        finally:
            self._opens[player].clear()
            self._pass(player)

    def leave(self, player: _Player) -> None:
        """It sends nothing any more."""
        del self._opens[player]
        if player in self._round:
            self._pass(player)

    def _pass(self, player: _Player) -> None:
        self._round.remove(player)
        if self._round:
            self._opens[self._round[0]].set()
        elif self._opens:
            self._begin_round()

    def _begin_round(self) -> None:
        self._round = self._random.sample(list(self._opens), len(self._opens))
        self._opens[self._round[0]].set()


class _Player:
    turnstile: _Turnstile | None = None
    """What it waits at with each request."""

    def __init__(self, target: Target, load: Load, manner: Manner) -> None:
        self._target, self._manner = target, manner
        self._conversations = load.by_index()
        self._prompts = Prompts(load, manner.api)
        self._schedule = Schedule(load, manner.pace, self._send, self._skip, _clock)
        self.sent: list[Sent] = []
        self._numbers = 0
        self._unreached = 0
        self._connection: aiohttp.ClientSession

    async def run(self) -> Exception | None:
        """Play; returns why it could not go on, if so."""
        failed = None
        try:
            async with session(self._manner.timeout_s) as self._connection:
                self._start = _clock()
                await self._schedule.run()
        except* (ReplayError, OSError) as group:  # OSError: of ``on_sent``, as when the disk is full
            failed = _first(group)
        finally:
            if self.turnstile is not None:
                self.turnstile.leave(self)
        return failed

    async def _send(self, one: TurnId) -> bool:
        """Send one turn, when it is this player's turn; returns whether it was answered."""
        async with contextlib.nullcontext() if self.turnstile is None else self.turnstile.turn_of(self):
            return await self._send_now(one)

    async def _send_now(self, one: TurnId) -> bool:
        conversation = self._conversations[one.conversation]
        request = self._prompts.ask(one)
        if self._manner.sessions:
            request = replace(request, session=f"conversation {conversation.session_index}")
        place, sent_s = self._next_place(), _clock() - self._start
        result = await send(self._connection, self._target.base_url, request, self._manner.retries)
        self._prompts.take(one, result)
        if _reached_nobody(result):
            await asyncio.sleep(_LAST_BREATH_S)
        self._report(Sent(place, sent_s, result, conversation.session_index))
        closes = conversation.turns[one.turn].closes and conversation.index == conversation.session_index
        if request.session is not None and closes and result.error is None:
            error = await close_session(self._connection, self._target.base_url, request.session)
            if error is not None:
                raise ReplayError(f"the server does not close a session: {error}")
        return result.error is None

    def _skip(self, one: TurnId) -> None:
        """Report a turn that is not sent."""
        missing = RequestResult(*one, 0, 0, None, 0.0, 0, error=NOT_SENT)
        session_index = self._conversations[one.conversation].session_index
        self._report(Sent(self._next_place(), _clock() - self._start, missing, session_index))

    def _next_place(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _report(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._target.on_sent(sent)
        result = sent.result
        if result.error is None or result.error == NOT_SENT:
            self._unreached = 0 if result.error is None else self._unreached
            return
        self._unreached = self._unreached + 1 if _reached_nobody(result) else 0
        if not self._target.alive():
            raise ReplayError(f"the server ended while it served: {result.error}")
        if self._unreached >= _GONE_AFTER:
            raise ReplayError(f"{self._unreached} requests in a row reached no server; the last: {result.error}")


def _reached_nobody(result: RequestResult) -> bool:
    """Whether a request was sent and no server answered it."""
    return result.error not in (None, NOT_SENT) and result.ttft_ms is None and not result.error.startswith("HTTP ")


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
