"""Plays a load against one server in real time: when a turn is due its prompt is sent, and every result is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp

from eval.errors import RunError
from eval.live.replay.client import RequestResult, close_session, send, session
from eval.live.replay.prompts import Api, Prompts
from eval.live.replay.schedule import Loop, Pace, Schedule
from eval.live.replay.turns import Load, TurnId

__all__ = ["NOT_SENT", "Api", "Loop", "Pace", "ReplayError", "Sent", "play"]

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
    """Play ``load``; every turn becomes one result, given to ``on_sent`` as it comes in.

    After a failed turn the rest of its conversation cannot be sent, as its history is unknown, nor what it would have
    started. Those turns are reported as failed too.

    Args:
        sessions: requests name their sessions (``session_id``), which are closed where the load says so.
        retries: of a request that reaches no server.
        timeout_s: longest silence within a stream.
        alive: tells whether the server still runs; asked after a failure.

    Raises:
        ReplayError: the server is gone, or does not close a session. Earlier results went to ``on_sent``.
        OSError: ``on_sent`` raised it.
    """
    player = _Player(base_url, load, pace, api, sessions, retries, timeout_s, on_sent, alive)
    try:
        asyncio.run(player.run())
    except* (ReplayError, OSError) as group:  # OSError: of ``on_sent``, as when the disk is full
        raise _first(group) from None
    return player.sent


class _Player:
    def __init__(
        self,
        base_url: str,
        load: Load,
        pace: Pace,
        api: Api,
        sessions: bool,
        retries: int,
        timeout_s: float,
        on_sent: Callable[[Sent], None],
        alive: Callable[[], bool],
    ) -> None:
        self._base_url, self._sessions, self._retries, self._timeout_s = base_url, sessions, retries, timeout_s
        self._on_sent, self._alive = on_sent, alive
        self._conversations = load.by_index()
        self._prompts = Prompts(load, api)
        self._schedule = Schedule(load, pace, self._send, self._skip, _clock)
        self.sent: list[Sent] = []
        self._numbers = 0
        self._unreached = 0
        self._connection: aiohttp.ClientSession

    async def run(self) -> None:
        async with session(self._timeout_s) as self._connection:
            self._start = _clock()
            await self._schedule.run()

    async def _send(self, one: TurnId) -> bool:
        """Send one turn; returns whether it was answered."""
        conversation = self._conversations[one.conversation]
        request = self._prompts.ask(one)
        if self._sessions:
            request = replace(request, session=f"conversation {conversation.session_index}")
        place, sent_s = self._next_place(), _clock() - self._start
        result = await send(self._connection, self._base_url, request, self._retries)
        self._prompts.take(one, result)
        if _reached_nobody(result):
            await asyncio.sleep(_LAST_BREATH_S)
        self._report(Sent(place, sent_s, result, conversation.session_index))
        closes = conversation.turns[one.turn].closes and conversation.index == conversation.session_index
        if request.session is not None and closes and result.error is None:
            error = await close_session(self._connection, self._base_url, request.session)
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
        self._on_sent(sent)
        result = sent.result
        if result.error is None or result.error == NOT_SENT:
            self._unreached = 0 if result.error is None else self._unreached
            return
        self._unreached = self._unreached + 1 if _reached_nobody(result) else 0
        if not self._alive():
            raise ReplayError(f"the server ended while it served: {result.error}")
        if self._unreached >= _GONE_AFTER:
            raise ReplayError(f"{self._unreached} requests in a row reached no server; the last: {result.error}")


def _reached_nobody(result: RequestResult) -> bool:
    """Whether a request was sent and no server answered it."""
    return result.error not in (None, NOT_SENT) and result.ttft_ms is None and not result.error.startswith("HTTP ")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
