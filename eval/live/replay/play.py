"""Plays a load against one server in real time.

========  ============================================================================================================
loop      when a turn is sent
========  ============================================================================================================
ordered   in the order of the trace, never early, at most N at once. While a turn waits for the answer before it, or for
          its place among the N, the clock of the trace stands still. So fast and slow servers see the same order, on
          which a cache depends. The clock of a request starts when it is sent, so TTFT is prefill without a queue.
open      conversations start by the trace's times; a later turn is sent its wait after the answer before it arrived
closed    N users, each with one conversation after the other; waits as in open
========  ============================================================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import aiohttp

from eval.errors import RunError
from eval.live.replay.client import Request, RequestResult, close_session, send, session
from eval.live.replay.load import Conversation, Load, Message, Turn

__all__ = ["NOT_SENT", "Api", "Loop", "Pace", "ReplayError", "Sent", "play"]

NOT_SENT = "not sent: an earlier turn of the conversation failed"

Api = Literal["generate", "chat"]
Loop = Literal["ordered", "open", "closed"]

_clock = time.perf_counter  # the time of an event loop may be taken once a round, and rounded
_GONE_AFTER = 5  # requests in a row that reach no server
_LAST_BREATH_S = 0.3  # a connection ends before its process does: wait so long before asking whether it runs


class ReplayError(RunError):
    """The server cannot be played against, or not any more; one line."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When turns are sent."""

    loop: Loop = "ordered"
    speed: float = 1.0  # of the trace's clock: 2 plays its times and waits in half the time
    users: int = 3  # closed: users; ordered: most requests at once


@dataclass(frozen=True, slots=True)
class Sent:
    """A result, and its place in the run."""

    number: int  # in the order of sending, from 0
    sent_s: float  # since the run began
    result: RequestResult


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

    After a failed turn the rest of its conversation cannot be sent, as its history is unknown. Those turns are reported
    as failed too.

    Args:
        sessions: conversations are sessions of the server, which are closed where the load says so.
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
        raise group.exceptions[0] from None
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
        self._base_url, self._load, self._pace, self._api = base_url, load, pace, api
        self._sessions, self._retries, self._timeout_s = sessions, retries, timeout_s
        self._on_sent, self._alive = on_sent, alive
        self.sent: list[Sent] = []
        self._numbers = 0
        self._unreached = 0
        self._connection: aiohttp.ClientSession

    async def run(self) -> None:
        async with session(self._timeout_s) as self._connection:
            self._start = _clock()
            await {"ordered": self._ordered, "open": self._open, "closed": self._closed}[self._pace.loop]()

    # ---- the three loops ----

    async def _ordered(self) -> None:
        slots = asyncio.Semaphore(self._pace.users)
        latest: dict[int, asyncio.Task[bool]] = {}  # by conversation
        histories = {conversation.index: _History(self._load, self._api) for conversation in self._load.conversations}
        trace_start = _clock()

        async def serve(index: int, number: int, turn: Turn) -> bool:
            try:
                return await self._turn(index, number, turn, histories[index])
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for arrival_s, conversation, number in _in_order(self._load.conversations, self._pace.speed):
                index = conversation.index
                await asyncio.sleep(trace_start + arrival_s - _clock())
                if number > 0 and not await latest[index]:
                    latest[index] = tasks.create_task(self._not_sent(index, number))
                else:
                    await slots.acquire()
                    latest[index] = tasks.create_task(serve(index, number, conversation.turns[number]))
                    # The task starts, and so the request is on its way, before the next one is looked at.
                    await asyncio.sleep(0)
                trace_start = max(trace_start, _clock() - arrival_s)

    async def _open(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for conversation in self._load.conversations:
                tasks.create_task(self._conversation(conversation, conversation.start_s / self._pace.speed))

    async def _closed(self) -> None:
        queue = iter(self._load.conversations)

        async def user() -> None:
            for conversation in queue:
                await self._conversation(conversation, 0.0)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._pace.users):
                tasks.create_task(user())

    async def _conversation(self, conversation: Conversation, start_s: float) -> None:
        await asyncio.sleep(self._start + start_s - _clock())
        history, answered = _History(self._load, self._api), True
        for number, turn in enumerate(conversation.turns):
            if answered:
                await asyncio.sleep(turn.wait_s / self._pace.speed)
                answered = await self._turn(conversation.index, number, turn, history)
            else:
                await self._not_sent(conversation.index, number)

    # ---- one turn ----

    async def _turn(self, index: int, number: int, turn: Turn, history: _History) -> bool:
        """Send one turn; returns whether it was answered."""
        request = history.ask(index, number, turn)
        if self._sessions:
            request = replace(request, session=f"conversation {index}")
        place, sent_s = self._next_place(), _clock() - self._start
        result = await send(self._connection, self._base_url, request, self._retries)
        history.answer(turn, result)
        if _reached_nobody(result):
            await asyncio.sleep(_LAST_BREATH_S)
        self._report(Sent(place, sent_s, result))
        if request.session is not None and turn.closes and result.error is None:
            error = await close_session(self._connection, self._base_url, request.session)
            if error is not None:
                raise ReplayError(f"the server does not close a session: {error}")
        return result.error is None

    async def _not_sent(self, index: int, number: int) -> bool:
        missing = RequestResult(index, number, 0, 0, None, 0.0, 0, error=NOT_SENT)
        self._report(Sent(self._next_place(), _clock() - self._start, missing))
        return False

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


class _History:
    """The history of one conversation, as tokens or as messages."""

    def __init__(self, load: Load, api: Api) -> None:
        self._load, self._api = load, api
        self._ids: tuple[int, ...] = ()
        self._messages: tuple[Message, ...] = ()

    def ask(self, index: int, number: int, turn: Turn) -> Request:
        """The request of the next turn. What the turn adds becomes history."""
        if self._api == "chat":
            self._messages += self._load.messages(turn)
            return Request(index, number, (), turn.output_tokens, self._messages)
        new = self._load.ids(turn)
        self._ids = new if turn.whole else self._ids + new
        return Request(index, number, self._ids, turn.output_tokens)

    def answer(self, turn: Turn, result: RequestResult) -> None:
        """Add the server's answer to the history."""
        self._messages += (("assistant", result.output_text),)
        if not turn.whole:
            self._ids += result.output_ids


def _in_order(conversations: Sequence[Conversation], speed: float) -> list[tuple[float, Conversation, int]]:
    """(arrival in s, conversation, number of the turn) of every turn, by arrival, ties by conversation."""
    turns = [
        (arrival_s / speed, conversation, number)
        for conversation in conversations
        for number, arrival_s in enumerate(
            accumulate((turn.wait_s for turn in conversation.turns[1:]), initial=conversation.start_s)
        )
    ]
    return sorted(turns, key=lambda turn: (turn[0], turn[1].index, turn[2]))
