"""When each turn is sent.

========  ============================================================================================================
loop      when a turn is sent
========  ============================================================================================================
ordered   in the order of the trace, never early, at most N at once. While a turn waits for an answer, or for its place
          among the N, the clock of the trace stands still. So fast and slow servers see the same order, on which a
          cache depends. The clock of a request starts when it is sent, so TTFT is prefill without a queue.
open      sessions start by the trace's times. Each later turn is sent when the answers that it waits for have ended,
          and then the time of its tool, or of its user, has passed. Subagents run beside the one that started them.
closed    N users, each with one session after the other; waits as in open
========  ============================================================================================================

A turn is skipped where the answer before it never came, or the one that started its subagent. A subagent whose answer
never came holds nobody back: for the one that waits, it ended then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from eval.live.replay.clock import Clock
from eval.live.replay.turns import Conversation, Load, Turn, TurnId

Loop = Literal["ordered", "open", "closed"]

Send = Callable[[TurnId], Awaitable[bool]]
"""Sends a turn and follows it to its end; returns whether it was answered."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When turns are sent."""

    loop: Loop = "ordered"
    speed: float = 1.0  # of the trace's clock: 2 plays its times and waits in half the time
    users: int = 3  # closed: users; ordered: most requests at once


class _End(NamedTuple):
    """How a turn ended."""

    at_s: float
    answered: bool


class Schedule:
    """One run of a load.

    Args:
        send: sends a turn.
        skip: is told of a turn that is not sent.
        clock: by which it is sent; one of its own if None.
    """

    def __init__(
        self,
        load: Load,
        pace: Pace,
        send: Send,
        skip: Callable[[TurnId], None],
        clock: Clock | None = None,
    ) -> None:
        self._load, self._pace = load, pace
        self._send, self._skip, self._clock = send, skip, clock or Clock()
        self._ends: dict[TurnId, asyncio.Future[_End]] = {}

    async def run(self) -> None:
        """Send every turn once, or skip it."""
        await {"ordered": self._ordered, "open": self._open, "closed": self._closed}[self._pace.loop]()

    async def _ordered(self) -> None:
        slots = asyncio.Semaphore(self._pace.users)
        trace_start = self._clock.now()

        async def serve(turn: TurnId) -> None:
            try:
                await self._sent(turn)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for arrival_s, one, turn in in_order(self._load.conversations, self._pace.speed):
                await self._clock.until(trace_start + arrival_s)
                if not (await self._waited(one, turn)).answered:
                    self._skipped(one)
                else:
                    await slots.acquire()
                    tasks.create_task(serve(one))
                    # The task starts, and so the request is on its way, before the next one is looked at.
                    await asyncio.sleep(0)
                trace_start = max(trace_start, self._clock.now() - arrival_s)

    async def _open(self) -> None:
        start = self._clock.now()
        await self._beside(
            (conversation, start + conversation.start_s / self._pace.speed) for conversation in self._load.conversations
        )

    async def _closed(self) -> None:
        sessions: dict[int, list[Conversation]] = {}
        for conversation in self._load.conversations:
            sessions.setdefault(conversation.session_index, []).append(conversation)
        queue = iter(sessions.values())

        async def user() -> None:
            for session in queue:
                start = self._clock.now() - session[0].start_s / self._pace.speed
                await self._beside((each, start + each.start_s / self._pace.speed) for each in session)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._pace.users):
                tasks.create_task(user())

    async def _beside(self, conversations: Iterable[tuple[Conversation, float]]) -> None:
        """Play conversations beside each other, each from a time on."""
        async with asyncio.TaskGroup() as tasks:
            for conversation, start in conversations:
                tasks.create_task(self._conversation(conversation, start))

    async def _conversation(self, conversation: Conversation, start: float) -> None:
        for number, turn in enumerate(conversation.turns):
            one = TurnId(conversation.index, number)
            last = await self._waited(one, turn)
            if last.answered:
                waits = number > 0 or turn.after
                await self._clock.until(last.at_s + turn.wait_s / self._pace.speed if waits else start)
                await self._sent(one)
            else:
                self._skipped(one)

    async def _waited(self, one: TurnId, turn: Turn) -> _End:
        """The last end of what a turn waits for, once all has ended, and whether the turn can be sent then."""
        others = [await self._end(each) for each in turn.after]
        needed = [await self._end(one._replace(turn=one.turn - 1))] if one.turn else others
        at_s = max((end.at_s for end in (*others, *needed)), default=0.0)
        return _End(at_s, all(end.answered for end in needed))

    async def _sent(self, one: TurnId) -> None:
        answered = await self._send(one)
        self._end(one).set_result(_End(self._clock.now(), answered))

    def _skipped(self, one: TurnId) -> None:
        self._skip(one)
        self._end(one).set_result(_End(self._clock.now(), False))

    def _end(self, one: TurnId) -> asyncio.Future[_End]:
        if one not in self._ends:
            self._ends[one] = asyncio.get_running_loop().create_future()
        return self._ends[one]


def in_order(conversations: Sequence[Conversation], speed: float) -> list[tuple[float, TurnId, Turn]]:
    """(arrival in s, which turn, the turn) of every turn, by arrival, ties as in the trace."""
    turns = [
        (arrival_s / speed, TurnId(conversation.index, number), turn)
        for conversation in conversations
        for number, (arrival_s, turn) in enumerate(zip(_arrivals(conversation), conversation.turns, strict=True))
    ]
    return sorted(turns, key=lambda each: (each[0], each[2].place, each[1]))


def _arrivals(conversation: Conversation) -> Iterable[float]:
    """The arrivals of the turns on the trace's clock, s."""
    summed = accumulate((turn.wait_s for turn in conversation.turns[1:]), initial=conversation.start_s)
    return (
        at_s if turn.arrival_s is None else turn.arrival_s
        for turn, at_s in zip(conversation.turns, summed, strict=True)
    )
