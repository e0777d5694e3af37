"""Processes that import SGLang, started as servers are."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from eval.live.server import CPU_PLATFORM, ENVIRONMENT, Server


class Run:
    """Python with those words, of a module or a script that imports SGLang; started as servers are."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "printed"
        everything = {**os.environ, **ENVIRONMENT, **CPU_PLATFORM, **environment}
        self._process = Server.start_process([sys.executable, *words], everything, self._log)
        self.pid = self._process.pid

    def wait(self, patience_s: float = 240.0) -> tuple[int, str]:
        """Its exit status, and what it printed, errors among it. Ends it where that takes longer."""
        deadline = time.monotonic() + patience_s
        while (status := self._process.poll()) is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        return status, self._log.read_text(errors="replace")
