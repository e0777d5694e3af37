"""Plays a load in real time: when a turn is due its prompt is sent, and every result is reported.

Against one server, or against several in turn: see :mod:`eval.live.replay.turnstile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp

from eval.command import RunError
from eval.live.replay.client import RequestResult, close_session, send, session
from eval.live.replay.prompts import Api, Prompts
from eval.live.replay.schedule import Pace, Schedule
from eval.live.replay.turns import Load, TurnId
from eval.live.replay.turnstile import Place, Turnstile

NOT_SENT = "not sent: an earlier turn of the conversation failed"

_GONE_AFTER = 5  # requests in a row that reach no server
_LAST_BREATH_S = 0.3  # a connection ends before its process does: wait so long before asking whether it runs


class ReplayError(RunError):
    """The server cannot be played against, or not any more; one line."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A result, and its place in the run."""

    number: int  # in the order of sending, from 0
    sent_s: float  # since the run began, by the clock of the server's turns
    result: RequestResult
    session: int  # index of the conversation that began its session
    busy_s: float  # for which the server had been busy when it was sent


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
    (played,) = play_in_turn([Target(base_url, on_sent, alive)], load, Manner(pace, api, sessions, retries, timeout_s))
    if played.error is not None:
        raise played.error
    return played.sent


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a load that was played against one target."""

    sent: list[Sent]
    busy_s: float
    """While at least one request was under way."""

    error: Exception | None
    """Why it could not go on, if so: what :func:`play` would have raised."""


def play_in_turn(targets: Sequence[Target], load: Load, manner: Manner, turn_s: float = 0.0) -> list[Played]:
    """Play ``load`` against all targets, each in its turn; if one fails the others go on without it.

    Args:
        manner: where a turn is one request, and there are several targets, of the ordered loop with one user.
        turn_s: how long a turn lasts, s; 0: for one request.
    """
    assert len(targets) < 2 or turn_s or (manner.pace.loop, manner.pace.users) == ("ordered", 1)

    async def run() -> list[Played]:
        places = Turnstile(len(targets), turn_s).places
        players = [_Player(target, load, manner, place) for target, place in zip(targets, places, strict=True)]
        return await asyncio.gather(*(player.run() for player in players))

    return asyncio.run(run())


class _Player:
    def __init__(self, target: Target, load: Load, manner: Manner, place: Place) -> None:
        self._target, self._manner, self._place = target, manner, place
        self._conversations = load.by_index()
        self._prompts = Prompts(load, manner.api)
        self._schedule = Schedule(load, manner.pace, self._send, self._skip, place.clock)
        self._sent: list[Sent] = []
        self._numbers = 0
        self._unreached = 0
        self._connection: aiohttp.ClientSession

    async def run(self) -> Played:
        failed = None
        try:
            async with session(self._manner.timeout_s) as self._connection:
                await self._schedule.run()
        except* (ReplayError, OSError) as group:  # OSError: of ``on_sent``, as when the disk is full
            failed = _first(group)
        finally:
            self._place.leave()
        return Played(self._sent, self._place.busy_s, failed)

    async def _send(self, one: TurnId) -> bool:
        """Send one turn, when it is this player's turn; returns whether it was answered."""
        async with self._place.request():
            return await self._send_now(one)

    async def _send_now(self, one: TurnId) -> bool:
        conversation = self._conversations[one.conversation]
        request = self._prompts.ask(one)
        if self._manner.sessions:
            request = replace(request, session=f"conversation {conversation.session_index}")
        place, sent_s, busy_s = self._next_place(), self._place.clock.now(), self._place.busy_s
        result = await send(self._connection, self._target.base_url, request, self._manner.retries)
        self._prompts.take(one, result)
        if not result.is_answered:
            await asyncio.sleep(_LAST_BREATH_S)
        self._report(Sent(place, sent_s, result, conversation.session_index, busy_s))
        await self._check_reached(result)
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
        self._report(Sent(self._next_place(), self._place.clock.now(), missing, session_index, self._place.busy_s))

    def _next_place(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _report(self, sent: Sent) -> None:
        self._sent.append(sent)
        self._target.on_sent(sent)

    async def _check_reached(self, result: RequestResult) -> None:
        """Go on after a failure only if the server still runs."""
        self._unreached = 0 if result.is_answered else self._unreached + 1
        # Who answers by HTTP runs. To ask a server at a URL takes time, in which others are answered.
        unknown = result.error is not None and not result.error.startswith("HTTP ")
        if unknown and not await asyncio.to_thread(self._target.alive):
            raise ReplayError(f"the server ended while it served: {result.error}")
        if self._unreached >= _GONE_AFTER:
            raise ReplayError(f"{self._unreached} requests in a row reached no server; the last: {result.error}")


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
