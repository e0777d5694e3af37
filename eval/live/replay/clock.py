"""The clock of a run, which stands still while it is another server's turn."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """Time of a run, s. It begins to run when it is made.

    Not that of the event loop, which may be taken once a round, and rounded.
    """

    def __init__(self) -> None:
        self._began_s, self._stopped_s = time.perf_counter(), 0.0
        self._runs = asyncio.Event()
        self._runs.set()

    def now(self) -> float:
        """Seconds that it has run so far."""
        return time.perf_counter() - self._began_s if self._runs.is_set() else self._stopped_s

    def stop(self) -> None:
        """Stand still."""
        self._stopped_s = self.now()
        self._runs.clear()

    def go_on(self) -> None:
        """Run on from where it stands."""
        self._began_s = time.perf_counter() - self.now()
        self._runs.set()

    async def until(self, at_s: float) -> None:
        """Sleep until then, and not a moment less."""
        while (left_s := at_s - self.now()) > 0:
            await self._runs.wait()
            await asyncio.sleep(left_s)
