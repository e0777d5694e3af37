"""Lets one of several players send at a time: one request, or what is due within some seconds.

So a machine that is slower for a minute is slower for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from random import Random

from eval.live.replay.clock import Clock


class Turnstile:
    """Whose turn it is. In each round each player has one, in an order that is drawn, always alike.

    A turn ends when its time is over and all that was sent in it has been answered. A player alone has one without end.

    Args:
        players: how many there are.
        turn_s: how long a turn lasts, s; 0: for one request.
    """

    def __init__(self, players: int, turn_s: float) -> None:
        self.turn_s = turn_s if players > 1 else math.inf
        self.places = [Place(self) for _ in range(players)]
        self._here = list(self.places)
        self._round: list[Place] = []  # who has a turn in this round yet, the next one first
        self._time_over: asyncio.TimerHandle | None = None
        self._random = Random(0)
        self._begin_turn()

    def _begin_turn(self) -> None:
        if not self._here:
            return
        if not self._round:
            self._round = self._random.sample(self._here, len(self._here))
        place = self._round[0]
        place.begin_turn()
        if 0 < self.turn_s < math.inf:
            self._time_over = asyncio.get_running_loop().call_later(self.turn_s, place.end_turn)

    def pass_on(self, place: Place) -> None:
        """The turn of a place is over."""
        self._round.remove(place)
        self._begin_turn()

    def leave(self, place: Place) -> None:
        """Its player sends nothing any more."""
        self._here.remove(place)
        had_turn = place is self._round[0]
        if place in self._round:
            self._round.remove(place)
        if had_turn:
            if self._time_over is not None:
                self._time_over.cancel()
            self._begin_turn()


class Place:
    """The place of a player at a turnstile."""

    def __init__(self, turnstile: Turnstile) -> None:
        self.clock = Clock()
        """Stands still while it is not this player's turn. Where a turn is one request, it always runs."""

        self._turnstile = turnstile
        self._opens = asyncio.Event()
        self._under_way = 0
        self._was_busy_s = self._busy_since_s = 0.0
        if turnstile.turn_s:
            self.clock.stop()

    @property
    def busy_s(self) -> float:
        """Seconds so far in which at least one request was under way."""
        return self._was_busy_s + (time.perf_counter() - self._busy_since_s if self._under_way else 0.0)

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until a request may be sent; it ends with the block."""
        await self._opens.wait()
        if not self._under_way:
            self._busy_since_s = time.perf_counter()
        self._under_way += 1
        if not self._turnstile.turn_s:
            self._opens.clear()
        try:
            yield
        finally:
            busy_s = self.busy_s
            self._under_way -= 1
            if not self._under_way:
                self._was_busy_s = busy_s
                self._pass_on_if_over()

    def leave(self) -> None:
        """Nothing more is sent."""
        self._turnstile.leave(self)

    def begin_turn(self) -> None:
        """It may send."""
        self._opens.set()
        self.clock.go_on()

    def end_turn(self) -> None:
        """It may send nothing more; the next turn begins when what it has sent is answered."""
        self._opens.clear()
        self.clock.stop()
        self._pass_on_if_over()

    def _pass_on_if_over(self) -> None:
        if not (self._under_way or self._opens.is_set()):
            self._turnstile.pass_on(self)
