"""A server that starts in four seconds instead of twenty-five: its processes are forked off one that has imported all.

A server is three processes, each of which imports SGLang, and of the 25 s of processor time of a start 22 s go into
that. Here one process imports it once (``preloaded``), runs nothing and has no thread. A server is forked off it:

    this process ── preloaded ── launcher (``python -m sglang.launch_server`` from its first line, a session of its own)
                                  └── spawner ── scheduler, detokenizer, …

All that a server does after its imports is its own: plugins, flags, environment, processes, HTTP. What SGLang spawns
is forked off the spawner, a copy of the preloaded process that ends with the launcher and passes signals on to it.

Two things are not as in a server that a user starts. The processes hash strings alike, so ranks that go by the order of
a set are not found out: `rank.py` has two that do not. And SGLang's modules are there before the plugin is: what a user
starts is started as he does it by the tests of ``sglang.Engine``, of the launcher's refusals and of ``eval replay``.
``--cold-start`` of pytest starts every server so.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from eval.live import server
from eval.live.server import CPU_PLATFORM, ENVIRONMENT
from tests.helpers.forked import become

PRELOADED = "tests.helpers.preloaded"

# In the preloaded process. A fork has one thread, and numpy's threads would be missing in it.
WITHOUT_THREADS = {**ENVIRONMENT, **CPU_PLATFORM, "OPENBLAS_NUM_THREADS": "1"}


_starting = threading.Lock()


def preload() -> None:
    """Start the process that servers are forked off, if there is none; it imports while this one goes on."""
    with _starting:
        if forkserver._forkserver._forkserver_pid is None:
            forkserver.set_forkserver_preload([PRELOADED])
            with _environment(WITHOUT_THREADS):
                forkserver.ensure_running()


class WarmProcess:
    """A fork that runs a module; of a server, its first process."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        preload()
        of = multiprocessing.get_context("forkserver")
        self._process = of.Process(target=become, args=(words, dict(environment), os.getcwd(), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode


def start_process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> server.Process:
    """In place of `eval.live.server.start_process`; what is not of SGLang on this platform starts as it does there."""
    python, *words = command
    if words[0] != "-m" or not words[1].startswith("sglang.") or not CPU_PLATFORM.items() <= environment.items():
        return server.start_process(command, environment, log)
    assert python == sys.executable
    return WarmProcess(words[1:], environment, log)


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
