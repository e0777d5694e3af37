"""Plays a load against one server, in real time: who sends what when.

========  ============================================================================================================
loop      when a turn is sent
========  ============================================================================================================
ordered   in the order of the trace, never early, at most N at once. When one has to wait, for the answer before it or
          for its place, the clock of the trace stands still: fast and slow servers see the same order, and order is
          what a cache depends on. Waiting is over before the clock of the request starts: TTFT is prefill, no queue.
open      conversations start by the trace's times; a later turn comes its wait after the answer before it arrived
closed    N users, each with one conversation after the other, waits likewise
========  ============================================================================================================
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import aiohttp

from eval.live.replay.client import Request, RequestResult, close_session, send, session
from eval.live.replay.load import Conversation, Load, Message, Turn

__all__ = ["NOT_SENT", "Api", "Loop", "Pace", "ReplayError", "Sent", "play", "prefill_alone", "warm_up"]

# Lengths of the warm-up prompts, in tokens: the first prefill of a size pays for allocations that later ones reuse.
WARM_UP_TOKENS = (1, 64, 512, 1024, 2048, 64, 512, 1024, 2048, 2048)

PROBES, PROBE_TOKENS = 8, 1024  # of `prefill_alone`

NOT_SENT = "not sent: an earlier turn of the conversation failed"

Api = Literal["generate", "chat"]
Loop = Literal["ordered", "open", "closed"]

_clock = time.perf_counter  # that of the client; an event loop may take its own time once a round, and round it
_GONE_AFTER = 5  # requests in a row that reach no server
_LAST_BREATH_S = 0.3  # a connection ends before its process has: only then is it asked whether it still runs


class ReplayError(RuntimeError):
    """The server cannot be played against (any more); one line."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast turns come."""

    loop: Loop = "ordered"
    speed: float = 1.0  # of the trace's times and waits: 2 plays them in half the time
    users: int = 3  # closed: users; ordered: requests at once


@dataclass(frozen=True, slots=True)
class Sent:
    """A result, and its place in the run."""

    number: int  # in the order of sending, from 0
    sent_s: float  # since the run began
    result: RequestResult


def warm_up(base_url: str, timeout_s: float = 120.0) -> None:
    """Some prompts of rising length, none of which finds another cached.

    Raises:
        ReplayError: the server does not answer one.
    """

    asyncio.run(_alone(base_url, "warm-up", enumerate(WARM_UP_TOKENS), timeout_s))


def prefill_alone(base_url: str, timeout_s: float = 120.0) -> float:
    """How fast the machine is now: the median TTFT, in ms, of prompts of `PROBE_TOKENS`, one after the other.

    None finds another cached, nor one of the warm-up.

    Raises:
        ReplayError: the server does not answer one.
    """
    probes = ((len(WARM_UP_TOKENS) + number, PROBE_TOKENS) for number in range(PROBES))
    return statistics.median(asyncio.run(_alone(base_url, "probe", probes, timeout_s)))


async def _alone(base_url: str, what: str, prompts: Iterable[tuple[int, int]], timeout_s: float) -> list[float]:
    """The TTFT, in ms, of prompts given as (token, how often it is said)."""
    found = []
    async with session(timeout_s) as connection:
        for token, tokens in prompts:
            result = await send(connection, base_url, Request(-1, 0, (token,) * tokens, 8))
            if result.error is not None or result.ttft_ms is None:
                raise ReplayError(f"{what} with {tokens} tokens failed: {result.error}")
            found.append(result.ttft_ms)
    return found


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

    After a failed turn the rest of its conversation cannot be sent, for its history is unknown; those turns are
    reported as failed too.

    Args:
        sessions: whether conversations are sessions of the server, which are closed where the load says so.
        alive: whether the server still runs, asked after a failure.

    Raises:
        ReplayError: the server is gone, or does not close a session. What came before went to ``on_sent``.
        OSError: what ``on_sent`` raised.
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
            for due_s, conversation, number in _in_order(self._load.conversations, self._pace.speed):
                index = conversation.index
                await asyncio.sleep(trace_start + due_s - _clock())
                if number > 0 and not await latest[index]:
                    latest[index] = tasks.create_task(self._not_sent(index, number))
                else:
                    await slots.acquire()
                    latest[index] = tasks.create_task(serve(index, number, conversation.turns[number]))
                    # The task starts, and so the request is on its way, before the next one is looked at.
                    await asyncio.sleep(0)
                trace_start = max(trace_start, _clock() - due_s)

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
        """Whether it was answered."""
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
    """Whether no server said anything to a request that was sent."""
    return result.error not in (None, NOT_SENT) and result.ttft_ms is None and not result.error.startswith("HTTP ")


class _History:
    """What was said so far in one conversation, as tokens or as messages."""

    def __init__(self, load: Load, api: Api) -> None:
        self._load, self._api = load, api
        self._ids: tuple[int, ...] = ()
        self._messages: tuple[Message, ...] = ()

    def ask(self, index: int, number: int, turn: Turn) -> Request:
        """The request of the next turn; what it adds becomes history."""
        if self._api == "chat":
            self._messages += self._load.messages(turn)
            return Request(index, number, (), turn.output_tokens, self._messages)
        new = self._load.ids(turn)
        self._ids = new if turn.whole else self._ids + new
        return Request(index, number, self._ids, turn.output_tokens)

    def answer(self, turn: Turn, result: RequestResult) -> None:
        """The real answer becomes history."""
        self._messages += (("assistant", result.output_text),)
        if not turn.whole:
            self._ids += result.output_ids


def _in_order(conversations: Sequence[Conversation], speed: float) -> list[tuple[float, Conversation, int]]:
    """(when it is due in seconds, its conversation, its number) of every turn; ties by conversation."""
    turns = [
        (due_s / speed, conversation, number)
        for conversation in conversations
        for number, due_s in enumerate(
            accumulate((turn.wait_s for turn in conversation.turns[1:]), initial=conversation.start_s)
        )
    ]
    return sorted(turns, key=lambda turn: (turn[0], turn[1].index, turn[2]))
